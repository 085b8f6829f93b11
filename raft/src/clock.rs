//! The three times of a group (D17): two that a leader writes into frames, and the due time.
//!
//! *Store time*: the proposer's wall clock, never below that of a frame already in the log.
//! *Lease time*: 0 at the group's birth; advances by the leader's monotonic clock. A node keeps the greatest value
//! that it received together with its own monotonic time of the receipt; what it says is that value plus the time
//! since. So a new leader goes on where the old one was, and only time that no running member saw is a gap.
//! *Due time*: for absolute times (delays, retention). Every answer to an append or heartbeat carries the answering
//! member's wall clock; the leader carries each on by its monotonic clock and takes the lower median of the voters'. So
//! one clock that steps, in either direction, moves nothing, and a tie is decided for *late*, never for *early*. Nothing
//! moves before a majority of the voters was heard in this leadership. Requests carry the greatest due time so far:
//! it does not fall over a change of leaders either.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mq_runtime::clock::Clock;
use parking_lot::Mutex;

use crate::config::NodeId;

/// A follower's clock is set back by at most one part in this many: what two quartzes may differ by, and never what a
/// slow link took.
const SLEW: u64 = 1_000;

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
    /// Greatest due time told here or received.
    due: u64,
    /// Whose wall clocks count, and which of them is this node.
    voters: BTreeSet<NodeId>,
    me: NodeId,
    /// Wall clocks of other members, and when they were received by the monotonic clock. Only while leading.
    walls: BTreeMap<NodeId, (u64, u64)>,
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

    /// The leader of the term, accepted as such, said that it is `lease` now, and told `due`.
    pub(crate) fn observe_leader(&self, (lease, due): (u64, u64)) {
        let now = self.clock.monotonic_ms();
        let mut times = self.state.lock();
        times.due = times.due.max(due);
        if times.leading {
            times.raise(lease, now);
        } else {
            times.follow(lease, now);
        }
    }

    /// (lease time, due time) for a request to a member.
    pub(crate) fn times_to_send(&self) -> (u64, u64) {
        let due = self.due_now();
        (self.lease_now(), due)
    }

    /// This node's wall clock, for an answer.
    pub(crate) fn wall_now(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Member `from` answered that its wall clock shows `wall`. It was on the way since: late, never early.
    pub(crate) fn observe_wall(&self, from: NodeId, wall: u64) {
        let now = self.clock.monotonic_ms();
        let mut times = self.state.lock();
        if times.leading && wall > 0 {
            times.walls.insert(from, (wall, now));
        }
    }

    /// Whose wall clocks count.
    pub(crate) fn set_voters(&self, voters: BTreeSet<NodeId>, me: NodeId) {
        let mut times = self.state.lock();
        times.walls.retain(|id, _| voters.contains(id));
        (times.voters, times.me) = (voters, me);
    }

    /// The due time, which never falls.
    pub(crate) fn due_now(&self) -> u64 {
        let (wall, now) = (self.clock.wall_ms(), self.clock.monotonic_ms());
        let mut times = self.state.lock();
        if let Some(median) = times.median(wall, now) {
            times.due = times.due.max(median);
        }
        times.due
    }

    /// This node became, or ceased to be, the leader.
    pub(crate) fn set_leading(&self, leading: bool) {
        let mut times = self.state.lock();
        if times.leading != leading {
            times.leading = leading;
            times.walls.clear();
        }
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

    /// The leader's lease time here. A request that was long on the way says an old one, which is not followed; a
    /// quartz that is faster than the leader's is corrected little by little.
    fn follow(&mut self, lease: u64, now: u64) {
        let slack = now.saturating_sub(self.lease_at) / SLEW;
        if lease >= self.lease_now(now).saturating_sub(slack) {
            (self.lease, self.lease_at) = (lease, now);
        }
    }

    /// Lower median of the voters' wall clocks, `wall` being this node's; None until a majority is known.
    fn median(&self, wall: u64, now: u64) -> Option<u64> {
        if !self.leading {
            return None;
        }
        // A difference of two times in whole ms may be 1 ms too long, which would be early.
        let carried =
            |(wall, at): &(u64, u64)| wall.saturating_add(now.saturating_sub(*at).saturating_sub(1));
        let others = self.walls.iter().filter(|(id, _)| **id != self.me && self.voters.contains(id));
        let mut walls: Vec<u64> = others.map(|(_, reading)| carried(reading)).collect();
        if self.voters.contains(&self.me) {
            walls.push(wall);
        }
        if walls.len() * 2 <= self.voters.len() {
            return None;
        }
        walls.sort_unstable();
        walls.get((walls.len() - 1) / 2).copied()
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
        clock.observe_leader((5_000, 0));
        manual.advance(40);
        clock.set_leading(true);
        assert_eq!(clock.next_frame().1, 5_040);
        manual.advance(10);
        assert_eq!(clock.next_frame().1, 5_050);
    }

    #[test]
    fn a_voter_that_was_away_does_not_set_the_clock_back() {
        let (manual, clock) = clock();
        clock.observe_leader((5_000, 0));
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

    /// RB-10, RB-137: durations go on over a change of leaders, whatever the wall clocks and the links did.
    #[test]
    fn lease_time_goes_on_over_leader_changes() {
        let (old, new) = (Arc::new(ManualClock::new(50_000_000)), Arc::new(ManualClock::new(50_000_000)));
        let leader = GroupClock::new(old.clone());
        let follower = GroupClock::new(new.clone());
        leader.set_leading(true);
        let mut stalled = None;
        for step in 0..1_000_u64 {
            old.advance(50);
            new.advance(50);
            old.set_wall(if step % 2 == 0 { 53_600_000 } else { 46_400_000 });
            let sent = leader.times_to_send();
            stalled = stalled.or(Some(sent));
            follower.observe_leader(sent);
        }
        assert_eq!(leader.lease_now(), 50_000);
        assert_eq!(follower.lease_now(), 50_000);
        // A request that was 50 s on the way does not set the clock back.
        follower.observe_leader(stalled.expect("sent"));
        assert_eq!(follower.lease_now(), 50_000);
        // The leader dies; the follower is elected 700 ms later, with its wall clock an hour back.
        new.advance(700);
        new.set_wall(1);
        follower.set_leading(true);
        assert_eq!(follower.next_frame().1, 50_700);
        new.advance(300);
        assert_eq!(follower.next_frame().1, 51_000);
    }

    #[test]
    fn a_follower_with_a_fast_quartz_is_corrected_little_by_little() {
        let (manual, clock) = clock();
        let mut leader = 0;
        for _ in 0..100_000 {
            leader += 50_000;
            // 500 ppm fast.
            manual.advance(50);
            if leader % 2_000_000 == 0 {
                manual.advance(1);
            }
            clock.observe_leader((leader / 1_000, 0));
        }
        let ahead = clock.lease_now() - leader / 1_000;
        assert!(ahead < 20, "{ahead} ms ahead after 5,000 s");
    }

    fn leading(voters: u64) -> (Arc<ManualClock>, GroupClock) {
        let manual = Arc::new(ManualClock::new(100_000_000));
        let clock = GroupClock::new(manual.clone());
        clock.set_voters((1..=voters).collect(), 1);
        clock.set_leading(true);
        (manual, clock)
    }

    const HOUR: u64 = 3_600_000;

    /// RB-137: one stepping clock, the leader's or another one's, moves nothing early.
    #[test]
    fn due_time_follows_the_majority_when_one_clock_jumps_or_strobes() {
        for jumping in 1..=3_u64 {
            let (manual, clock) = leading(3);
            let mut last = 0;
            for step in 0..2_000_u64 {
                manual.advance(50);
                let right = 100_000_000 + (step + 1) * 50;
                let wrong = if step % 2 == 0 { right + HOUR } else { right - HOUR };
                let wall = |id| if id == jumping { wrong } else { right };
                manual.set_wall(wall(1));
                clock.observe_wall(2, wall(2));
                clock.observe_wall(3, wall(3));
                let due = clock.due_now();
                assert!(due <= right, "voter {jumping} jumps: {} ms early", due - right);
                assert!(due >= last, "it fell");
                assert!(right - due <= 50, "voter {jumping} jumps: {} ms late", right - due);
                last = due;
            }
        }
    }

    #[test]
    fn due_time_stands_still_until_a_majority_is_heard_and_is_carried_on_after_it() {
        let (manual, clock) = leading(5);
        clock.observe_leader((0, 90_000_000));
        clock.observe_wall(2, 100_000_000);
        assert_eq!(clock.due_now(), 90_000_000, "2 of 5");
        clock.observe_wall(7, 100_000_000);
        assert_eq!(clock.due_now(), 90_000_000, "a learner does not count");
        clock.observe_wall(3, 100_000_000);
        assert_eq!(clock.due_now(), 100_000_000);
        manual.advance(10_000);
        manual.set_wall(1);
        assert_eq!(clock.due_now(), 100_009_999, "carried on without new answers");
        clock.set_leading(false);
        clock.set_leading(true);
        manual.advance(10_000);
        assert_eq!(clock.due_now(), 100_009_999, "what was heard in another leadership does not count");
    }

    #[test]
    fn due_time_does_not_fall_when_the_leader_changes() {
        let (_, old) = leading(3);
        old.observe_wall(2, 100_000_000);
        let told = old.times_to_send();
        let (manual, new) = leading(3);
        new.set_leading(false);
        new.observe_leader(told);
        assert_eq!(new.due_now(), 100_000_000, "a follower tells what it received");
        new.set_leading(true);
        manual.set_wall(99_000_000);
        new.observe_wall(2, 99_500_000);
        assert_eq!(new.due_now(), 100_000_000);
        manual.advance(2_000_000);
        assert_eq!(new.due_now(), 101_000_000, "of two clocks the later one waits for the earlier one");
    }
}
