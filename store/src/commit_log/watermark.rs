//! What the local disk holds for sure: the log id up to which everything is flushed.
//!
//! What always holds: the mark never covers an entry whose write was not followed by a successful fdatasync, nor one that
//! a truncation took away; it only falls by a truncation, before that call returns.

use parking_lot::{Condvar, Mutex};

use crate::error::{Result, StoreError};
use crate::{EntryId, LogIndex};

/// The writer's own flushed mark, read without Raft.
pub trait FlushedWatermark: Send + Sync {
    /// Last entry that survives a power cut here, with everything before it.
    fn flushed(&self) -> Option<EntryId>;

    /// Blocks until `flushed` is at or above `index`; the writer's error when it stopped before. Must not be called on
    /// an async worker.
    fn wait(&self, index: LogIndex) -> Result<()>;
}

/// A truncation that the writer has not done yet.
#[derive(Debug)]
struct OpenCut {
    epoch: u64,
    kept: Option<EntryId>,
}

#[derive(Debug, Default)]
struct Mark {
    flushed: Option<EntryId>,
    cuts: Vec<OpenCut>,
    ended: Option<StoreError>,
    waiting: usize,
}

/// The mark of one log.
#[derive(Debug, Default)]
pub(crate) struct Watermark {
    mark: Mutex<Mark>,
    changed: Condvar,
}

impl Watermark {
    pub(crate) fn new(flushed: Option<EntryId>) -> Self {
        Self { mark: Mutex::new(Mark { flushed, ..Mark::default() }), changed: Condvar::new() }
    }

    /// Entries up to `last`, appended after `epoch` truncations, are flushed. What a later truncation took away is not
    /// counted.
    pub(crate) fn raise(&self, last: EntryId, epoch: u64) {
        let mut mark = self.mark.lock();
        let kept = mark.cuts.iter().filter(|c| c.epoch > epoch).map(|c| c.kept).min_by_key(index_of);
        let last = match kept {
            Some(kept) if index_of(&kept) < index_of(&Some(last)) => kept,
            _ => Some(last),
        };
        if index_of(&last) > index_of(&mark.flushed) {
            mark.flushed = last;
        }
        if mark.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// The truncation number `epoch` keeps entries up to `kept`.
    pub(crate) fn lower(&self, kept: Option<EntryId>, epoch: u64) {
        let mut mark = self.mark.lock();
        mark.cuts.push(OpenCut { epoch, kept });
        if index_of(&mark.flushed) > index_of(&kept) {
            mark.flushed = kept;
        }
    }

    /// The writer has done truncation `epoch`: everything that it takes away was written before.
    pub(crate) fn cut_done(&self, epoch: u64) {
        self.mark.lock().cuts.retain(|c| c.epoch != epoch);
    }

    /// The log goes on behind `purged` without having entries up to it.
    pub(crate) fn skip_to(&self, purged: EntryId) {
        let mut mark = self.mark.lock();
        if index_of(&Some(purged)) > index_of(&mark.flushed) {
            mark.flushed = Some(purged);
        }
        self.changed.notify_all();
    }

    /// Nothing is flushed any more.
    pub(crate) fn end(&self, why: StoreError) {
        let mut mark = self.mark.lock();
        mark.ended.get_or_insert(why);
        self.changed.notify_all();
    }
}

impl FlushedWatermark for Watermark {
    fn flushed(&self) -> Option<EntryId> {
        self.mark.lock().flushed
    }

    fn wait(&self, index: LogIndex) -> Result<()> {
        let mut mark = self.mark.lock();
        loop {
            if mark.flushed.is_some_and(|f| f.index >= index) {
                return Ok(());
            }
            if let Some(why) = &mark.ended {
                return Err(why.clone());
            }
            mark.waiting += 1;
            self.changed.wait(&mut mark);
            mark.waiting -= 1;
        }
    }
}

fn index_of(id: &Option<EntryId>) -> Option<u64> {
    id.map(|id| id.index.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_a_truncation_took_away_is_never_counted() {
        let mark = Watermark::new(Some(EntryId::new(1, 5)));
        mark.lower(Some(EntryId::new(1, 3)), 1);
        assert_eq!(mark.flushed(), Some(EntryId::new(1, 3)));
        mark.raise(EntryId::new(1, 9), 0);
        assert_eq!(mark.flushed(), Some(EntryId::new(1, 3)), "entries 4 to 9 were queued before the cut");
        mark.cut_done(1);
        mark.raise(EntryId::new(2, 4), 1);
        assert_eq!(mark.flushed(), Some(EntryId::new(2, 4)));
    }

    #[test]
    fn a_waiter_is_woken_by_progress_and_by_the_end() {
        let mark = Arc::new(Watermark::new(None));
        let waiter = std::thread::spawn({
            let mark = Arc::clone(&mark);
            move || (mark.wait(LogIndex(2)).is_ok(), mark.wait(LogIndex(3)).is_err())
        });
        mark.raise(EntryId::new(1, 2), 0);
        mark.end(StoreError::Stopped);
        assert_eq!(waiter.join().expect("the waiter ends"), (true, true));
    }
}
