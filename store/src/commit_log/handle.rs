//! The handle of an open log.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::WRITE_BATCH_MAX;
use super::entry::{AppendEntry, CommitLogConfig, Covered, FlushCallback, RecoveryReport};
use super::recover::{Recovered, recover};
use super::tail::{Tail, Work};
use super::watermark::{FlushedWatermark, Watermark};
use crate::error::Result;
use crate::flush::Writer;
use crate::group_files::{GroupFiles, VoteRecord};
use crate::log_index::SEGMENT_SIZE_MAX;
use crate::segment::Segments;
use crate::{EntryId, LogIndex, LogOffset, StoreError};

/// What the handles, the writer and the readers share.
pub(crate) struct Shared {
    pub(crate) config: CommitLogConfig,
    pub(crate) files: Arc<GroupFiles>,
    pub(crate) segments: Segments,
    pub(crate) tail: Mutex<Tail>,
    /// Something was queued, or the log shall stop.
    pub(crate) work: Condvar,
    pub(crate) watermark: Arc<Watermark>,
    /// Where the oldest segment begins.
    pub(super) physical_start: std::sync::atomic::AtomicU64,
    /// One drop of old segments at a time.
    pub(super) dropping: Mutex<()>,
    /// One note of damage at a time.
    pub(super) noting: Mutex<()>,
    pub(super) on_damage: Mutex<Option<super::damage::DamageCallback>>,
    /// The bug "an append is reported before its fdatasync", to show that the tests find it.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) report_before_sync: std::sync::atomic::AtomicBool,
}

/// Stops the writer with the last handle.
struct Handle {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    fn stop(&self) {
        {
            let mut tail = self.shared.tail.lock();
            tail.stopping = true;
            self.shared.work.notify_all();
        }
        let Some(writer) = self.writer.lock().take() else { return };
        // A callback may own the last handle: the writer cannot wait for itself.
        if writer.thread().id() != std::thread::current().id() && writer.join().is_err() {
            tracing::error!("the log writer panicked");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An open CommitLog. Clones share it; the writer ends with the last of them.
#[derive(Clone)]
pub struct CommitLog {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for CommitLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitLog").field("dir", &self.shared().segments.dir()).finish_non_exhaustive()
    }
}

impl CommitLog {
    /// Opens the log of `files`, finishing what a crash left open. Everything that is accepted survives a power cut on
    /// return. Bodies of entries up to `checkpointed` are not checked again, and a log that ends below it is damaged.
    ///
    /// Without a meta record (see [`GroupFiles::save_meta`]) one is made from `config`, else both must agree.
    pub fn open(
        files: Arc<GroupFiles>,
        config: CommitLogConfig,
        checkpointed: Option<EntryId>,
    ) -> Result<(Self, RecoveryReport)> {
        Self::open_covered(files, config, checkpointed.map(Covered::from))
    }

    /// Like [`Self::open`], with all that the newest checkpoint's record says of the log.
    pub fn open_covered(
        files: Arc<GroupFiles>,
        config: CommitLogConfig,
        covered: Option<Covered>,
    ) -> Result<(Self, RecoveryReport)> {
        check(&config)?;
        agree(&files, &config)?;
        let Recovered { segments, tail, batch, unsealed, report } = recover(&files, &config, covered)?;
        let flushed = tail.last().or(tail.purged);
        let physical_start = files.meta().unwrap_or_default().physical_start.0;
        let shared = Arc::new(Shared {
            config,
            files,
            segments,
            tail: Mutex::new(tail),
            work: Condvar::new(),
            watermark: Arc::new(Watermark::new(flushed)),
            physical_start: std::sync::atomic::AtomicU64::new(physical_start),
            dropping: Mutex::new(()),
            noting: Mutex::new(()),
            on_damage: Mutex::new(None),
            #[cfg(any(test, feature = "testkit"))]
            report_before_sync: std::sync::atomic::AtomicBool::new(false),
        });
        let sealer = super::sealed::Sealer::start(&shared)?;
        unsealed.into_iter().for_each(|base| sealer.seal(base));
        let writer = Writer::new(Arc::clone(&shared), batch, sealer);
        let writer = std::thread::Builder::new()
            .name("log-writer".into())
            .spawn(move || writer.run())
            .map_err(|e| StoreError::io("start thread for", shared.segments.dir(), e))?;
        let handle = Handle { shared, writer: Mutex::new(Some(writer)) };
        Ok((Self { handle: Arc::new(handle) }, report))
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Appends entries: readable on return; `done` is told when they survive a power cut here. On an error nothing was
    /// appended and `done` is not called. Does not wait for the disk. An append of nothing is told when everything before it
    /// is done.
    ///
    /// The queue to the disk has no bound of its own: callers stop by [`Self::unflushed_bytes`].
    pub fn append(&self, entries: Vec<AppendEntry>, done: FlushCallback) -> Result<()> {
        let shared = self.shared();
        let mut tail = shared.tail.lock();
        if let Some(why) = tail.refusal() {
            return Err(why);
        }
        if entries.is_empty() {
            tail.enqueue(Work::Barrier, done);
        } else {
            tail.append(&shared.config, entries, done)?;
        }
        shared.work.notify_one();
        Ok(())
    }

    /// Saves the vote; `done` is told when it survives a power cut. In order with appends.
    pub fn save_vote(&self, vote: VoteRecord, done: FlushCallback) {
        self.enqueue(done, |_| Ok(Work::Vote(vote)));
    }

    /// Drops every entry above `last` (all that are not purged for None); a `last` at or above the end changes nothing. On
    /// return they are gone from memory and the flushed mark is lowered; `done` is told when they are gone for good. Never
    /// below the last checkpoint.
    pub fn truncate_after(&self, last: Option<LogIndex>, done: FlushCallback) {
        self.enqueue(done, |tail| self.truncate(tail, last));
    }

    /// The state up to `upto` is in a valid checkpoint: no truncation goes below it. Never falls.
    pub fn checkpointed(&self, upto: LogIndex) {
        let mut tail = self.shared().tail.lock();
        tail.checkpointed = tail.checkpointed.max(Some(upto));
    }

    /// Entries up to `upto` no longer belong to the Raft log; `done` is told when that survives a power cut. Their bytes
    /// stay readable by offset. Above the end, the log goes on behind `upto`.
    pub fn purge(&self, upto: EntryId, done: FlushCallback) {
        self.enqueue(done, |tail| {
            tail.purge(upto);
            Ok(Work::Purge(upto))
        });
    }

    fn enqueue(&self, done: FlushCallback, make: impl FnOnce(&mut Tail) -> Result<Work>) {
        let shared = self.shared();
        let mut tail = shared.tail.lock();
        let made = tail.refusal().map_or_else(|| make(&mut tail), Err);
        match made {
            Ok(work) => {
                tail.enqueue(work, done);
                shared.work.notify_one();
            }
            Err(why) => {
                drop(tail);
                done(Err(why));
            }
        }
    }

    fn truncate(&self, tail: &mut Tail, last: Option<LogIndex>) -> Result<Work> {
        let kept = last.max(tail.purged.map(|p| p.index));
        let end = tail.last().map(|l| l.index);
        if end <= kept {
            return Ok(Work::Barrier);
        }
        if tail.checkpointed > kept {
            return Err(StoreError::Limit {
                what: "index of the last checkpoint, which a truncation must keep,",
                value: tail.checkpointed.map_or(0, |c| c.0),
                limit: kept.map_or(0, |k| k.0),
            });
        }
        let kept = kept.filter(|k| tail.index.place(*k).is_some());
        let next = kept.map_or_else(|| tail.index.first().map(|f| f.index), |k| Some(LogIndex(k.0 + 1)));
        let Some((next, (first, _))) = next.and_then(|n| Some((n, tail.index.place(n)?))) else {
            return Ok(Work::Barrier);
        };
        let first_cut = match tail.ring.get(next) {
            Some(entry) => (entry.prev_crc, entry.head_crc),
            None => {
                let header = self.read_header(first)?;
                (header.prev_crc, header.head_crc)
            }
        };
        let kept_id = kept.and_then(|k| tail.index.id(k)).or(tail.purged);
        let cut = tail.cut(kept, first, first_cut);
        self.shared().watermark.lower(kept_id, tail.epoch);
        Ok(Work::Truncate { cut, epoch: tail.epoch })
    }

    /// Term of the entry at `index`, if the log holds it.
    #[must_use]
    pub fn entry_id(&self, index: LogIndex) -> Option<EntryId> {
        let tail = self.shared().tail.lock();
        tail.index.id(index).filter(|_| tail.purged.is_none_or(|p| index > p.index))
    }

    /// First entry that is not purged.
    #[must_use]
    pub fn first(&self) -> Option<EntryId> {
        self.shared().tail.lock().first()
    }

    /// Last entry; None if the log holds none above [`Self::purged`].
    #[must_use]
    pub fn last(&self) -> Option<EntryId> {
        self.shared().tail.lock().last()
    }

    /// Last entry that was purged.
    #[must_use]
    pub fn purged(&self) -> Option<EntryId> {
        self.shared().tail.lock().purged
    }

    /// Offset behind the last frame.
    #[must_use]
    pub fn end(&self) -> LogOffset {
        self.shared().tail.lock().end
    }

    /// Chain value of the whole log: head_crc of its last frame.
    #[must_use]
    pub fn chain_at_end(&self) -> u32 {
        self.shared().tail.lock().chain
    }

    /// Bytes that were appended and do not yet survive a power cut.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.shared().tail.lock().unflushed_bytes
    }

    /// When the oldest call that still waits for the disk was made. For the watch over a hanging disk (D11).
    #[must_use]
    pub fn oldest_unflushed(&self) -> Option<Instant> {
        let tail = self.shared().tail.lock();
        tail.writing_since.or_else(|| tail.queue.front().map(|job| job.queued_at))
    }

    /// The failure that ended the writer.
    #[must_use]
    pub fn failed(&self) -> Option<StoreError> {
        self.shared().tail.lock().failed.clone()
    }

    /// Writes what is queued, ends the writer and waits for it. Everything later is refused.
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// The flushed mark.
    #[must_use]
    pub fn watermark(&self) -> Arc<dyn FlushedWatermark> {
        Arc::clone(&self.shared().watermark) as Arc<dyn FlushedWatermark>
    }

    /// Puts the bug "an append is reported before its fdatasync" into this log.
    #[cfg(any(test, feature = "testkit"))]
    pub fn inject_report_before_sync(&self) {
        self.shared().report_before_sync.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Values that the format and recovery can hold.
fn check(config: &CommitLogConfig) -> Result<()> {
    let CommitLogConfig { segment_size, frame_limit, ring_bytes: _, write_batch_bytes, chain_start: _ } =
        config;
    let frame_limit = u64::from(*frame_limit);
    let limits = [
        ("segment size in bytes", *segment_size, SEGMENT_SIZE_MAX),
        ("segment size in bytes modulo 8", segment_size % 8, 0),
        ("frame limit in bytes", frame_limit, *segment_size),
        ("frame limit in bytes", frame_limit, *write_batch_bytes as u64),
        ("write batch in bytes", *write_batch_bytes as u64, WRITE_BATCH_MAX as u64),
    ];
    for (what, value, limit) in limits {
        if value > limit {
            return Err(StoreError::Limit { what, value, limit });
        }
    }
    Ok(())
}

/// Constants of the group: made once, then only compared.
fn agree(files: &GroupFiles, config: &CommitLogConfig) -> Result<()> {
    let Some(meta) = files.meta() else {
        return files.update_meta(|meta| {
            meta.segment_size = config.segment_size;
            meta.frame_limit = config.frame_limit;
            meta.chain_start = config.chain_start;
        });
    };
    let pairs = [
        ("segment size", config.segment_size, meta.segment_size),
        ("frame limit", u64::from(config.frame_limit), u64::from(meta.frame_limit)),
    ];
    for (what, expected, found) in pairs {
        if expected != found {
            return Err(StoreError::Identity {
                path: files.meta_path(),
                what,
                expected: expected.to_string(),
                found: found.to_string(),
            });
        }
    }
    // Behind a dropped segment the meta record has the chain value there; the group's own begins the first segment.
    if meta.physical_start == LogOffset(0) && meta.chain_start != config.chain_start {
        return Err(StoreError::Identity {
            path: files.meta_path(),
            what: "chain start",
            expected: format!("{:08x}", config.chain_start),
            found: format!("{:08x}", meta.chain_start),
        });
    }
    Ok(())
}
