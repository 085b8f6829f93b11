//! Sequences of one producer in one broker group: dense, and at most 1,024 of them between the lowest outstanding
//! one (the floor) and the next.
//!
//! ```text
//!  settled ... settled | floor: outstanding | settled | outstanding | next
//!                      |<------------- at most 1,024 -------------->|
//! ```
//!
//! The server keeps the results from the floor up, so a sequence that may still be repeated must hold it back.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Sequences from the floor up that the server keeps results of.
pub(crate) const WINDOW: u64 = 1_024;

#[derive(Debug)]
pub(crate) struct Window {
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Debug)]
struct State {
    floor: u64,
    /// For each sequence from the floor up: settled.
    settled: VecDeque<bool>,
}

impl Default for Window {
    fn default() -> Self {
        Self { state: Mutex::new(State { floor: 1, settled: VecDeque::new() }), moved: Notify::new() }
    }
}

impl Window {
    /// Takes the next sequences, at least one and at most `wanted`: the first one and how many.
    pub(crate) async fn take(&self, wanted: usize) -> (u64, usize) {
        loop {
            let moved = self.moved.notified();
            if let Some(taken) = self.try_take(wanted) {
                return taken;
            }
            moved.await;
        }
    }

    fn try_take(&self, wanted: usize) -> Option<(u64, usize)> {
        let mut state = self.state.lock();
        let used = state.settled.len();
        let count = wanted.min((WINDOW as usize).saturating_sub(used));
        if count == 0 {
            return None;
        }
        let first = state.floor + used as u64;
        state.settled.extend(std::iter::repeat_n(false, count));
        Some((first, count))
    }

    /// The outcome of a sequence is final: it will not be sent again.
    pub(crate) fn settle(&self, sequence: u64) {
        let mut state = self.state.lock();
        let Some(place) = sequence.checked_sub(state.floor).and_then(|place| usize::try_from(place).ok())
        else {
            return;
        };
        if let Some(settled) = state.settled.get_mut(place) {
            *settled = true;
        }
        let before = state.floor;
        while state.settled.front() == Some(&true) {
            state.settled.pop_front();
            state.floor += 1;
        }
        let moved = state.floor != before;
        drop(state);
        if moved {
            self.moved.notify_waiters();
        }
    }

    /// The lowest sequence that is still outstanding; the next one when there is none.
    pub(crate) fn floor(&self) -> u64 {
        self.state.lock().floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sequences_are_dense_and_the_floor_is_the_lowest_outstanding() {
        let window = Window::default();
        assert_eq!(window.take(3).await, (1, 3));
        assert_eq!(window.take(2).await, (4, 2));
        window.settle(2);
        assert_eq!(window.floor(), 1);
        window.settle(1);
        assert_eq!(window.floor(), 3);
        window.settle(4);
        window.settle(5);
        assert_eq!(window.floor(), 3);
        window.settle(3);
        assert_eq!(window.floor(), 6);
        assert_eq!(window.take(1).await, (6, 1));
    }

    #[tokio::test]
    async fn no_sequence_is_1024_or_more_above_the_floor() {
        let window = Window::default();
        assert_eq!(window.take(1_000).await, (1, 1_000));
        assert_eq!(window.take(1_000).await, (1_001, 24));
        assert_eq!(window.try_take(1), None);
        window.settle(2);
        assert_eq!(window.try_take(1), None, "1 is still outstanding");
        window.settle(1);
        assert_eq!(window.try_take(10), Some((1_025, 2)));
    }

    #[tokio::test]
    async fn a_full_window_opens_for_those_who_wait() {
        let window = Window::default();
        assert_eq!(window.take(1_024).await, (1, 1_024));
        let waiting = window.take(1);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        window.settle(1);
        assert_eq!(waiting.await, (1_025, 1));
    }

    #[test]
    fn settling_twice_or_out_of_range_changes_nothing() {
        let window = Window::default();
        assert_eq!(window.try_take(2), Some((1, 2)));
        window.settle(9);
        window.settle(1);
        window.settle(1);
        assert_eq!(window.floor(), 2);
    }
}
