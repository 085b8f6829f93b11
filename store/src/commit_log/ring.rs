//! The newest entries in memory: what replication, apply and hot reads take, and the only place from which an entry is read
//! before it is flushed.
//!
//! What always holds: every entry that is not flushed is in the ring; entries are dense in index and rise in offset.

use std::collections::VecDeque;

use super::entry::PlacedEntry;
use super::frame::{FRAME_HEADER_LEN, frame_len};
use crate::{LogIndex, LogOffset};

/// What an entry takes beside its body.
const ENTRY_COST: usize = size_of::<PlacedEntry>();

/// The tail ring.
#[derive(Debug)]
pub(crate) struct Ring {
    limit: usize,
    bytes: usize,
    entries: VecDeque<PlacedEntry>,
}

impl Ring {
    pub(super) const fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, entries: VecDeque::new() }
    }

    pub(super) fn push(&mut self, entry: PlacedEntry) {
        self.bytes += cost(&entry);
        self.entries.push_back(entry);
    }

    /// Drops the oldest entries above the limit, as far as they are flushed.
    pub(crate) fn trim(&mut self, flushed: Option<LogIndex>) {
        let Some(flushed) = flushed else { return };
        while self.bytes > self.limit {
            match self.entries.front() {
                Some(oldest) if oldest.entry.index <= flushed => {
                    self.bytes -= cost(oldest);
                    self.entries.pop_front();
                }
                _ => break,
            }
        }
    }

    /// Drops every entry above `last`, all of them for None.
    pub(super) fn truncate(&mut self, last: Option<LogIndex>) {
        while self.entries.back().is_some_and(|e| last.is_none_or(|l| e.entry.index > l)) {
            if let Some(gone) = self.entries.pop_back() {
                self.bytes -= cost(&gone);
            }
        }
    }

    /// Index of the oldest entry.
    pub(super) fn first(&self) -> Option<LogIndex> {
        self.entries.front().map(|e| e.entry.index)
    }

    pub(super) fn get(&self, index: LogIndex) -> Option<&PlacedEntry> {
        let at = index.0.checked_sub(self.first()?.0)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Entries from `from` (which must be held) up to `to`, as many as fit into `max_bytes`, at least one.
    pub(super) fn range(&self, from: LogIndex, to: LogIndex, max_bytes: u64) -> Vec<PlacedEntry> {
        let Some(first) = self.first() else { return Vec::new() };
        let start = (from.0 - first.0) as usize;
        let mut bytes = 0;
        let mut found = Vec::new();
        for entry in self.entries.range(start..) {
            bytes += frame_len(entry.entry.body.len());
            if entry.entry.index >= to || (bytes > max_bytes && !found.is_empty()) {
                break;
            }
            found.push(entry.clone());
        }
        found
    }

    /// The entry whose body holds the byte at `offset`.
    pub(super) fn holding(&self, offset: LogOffset) -> Option<&PlacedEntry> {
        let at = self.entries.partition_point(|e| e.offset <= offset).checked_sub(1)?;
        let entry = &self.entries[at];
        let body = entry.offset.0 + FRAME_HEADER_LEN as u64;
        (offset.0 >= body && offset.0 <= body + entry.entry.body.len() as u64).then_some(entry)
    }
}

fn cost(entry: &PlacedEntry) -> usize {
    ENTRY_COST + entry.entry.body.len()
}
