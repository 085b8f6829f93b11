//! Which entries are certainly in the log's ring: those may be read on an async worker, all others may have to wait
//! for a disk.

use std::collections::VecDeque;

use mq_store::LogIndex;

/// Sizes of the newest entries, up to a number of bytes well below that of the ring.
#[derive(Debug)]
pub(crate) struct HotWindow {
    entries: VecDeque<(LogIndex, usize)>,
    bytes: usize,
    limit: usize,
}

/// A frame without its body, and what it costs to keep.
const OVERHEAD: usize = 128;

impl HotWindow {
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, limit }
    }

    pub(crate) fn extend(&mut self, entries: &[(LogIndex, usize)]) {
        for (index, body) in entries {
            self.entries.push_back((*index, body + OVERHEAD));
            self.bytes += body + OVERHEAD;
        }
        while self.bytes > self.limit {
            let Some((_, size)) = self.entries.pop_front() else { break };
            self.bytes -= size;
        }
    }

    /// Entries above `last` are gone.
    pub(crate) fn cut(&mut self, last: Option<LogIndex>) {
        while let Some((index, size)) = self.entries.back().copied() {
            if last.is_some_and(|last| index <= last) {
                break;
            }
            self.entries.pop_back();
            self.bytes -= size;
        }
    }

    pub(crate) fn holds(&self, from: LogIndex) -> bool {
        self.entries.front().is_some_and(|(first, _)| from >= *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_follows_the_newest_bytes_and_a_cut() {
        let mut window = HotWindow::new(4 * OVERHEAD);
        window.extend(&[1, 2, 3, 4, 5].map(|i| (LogIndex(i), 0)));
        assert!(window.holds(LogIndex(2)) && !window.holds(LogIndex(1)));
        window.cut(Some(LogIndex(1)));
        assert!(!window.holds(LogIndex(2)));
    }
}
