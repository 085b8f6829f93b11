//! What a leader has picked and proposed, but not seen applied yet.
//!
//! What always holds, per subscription group and queue, on the leader of a term:
//! * A position is under way in at most one proposal: two receives never ask for the same message.
//! * New positions form a chain: each proposal expects the cursor where the one before it ends. When one fails, those
//!   behind it fail in apply, too; nothing new is picked until the last of them is done.
//! * A reservation ends when its entry is applied, when it was refused before the log, or with the term. An entry
//!   whose outcome is unknown keeps it: the entry may still be applied.

use rustc_hash::FxHashSet;

use mq_store::Term;

/// Reservations in one queue.
#[derive(Debug, Default)]
pub(crate) struct QueueReservation {
    /// Where the last proposal under way ends.
    chain_end: u64,
    /// Proposals under way with new positions.
    chained: u32,
    /// One of the chain failed.
    broken: bool,
    /// New positions that the chain hands out.
    taken: u64,
    /// Retries under way.
    again: FxHashSet<u64>,
}

impl QueueReservation {
    /// Where new positions may be picked when the applied cursor is `cursor`; `None` while a broken chain ends.
    pub(crate) fn start(&self, cursor: u64) -> Option<u64> {
        match self.chained {
            0 => Some(cursor),
            _ => (!self.broken).then_some(self.chain_end),
        }
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    pub(crate) fn holds(&self, position: u64) -> bool {
        self.again.contains(&position)
    }

    pub(crate) fn retries(&self) -> usize {
        self.again.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.chained == 0 && self.again.is_empty()
    }

    pub(crate) fn reserve(&mut self, reserved: &Reserved) {
        if let Some(end) = reserved.chain_end {
            self.chain_end = end;
            self.chained += 1;
            self.taken += reserved.taken;
        }
        self.again.extend(&reserved.again);
    }

    pub(crate) fn release(&mut self, reserved: &Reserved, chain_moved: bool) {
        if reserved.chain_end.is_some() {
            self.chained = self.chained.saturating_sub(1);
            self.taken = self.taken.saturating_sub(reserved.taken);
            self.broken = (self.broken || !chain_moved) && self.chained > 0;
        }
        for position in &reserved.again {
            self.again.remove(position);
        }
    }
}

/// What one proposal reserves in one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// Where its new positions end; `None` without new positions.
    pub chain_end: Option<u64>,
    /// How many of them it hands out.
    pub taken: u64,
    /// Its retries.
    pub again: Vec<u64>,
}

impl Reserved {
    /// Whether its end may leave something to pick that was not to be had before.
    pub(crate) fn gives_back(&self, chain_moved: bool) -> bool {
        !chain_moved || self.taken == 0 || !self.again.is_empty()
    }
}

/// Reservations of one subscription group in one topic.
#[derive(Debug, Default)]
pub(crate) struct GroupTopic {
    pub term: Term,
    /// Where the next receive begins to look among the queues.
    pub turn: u32,
    pub queues: Vec<QueueReservation>,
}

impl GroupTopic {
    /// Reservations of another term are over.
    pub(crate) fn enter(&mut self, term: Term, queues: u32) {
        if self.term != term {
            self.term = term;
            self.queues.clear();
        }
        if self.queues.len() < queues as usize {
            self.queues.resize_with(queues as usize, QueueReservation::default);
        }
    }

    /// Ends a reservation of `term`; `chain_moved`: apply accepted its new positions.
    pub(crate) fn release(&mut self, term: Term, queue: u32, reserved: &Reserved, chain_moved: bool) {
        if self.term == term
            && let Some(queue) = self.queues.get_mut(queue as usize)
        {
            queue.release(reserved, chain_moved);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queues.iter().all(QueueReservation::is_idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(end: u64, taken: u64) -> Reserved {
        Reserved { chain_end: Some(end), taken, again: Vec::new() }
    }

    #[test]
    fn receives_pipeline_behind_each_other() {
        let mut queue = QueueReservation::default();
        assert_eq!(queue.start(10), Some(10));
        queue.reserve(&chain(15, 5));
        assert_eq!(queue.start(10), Some(15), "the next one begins where the first ends");
        queue.reserve(&chain(20, 5));
        queue.release(&chain(15, 5), true);
        assert_eq!((queue.start(15), queue.taken()), (Some(20), 5));
        queue.release(&chain(20, 5), true);
        assert_eq!((queue.start(20), queue.taken()), (Some(20), 0));
    }

    #[test]
    fn broken_chain_starts_again_when_its_last_proposal_is_done() {
        let mut queue = QueueReservation::default();
        queue.reserve(&chain(15, 5));
        queue.reserve(&chain(20, 5));
        queue.release(&chain(15, 5), false);
        assert_eq!(queue.start(10), None, "what was picked behind it will be rejected");
        queue.release(&chain(20, 5), false);
        assert_eq!(queue.start(10), Some(10));
    }

    #[test]
    fn new_term_ends_all_reservations() {
        let mut topic = GroupTopic::default();
        topic.enter(Term(1), 1);
        topic.queues[0].reserve(&Reserved { again: vec![3], ..chain(5, 1) });
        topic.enter(Term(2), 2);
        assert!(topic.is_idle());
        topic.queues[0].reserve(&chain(9, 1));
        topic.release(Term(1), 0, &chain(5, 1), false);
        assert_eq!(topic.queues[0].start(0), Some(9), "a late end of the old term changes nothing");
    }

    #[test]
    fn only_a_chain_that_moved_and_handed_out_gives_nothing_back() {
        assert!(!chain(5, 1).gives_back(true));
        assert!(chain(5, 1).gives_back(false), "refused");
        assert!(chain(5, 0).gives_back(true), "an ordered queue is free again");
        assert!(Reserved { again: vec![1], ..chain(5, 1) }.gives_back(true), "retries may have been refused");
    }

    #[test]
    fn retry_is_held_until_released() {
        let mut queue = QueueReservation::default();
        let reserved = Reserved { again: vec![4, 7], ..Reserved::default() };
        queue.reserve(&reserved);
        assert!(queue.holds(4) && queue.holds(7) && !queue.holds(5) && !queue.is_idle());
        queue.release(&reserved, false);
        assert!(queue.is_idle());
    }
}
