//! Gives reservations back, whatever becomes of the call that made them.

use std::sync::Arc;

use mq_store::Term;

use super::picker::{Picker, QueuePick};
use crate::state::keys::GroupRef;

/// Reservations of one pick. Dropped, it gives back what was not ended otherwise: nothing of it was proposed then.
#[derive(Debug)]
pub(crate) struct Hold {
    picker: Arc<Picker>,
    group: GroupRef,
    term: Term,
    pub picks: Vec<QueuePick>,
}

impl Hold {
    pub(crate) fn new(picker: Arc<Picker>, group: GroupRef, term: Term, picks: Vec<QueuePick>) -> Self {
        Self { picker, group, term, picks }
    }

    pub(crate) fn term(&self) -> Term {
        self.term
    }

    /// The entry is applied: `moved` says per pick whether apply accepted its new positions.
    pub(crate) fn applied(mut self, moved: impl Fn(usize) -> bool) -> Vec<QueuePick> {
        let picks = std::mem::take(&mut self.picks);
        for (number, pick) in picks.iter().enumerate() {
            self.picker.release(self.group, self.term, pick, moved(number));
        }
        picks
    }

    /// The entry may still be applied: only the end of the term gives the reservations back.
    pub(crate) fn unknown(mut self) {
        self.picks.clear();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        for pick in &self.picks {
            self.picker.release(self.group, self.term, pick, false);
        }
    }
}
