//! Wakes receives that wait for messages of a topic.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

/// Topics whose entry is kept although nobody waits, at most; beyond, entries without waiters are dropped.
const IDLE_TOPICS: usize = 1_024;

/// One bell per topic that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    bells: Mutex<FxHashMap<u32, Arc<Notify>>>,
}

impl Arrivals {
    /// The bell of a topic. It rings after messages of the topic became visible or due, and after other changes
    /// that a waiting receive has to look at.
    pub(crate) fn bell(&self, topic_id: u32) -> Arc<Notify> {
        let mut bells = self.bells.lock();
        if bells.len() >= IDLE_TOPICS && !bells.contains_key(&topic_id) {
            bells.retain(|_, bell| Arc::strong_count(bell) > 1);
        }
        Arc::clone(bells.entry(topic_id).or_default())
    }

    /// Tells the waiting receives of one topic to look again.
    pub(crate) fn ring(&self, topic_id: u32) {
        if let Some(bell) = self.bells.lock().get(&topic_id) {
            bell.notify_waiters();
        }
    }

    /// Tells all waiting receives to look again.
    pub(crate) fn ring_all(&self) {
        self.bells.lock().values().for_each(|bell| bell.notify_waiters());
    }

    pub(crate) fn wake(&self, topics: &BTreeSet<u32>) {
        if topics.is_empty() {
            return;
        }
        let bells = self.bells.lock();
        for bell in topics.iter().filter_map(|topic| bells.get(topic)) {
            bell.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_bells_are_dropped_and_held_ones_kept() {
        let arrivals = Arrivals::default();
        let held = arrivals.bell(7);
        for topic in 0..3 * IDLE_TOPICS as u32 {
            drop(arrivals.bell(topic));
        }
        assert!(arrivals.bells.lock().len() <= IDLE_TOPICS + 1);
        assert!(Arc::ptr_eq(&held, &arrivals.bell(7)), "a bell that somebody holds stays the same");
    }
}
