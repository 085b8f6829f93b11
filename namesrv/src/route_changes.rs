//! Which routes changed lately, so that brokers do not ask for all of them again.
//!
//! Made from what apply changed, bounded, and begun anew with each start: whoever asks for more than is known here gets
//! everything.

use std::collections::{BTreeMap, BTreeSet};

use crate::route_table::{Change, topic_key};

/// Most changes that are kept.
const CHANGES_MAX: usize = 100_000;

/// The topics that changed, by the log index of the change.
#[derive(Clone, Debug, Default)]
pub struct RouteChanges {
    /// Everything behind this index is known.
    floor: u64,
    /// Index of the newest change.
    newest: u64,
    changed: BTreeMap<u64, BTreeSet<String>>,
    count: usize,
}

impl RouteChanges {
    /// Nothing is known of what was before `index`.
    #[must_use]
    pub fn beginning_at(index: u64) -> Self {
        Self { floor: index, newest: index, ..Self::default() }
    }

    /// Index of the newest change of any route.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Takes over what the entry at `index` changed. A change of a group touches the routes of all its topics.
    pub fn note(&mut self, index: u64, changes: &[Change], leads_changed: bool) {
        let key = |change: &Change| match change {
            Change::Topic { topic, .. } => Some(topic_key(&topic.namespace, &topic.name)),
            Change::TopicGone { key, .. } => Some(key.clone()),
            Change::Group(_) | Change::Staged { .. } | Change::StagedGone { .. } => None,
        };
        let keys: BTreeSet<String> = changes.iter().filter_map(key).collect();
        if leads_changed || self.count + keys.len() > CHANGES_MAX {
            *self = Self::beginning_at(index);
        } else if !keys.is_empty() {
            self.newest = index;
            self.count += keys.len();
            let known = self.changed.entry(index).or_default();
            let before = known.len();
            known.extend(keys.iter().cloned());
            self.count -= before + keys.len() - known.len();
        }
    }

    /// Keys of the topics whose routes changed behind `index`, in their order; `None`: all may have.
    #[must_use]
    pub fn behind(&self, index: u64) -> Option<BTreeSet<&str>> {
        let known = index >= self.floor;
        known.then(|| {
            self.changed.range(index + 1..).flat_map(|(_, keys)| keys.iter().map(String::as_str)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use mq_protocol::cluster::NameTopic;

    use super::*;

    fn topic(name: &str) -> Change {
        Change::Topic { group: "g".into(), topic: NameTopic { name: name.into(), ..NameTopic::default() } }
    }

    fn behind(changes: &RouteChanges, index: u64) -> Option<Vec<String>> {
        let names =
            |keys: BTreeSet<&str>| keys.iter().map(|key| key.trim_start_matches('\0').to_owned()).collect();
        changes.behind(index).map(names)
    }

    #[test]
    fn what_changed_is_told_and_what_is_not_known_is_everything() {
        let mut changes = RouteChanges::beginning_at(10);
        assert_eq!(behind(&changes, 9), None);
        assert_eq!(behind(&changes, 10), Some(vec![]));
        changes.note(12, &[topic("b"), topic("a")], false);
        changes.note(12, &[topic("b")], false);
        changes.note(15, &[Change::TopicGone { group: "g".into(), key: "\0c".into() }], false);
        assert_eq!(behind(&changes, 10), Some(vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!(behind(&changes, 12), Some(vec!["c".into()]));
        assert_eq!((behind(&changes, 15), changes.newest(), changes.count), (Some(vec![]), 15, 3));
        changes.note(20, &[topic("d")], true);
        assert_eq!((behind(&changes, 19), behind(&changes, 20)), (None, Some(vec![])));
        assert_eq!(changes.newest(), 20);
    }

    #[test]
    fn it_stays_bounded() {
        let mut changes = RouteChanges::beginning_at(0);
        for index in 1..=CHANGES_MAX as u64 + 5 {
            changes.note(index, &[topic(&index.to_string())], false);
        }
        assert!(changes.count <= CHANGES_MAX);
        assert_eq!(behind(&changes, 1), None);
    }
}
