//! The read side of one queue.

use std::collections::VecDeque;

use parking_lot::RwLock;

use super::QueueId;
use super::unit::Unit;

#[derive(Default)]
struct Published {
    min: u64,
    max: u64,
    /// The newest published units, ending at `max`.
    tail: VecDeque<Unit>,
}

/// What a read found without touching a file.
pub(super) enum Hot {
    /// All that was asked for and is published.
    Units(Vec<Unit>),
    /// These positions are published, but not all of them are still in memory; the files hold them all.
    Cold { from: u64, to: u64 },
    /// The position lies below the queue's first unit.
    Below { min: u64 },
}

/// Published range and hot tail of one queue. Readers never wait for a disk here: the writer takes the lock only to
/// add what it has already written.
pub(super) struct Queue {
    pub id: QueueId,
    published: RwLock<Published>,
}

impl Queue {
    /// A queue of which the units `min..max` lie in files.
    pub fn new(id: QueueId, min: u64, max: u64) -> Self {
        Self { id, published: RwLock::new(Published { min, max, tail: VecDeque::new() }) }
    }

    /// First and next position.
    pub fn range(&self) -> (u64, u64) {
        let published = self.published.read();
        (published.min, published.max)
    }

    /// Looks for at most `max` units from `from` on.
    pub fn read_hot(&self, from: u64, max: usize) -> Hot {
        let published = self.published.read();
        if from < published.min {
            return Hot::Below { min: published.min };
        }
        let to = published.max.min(from.saturating_add(max as u64));
        if from >= to {
            return Hot::Units(Vec::new());
        }
        let tail_start = published.max - published.tail.len() as u64;
        if from < tail_start {
            return Hot::Cold { from, to };
        }
        let start = (from - tail_start) as usize;
        let end = (to - tail_start) as usize;
        Hot::Units(published.tail.range(start..end).copied().collect())
    }

    /// Makes units visible. They are already in the file.
    pub fn publish(&self, units: impl Iterator<Item = Unit>) {
        let mut published = self.published.write();
        let before = published.tail.len();
        published.tail.extend(units);
        published.max += (published.tail.len() - before) as u64;
    }

    /// Raises the first position; units below it are gone for readers.
    pub fn raise(&self, min: u64) {
        let mut published = self.published.write();
        published.min = published.min.max(min.min(published.max));
    }

    /// Forgets the `count` oldest units of the hot tail; they are read from the file from now on.
    pub fn cool(&self, count: usize) {
        let mut published = self.published.write();
        let count = count.min(published.tail.len());
        published.tail.drain(..count);
        if published.tail.is_empty() {
            published.tail.shrink_to_fit();
        }
    }
}
