//! What becomes of applied messages: units in the ConsumeQueues, then a word to the receives that wait.

mod arrival;

use std::collections::BTreeSet;
use std::sync::Arc;

use mq_store::{QueueId, QueueOffset, QueueTable, StoreError, Unit};

pub(crate) use arrival::Arrivals;

/// Carries out what apply decided about queues. Only the apply thread has one.
#[derive(Debug)]
pub(crate) struct Dispatch {
    queues: QueueTable,
    arrivals: Arc<Arrivals>,
}

impl Dispatch {
    pub(crate) fn new(queues: QueueTable, arrivals: Arc<Arrivals>) -> Self {
        Self { queues, arrivals }
    }

    /// Adds units in log order; consumers do not see them yet.
    pub(crate) fn append(&self, units: &[(QueueId, QueueOffset, Unit)]) -> Result<(), StoreError> {
        units.iter().try_for_each(|(queue, at, unit)| self.queues.append(*queue, *at, *unit))
    }

    /// Shows what was appended and takes away the queues of topics that ended.
    pub(crate) fn publish(&self, removed: &[(u32, u32)]) -> Result<(), StoreError> {
        self.queues.publish()?;
        removed.iter().try_for_each(|(topic_id, incarnation)| self.queues.remove(*topic_id, *incarnation))
    }

    /// Tells the waiting receives of these topics to look again.
    pub(crate) fn wake(&self, topics: &BTreeSet<u32>) {
        self.arrivals.wake(topics);
    }
}
