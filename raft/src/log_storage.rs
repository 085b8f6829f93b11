//! openraft's log storage over the CommitLog: one Raft entry = one frame.
//!
//! What always holds:
//! - votes, appends and truncations go through one writer queue, in the order in which openraft issues them;
//! - an entry is readable when `append` returns; its callback comes after the fsync that covers it;
//! - `joined` is durable before the first vote or entry is (D12): crash in between → empty, and may start over;
//! - `committed` is kept in memory only and never reported above the last entry.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::Stream;
use mq_store::GroupFiles;
use mq_store::commit_log::{CommitLog, FlushCallback, FrameKind, LogEntry};
use mq_store::{EntryId, LogIndex, StoreError};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock::GroupClock;
use crate::config::Limits;
use crate::fatal::FatalCell;
use crate::hot_window::HotWindow;
use crate::types::{Entry, LogId, TypeConfig, Vote, entry_id, log_id};
use crate::vote;

/// The log of one group as openraft sees it. Clones share everything.
#[derive(Clone)]
pub(crate) struct LogStorage {
    log: CommitLog,
    files: Arc<GroupFiles>,
    clock: GroupClock,
    fatal: FatalCell,
    read_bytes: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    vote: Mutex<Option<Vote>>,
    committed: Mutex<Option<LogId>>,
    joined: Mutex<bool>,
    window: Mutex<HotWindow>,
}

impl LogStorage {
    pub(crate) fn new(
        log: CommitLog,
        files: Arc<GroupFiles>,
        clock: GroupClock,
        fatal: FatalCell,
        limits: &Limits,
    ) -> Self {
        let Limits { read_bytes, ring_bytes, .. } = *limits;
        let joined = files.meta().is_some_and(|meta| meta.joined);
        let vote = files.vote().as_ref().and_then(vote::from_record);
        let shared = Shared {
            vote: Mutex::new(vote),
            committed: Mutex::new(None),
            joined: Mutex::new(joined),
            window: Mutex::new(HotWindow::new(ring_bytes / 2)),
        };
        Self { log, files, clock, fatal, read_bytes, shared: Arc::new(shared) }
    }

    /// Carries the times of the newest frame of items over a restart.
    pub(crate) fn restore_clock(&self) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (self.log.first(), self.log.last()) else { return Ok(()) };
        for index in (first.index.0..=last.index.0).rev() {
            let placed = self.log.read(LogIndex(index), LogIndex(index + 1), 1)?;
            let Some(placed) = placed.first() else { break };
            if placed.entry.kind == FrameKind::Items {
                self.clock.observe_frame(placed.entry.store_time, placed.entry.lease_time);
                break;
            }
        }
        Ok(())
    }

    fn joined(&self) -> bool {
        *self.shared.joined.lock()
    }

    /// Makes `joined` durable; from then on missing files mean a wiped folder.
    async fn join(&self) -> Result<(), io::Error> {
        if self.joined() {
            return Ok(());
        }
        let files = self.files.clone();
        let saved = tokio::task::spawn_blocking(move || files.update_meta(|meta| meta.joined = true)).await;
        match saved {
            Ok(Ok(())) => {
                *self.shared.joined.lock() = true;
                Ok(())
            }
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(stopped) => Err(io::Error::other(stopped)),
        }
    }

    fn failed(&self, error: &StoreError) -> io::Error {
        self.fatal.raise_store(error);
        io::Error::other(error.clone())
    }

    /// Waits for an operation of the writer queue.
    async fn written(&self, issue: impl FnOnce(FlushCallback)) -> Result<(), io::Error> {
        let (done, outcome) = oneshot::channel();
        issue(Box::new(move |result| drop(done.send(result))));
        match outcome.await {
            Ok(result) => result.map_err(|e| self.failed(&e)),
            Err(_) => Err(io::Error::other("the log writer stopped")),
        }
    }

    /// Entries of [from, to), at least one if there is one, as many as fit into `max_bytes`.
    async fn read(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<Entry>, io::Error> {
        if from >= to {
            return Ok(Vec::new());
        }
        let (from, to) = (LogIndex(from), LogIndex(to));
        let hot = self.shared.window.lock().holds(from);
        let placed = match hot.then(|| self.log.read(from, to, max_bytes)) {
            Some(Ok(placed)) => placed,
            Some(Err(StoreError::Missing { .. })) => Vec::new(),
            Some(Err(error)) => return Err(self.failed(&error)),
            None => {
                let log = self.log.clone();
                let read = tokio::task::spawn_blocking(move || log.read(from, to, max_bytes)).await;
                match read.map_err(io::Error::other)? {
                    Ok(placed) => placed,
                    // Cut off meanwhile: the reader of a deposed leader is about to be told.
                    Err(StoreError::Missing { .. }) => Vec::new(),
                    Err(error) => return Err(self.failed(&error)),
                }
            }
        };
        placed.into_iter().map(Entry::from_placed).collect::<Result<_, _>>().map_err(io::Error::other)
    }

    /// The part of [start, end) that the log has.
    fn clip(&self, range: &impl RangeBounds<u64>) -> (u64, u64) {
        let start = match range.start_bound() {
            Bound::Included(i) => *i,
            Bound::Excluded(i) => i + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(i) => i + 1,
            Bound::Excluded(i) => *i,
            Bound::Unbounded => u64::MAX,
        };
        match (self.log.first(), self.log.last()) {
            (Some(first), Some(last)) => (start.max(first.index.0), end.min(last.index.0 + 1)),
            _ => (0, 0),
        }
    }
}

impl RaftLogReader<TypeConfig> for LogStorage {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // Read in portions: a long replay must not load the whole log.
        let (from, to) = self.clip(&range);
        let portions = futures::stream::try_unfold((self.clone(), from), move |(log, from)| async move {
            if from >= to {
                return Ok(None);
            }
            let entries = log.read(from, to, log.read_bytes).await?;
            let Some(last) = entries.last() else {
                return Err(io::Error::other(format!("entry {from} is not in the log")));
            };
            let next = last.log_id.index + 1;
            let portion = futures::stream::iter(entries.into_iter().map(Ok::<_, io::Error>));
            Ok(Some((portion, (log, next))))
        });
        Box::pin(futures::TryStreamExt::try_flatten(portions))
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (mut from, to) = self.clip(&range);
        let mut entries = Vec::new();
        while from < to {
            let portion = self.read(from, to, self.read_bytes).await?;
            let Some(last) = portion.last() else { break };
            from = last.log_id.index + 1;
            entries.extend(portion);
        }
        Ok(entries)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, self.read_bytes).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(*self.shared.vote.lock())
    }
}

impl RaftLogStorage<TypeConfig> for LogStorage {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let purged = self.log.purged().map(log_id);
        let last = self.log.last().map(log_id).or(purged);
        Ok(LogState { last_purged_log_id: purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.join().await?;
        let record = vote::to_record(vote);
        self.written(|done| self.log.save_vote(record, done)).await?;
        *self.shared.vote.lock() = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        *self.shared.committed.lock() = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let last = self.log.last().map(log_id).or_else(|| self.log.purged().map(log_id));
        Ok((*self.shared.committed.lock()).min(last))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let frames: Vec<_> = entries.into_iter().map(Entry::into_append).collect();
        self.join().await?;
        let times = frames.iter().map(|frame| &frame.entry).rev().find(|e| e.kind == FrameKind::Items);
        let times = times.map(|LogEntry { store_time, lease_time, .. }| (*store_time, *lease_time));
        let fatal = self.fatal.clone();
        let done = move |result: Result<(), StoreError>| {
            if let Err(error) = &result {
                fatal.raise_store(error);
            }
            callback.io_completed(result.map_err(io::Error::other));
        };
        let sizes: Vec<_> = frames.iter().map(|f| (f.entry.index, f.entry.body.len())).collect();
        self.log.append(frames, Box::new(done)).map_err(|e| self.failed(&e))?;
        self.shared.window.lock().extend(&sizes);
        if let Some((store_time, lease_time)) = times {
            self.clock.observe_frame(store_time, lease_time);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let last = last.map(|id| LogIndex(id.index));
        self.shared.window.lock().cut(last);
        self.written(|done| self.log.truncate_after(last, done)).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let upto: EntryId = entry_id(&upto);
        self.written(|done| self.log.purge(upto, done)).await
    }
}
