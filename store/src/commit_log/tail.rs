//! The log's end as appends see it, and the queue to the writer. One short lock around both, so that the queue's order is
//! the order in which places were given.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::entry::{AppendEntry, CommitLogConfig, FlushCallback, PlacedEntry};
use super::frame::{FRAME_HEADER_LEN, encode_header, frame_len, place};
use super::ring::Ring;
use crate::error::Result;
use crate::group_files::VoteRecord;
use crate::log_index::EntryIndex;
use crate::{EntryId, LogIndex, LogOffset, StoreError};

/// A frame on its way to the disk.
#[derive(Debug)]
pub(crate) struct QueuedFrame {
    pub(crate) offset: LogOffset,
    pub(crate) header: [u8; FRAME_HEADER_LEN],
    pub(crate) head_crc: u32,
    pub(crate) body: Bytes,
}

impl QueuedFrame {
    pub(crate) fn len(&self) -> u64 {
        frame_len(self.body.len())
    }
}

/// What is cut by a truncation: see [`crate::group_files::Intent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) cut: LogOffset,
    pub(crate) first: LogOffset,
    pub(crate) old_end: LogOffset,
    pub(crate) head_crc: u32,
}

/// Something for the writer to do.
pub(crate) enum Work {
    Append {
        frames: Vec<QueuedFrame>,
        last: EntryId,
        epoch: u64,
        bytes: u64,
    },
    Vote(VoteRecord),
    Truncate {
        cut: Cut,
        epoch: u64,
    },
    Purge(EntryId),
    /// Only tells that everything before it is done.
    Barrier,
}

/// Work with when it came and whom to tell.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) queued_at: Instant,
    pub(crate) done: FlushCallback,
}

/// Where the log goes on when it holds no entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    pub(crate) end: LogOffset,
    pub(crate) chain: u32,
}

/// See the module.
pub(crate) struct Tail {
    /// Every frame from `base` on, also those that Raft has purged.
    pub(crate) index: EntryIndex,
    pub(crate) ring: Ring,
    pub(crate) base: Base,
    pub(crate) end: LogOffset,
    /// head_crc of the last frame.
    pub(crate) chain: u32,
    pub(crate) purged: Option<EntryId>,
    /// What a checkpoint covers is never cut.
    pub(crate) checkpointed: Option<LogIndex>,
    /// Number of truncations so far.
    pub(crate) epoch: u64,
    pub(crate) flushed: Option<LogIndex>,
    pub(crate) queue: VecDeque<Job>,
    pub(crate) unflushed_bytes: u64,
    /// When the oldest job that the writer has taken was queued.
    pub(crate) writing_since: Option<Instant>,
    pub(crate) failed: Option<StoreError>,
    pub(crate) stopping: bool,
}

impl Tail {
    /// First entry that Raft has.
    pub(crate) fn first(&self) -> Option<EntryId> {
        let first = self.index.first()?;
        match self.purged {
            Some(purged) if purged.index >= first.index => self.index.id(LogIndex(purged.index.0 + 1)),
            _ => Some(first),
        }
    }

    /// Last entry that Raft has.
    pub(crate) fn last(&self) -> Option<EntryId> {
        self.index.last().filter(|last| self.purged.is_none_or(|p| last.index > p.index))
    }

    /// Index that the next entry must have; None if any will do.
    pub(crate) fn next(&self) -> Option<LogIndex> {
        self.last().or(self.purged).map(|id| LogIndex(id.index.0 + 1))
    }

    /// Why nothing can be appended any more.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        self.failed.clone().or_else(|| self.stopping.then_some(StoreError::Stopped))
    }

    pub(crate) fn missing(&self, index: LogIndex) -> StoreError {
        let next = self.next().unwrap_or(LogIndex(0));
        StoreError::Missing { index, first: self.first().map_or(next, |f| f.index), end: next }
    }

    /// Gives the entries their places, makes them readable, and queues them. Nothing is changed on an error.
    pub(crate) fn append(
        &mut self,
        config: &CommitLogConfig,
        entries: Vec<AppendEntry>,
        done: FlushCallback,
    ) -> Result<()> {
        let mut frames = Vec::with_capacity(entries.len());
        let (mut end, mut chain, mut next, mut bytes) = (self.end, self.chain, self.next(), 0);
        let mut last = EntryId::default();
        for AppendEntry { entry, expected_head_crc } in &entries {
            if let Some(expected) = next.filter(|next| *next != entry.index) {
                return Err(StoreError::NotNext { expected, found: entry.index });
            }
            let len = frame_len(entry.body.len());
            if len > u64::from(config.frame_limit) {
                let limit = u64::from(config.frame_limit);
                return Err(StoreError::Limit { what: "bytes of a frame", value: len, limit });
            }
            let offset = place(end, len, config.segment_size);
            let (header, head_crc) = encode_header(entry, offset, chain);
            if let Some(expected) = expected_head_crc.filter(|expected| *expected != head_crc) {
                return Err(StoreError::Divergence { index: entry.index, expected, found: head_crc });
            }
            frames.push(QueuedFrame { offset, header, head_crc, body: entry.body.clone() });
            (end, chain, next) = (LogOffset(offset.0 + len), head_crc, Some(LogIndex(entry.index.0 + 1)));
            bytes += len;
            last = entry.id();
        }
        let mut prev_crc = self.chain;
        for (AppendEntry { entry, .. }, frame) in entries.into_iter().zip(&frames) {
            self.index.push(entry.id(), frame.offset, LogOffset(frame.offset.0 + frame.len()));
            self.ring.push(PlacedEntry { entry, offset: frame.offset, prev_crc, head_crc: frame.head_crc });
            prev_crc = frame.head_crc;
        }
        (self.end, self.chain) = (end, chain);
        self.unflushed_bytes += bytes;
        self.ring.trim(self.flushed);
        let epoch = self.epoch;
        self.enqueue(Work::Append { frames, last, epoch, bytes }, done);
        Ok(())
    }

    pub(crate) fn enqueue(&mut self, work: Work, done: FlushCallback) {
        self.queue.push_back(Job { work, queued_at: Instant::now(), done });
    }

    /// Takes everything above `kept` out of memory. `first_cut` is the frame behind it: (prev_crc, head_crc).
    pub(crate) fn cut(&mut self, kept: Option<LogIndex>, first: LogOffset, first_cut: (u32, u32)) -> Cut {
        let end = kept.and_then(|k| self.index.place(k)).map_or(self.base.end, |(_, end)| end);
        let cut = Cut { cut: end, first, old_end: self.end, head_crc: first_cut.1 };
        self.index.truncate(kept);
        self.ring.truncate(kept);
        (self.end, self.chain) = (end, first_cut.0);
        self.epoch += 1;
        self.flushed = self.flushed.min(kept);
        cut
    }

    /// Entries up to `upto` are no longer Raft's. Above the end: the log goes on behind it, at the present place.
    pub(crate) fn purge(&mut self, upto: EntryId) {
        if self.purged.is_some_and(|p| p.index >= upto.index) {
            return;
        }
        self.purged = Some(upto);
        if self.index.last().is_none_or(|last| last.index < upto.index) {
            self.index.clear();
            self.ring.truncate(None);
            self.base = Base { end: self.end, chain: self.chain };
        }
    }
}
