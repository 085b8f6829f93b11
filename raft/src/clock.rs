//! The two times that a leader writes into frames (D17).
//!
//! *Store time*: the proposer's wall clock, never below that of a frame already in the log.
//! *Lease time*: 0 at the group's birth; advances by the leader's monotonic clock. A node keeps the greatest value
//! that it received together with its own monotonic time of the receipt; what it says is that value plus the time
//! since. So a new leader goes on where the old one was, and only time that no running member saw is a gap.

use std::sync::Arc;

use mq_runtime::clock::Clock;
use parking_lot::Mutex;

/// Times of one group on one node.
#[derive(Clone)]
pub(crate) struct GroupClock {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<Times>>,
}

#[derive(Debug, Default)]
struct Times {
    /// Greatest lease time received, and when by the monotonic clock.
    lease: u64,
    lease_at: u64,
    /// This node's own clock is the group's at the moment.
    leading: bool,
    /// Greatest times of any frame appended or assigned here.
    frame_store: u64,
    frame_lease: u64,
}

impl GroupClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let lease_at = clock.monotonic_ms();
        Self { clock, state: Arc::new(Mutex::new(Times { lease_at, ..Times::default() })) }
    }

    /// Lease time as this node knows it now.
    pub(crate) fn lease_now(&self) -> u64 {
        let now = self.clock.monotonic_ms();
        self.state.lock().lease_now(now)
    }

    /// A voter said that it is `lease` now: never sets this node's clock back, which may have gone on longer.
    pub(crate) fn observe_voter(&self, lease: u64) {
        let now = self.clock.monotonic_ms();
        self.state.lock().raise(lease, now);
    }

    /// The leader of the term, accepted as such, said that it is `lease` now.
    pub(crate) fn observe_lease(&self, lease: u64) {
        let now = self.clock.monotonic_ms();
        let mut times = self.state.lock();
        if times.leading {
            times.raise(lease, now);
        } else if lease > times.lease {
            (times.lease, times.lease_at) = (lease, now);
        }
    }

    /// This node became, or ceased to be, the leader.
    pub(crate) fn set_leading(&self, leading: bool) {
        self.state.lock().leading = leading;
    }

    /// A frame with these times is in the log.
    pub(crate) fn observe_frame(&self, store_time: u64, lease_time: u64) {
        let now = self.clock.monotonic_ms();
        let mut times = self.state.lock();
        times.frame_store = times.frame_store.max(store_time);
        times.frame_lease = times.frame_lease.max(lease_time);
        times.raise(lease_time, now);
    }

    /// (store time, lease time) of the next frame of this leader: neither ever falls along the log.
    pub(crate) fn next_frame(&self) -> (u64, u64) {
        let (wall, now) = (self.clock.wall_ms(), self.clock.monotonic_ms());
        let mut times = self.state.lock();
        times.frame_store = times.frame_store.max(wall);
        times.frame_lease = times.frame_lease.max(times.lease_now(now));
        (times.frame_store, times.frame_lease)
    }
}

impl Times {
    fn lease_now(&self, now: u64) -> u64 {
        self.lease + now.saturating_sub(self.lease_at)
    }

    /// Never slows the clock down: the leader sees its own frames later than it made them.
    fn raise(&mut self, lease: u64, now: u64) {
        if lease > self.lease_now(now) {
            (self.lease, self.lease_at) = (lease, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_runtime::clock::ManualClock;

    use super::*;

    fn clock() -> (Arc<ManualClock>, GroupClock) {
        let manual = Arc::new(ManualClock::new(1_000));
        (manual.clone(), GroupClock::new(manual))
    }

    #[test]
    fn a_new_leader_goes_on_from_what_it_received() {
        let (manual, clock) = clock();
        clock.observe_lease(5_000);
        manual.advance(40);
        clock.set_leading(true);
        assert_eq!(clock.next_frame().1, 5_040);
        manual.advance(10);
        assert_eq!(clock.next_frame().1, 5_050);
    }

    #[test]
    fn a_voter_that_was_away_does_not_set_the_clock_back() {
        let (manual, clock) = clock();
        clock.observe_lease(5_000);
        manual.advance(600_000);
        clock.observe_voter(5_002);
        assert_eq!(clock.lease_now(), 605_000);
        clock.observe_voter(700_000);
        assert_eq!(clock.lease_now(), 700_000);
    }

    #[test]
    fn own_frames_do_not_slow_the_leader_down() {
        let (manual, clock) = clock();
        clock.set_leading(true);
        let (store, lease) = clock.next_frame();
        manual.advance(100);
        clock.observe_frame(store, lease);
        assert_eq!(clock.lease_now(), lease + 100);
    }

    #[test]
    fn store_time_never_falls_when_the_wall_clock_does() {
        let (manual, clock) = clock();
        let first = clock.next_frame().0;
        manual.set_wall(first - 500);
        assert_eq!(clock.next_frame().0, first);
        clock.observe_frame(first + 9_000, 0);
        assert_eq!(clock.next_frame().0, first + 9_000);
    }
}
