//! Topics and subscription groups as the rest of the broker sees them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// One life of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Tenant prefix; empty for none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Given once for each name, counted up from 1.
    pub id: u32,
    /// Counts the creations of the name from 1.
    pub incarnation: u32,
    /// Queues 0 … n - 1.
    pub queues: u32,
    /// RocketMQ's permission bits: 4 = read, 2 = write.
    pub permission: u32,
    /// `apache.rocketmq.v2.MessageType`.
    pub message_type: u32,
}

/// Permission bit of a topic that may be read.
pub const READ: u32 = 4;
/// Permission bit of a topic that may be written.
pub const WRITE: u32 = 2;

impl Topic {
    /// Whether it takes messages.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.permission & WRITE != 0
    }

    /// Whether it hands out messages.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.permission & READ != 0
    }
}

/// One life of a subscription group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionGroup {
    /// Tenant prefix; empty for none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Given once for each name, counted up from 1.
    pub id: u32,
    /// Counts the creations of the name from 1.
    pub incarnation: u32,
    /// Whether messages of a queue are consumed in order.
    pub ordered: bool,
    /// Deliveries of a message, with the first.
    pub max_attempts: u32,
    /// Pauses between deliveries; empty = the default list.
    pub retry_pauses_ms: Vec<u64>,
    /// Whether the group may consume.
    pub consume_enabled: bool,
}

/// Living topics and groups by namespace and name.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    topics: BTreeMap<String, Arc<Topic>>,
    topics_by_id: BTreeMap<u32, Arc<Topic>>,
    groups: BTreeMap<String, Arc<SubscriptionGroup>>,
    groups_by_id: BTreeMap<u32, Arc<SubscriptionGroup>>,
    /// Log index of the last change of a topic; at first, of what was applied when the state was opened.
    topics_index: u64,
    changes: TopicChanges,
}

/// Changes of topics that are remembered.
const CHANGES_MAX: usize = 20_000;

/// Which topics changed lately, by log index: so that telling of a change costs what the change costs, however many
/// topics there are. Begun anew with each start.
#[derive(Debug, Default)]
struct TopicChanges {
    /// Everything behind this index is known.
    floor: u64,
    changed: VecDeque<(u64, String)>,
}

impl TopicChanges {
    fn note(&mut self, index: u64, key: String) {
        self.changed.push_back((index, key));
        if self.changed.len() > CHANGES_MAX
            && let Some((gone, _)) = self.changed.pop_front()
        {
            self.floor = gone;
        }
    }
}

/// What became of the topics that changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChangedTopics {
    /// Log index of the last change.
    pub index: u64,
    /// Those that there are.
    pub present: Vec<Arc<Topic>>,
    /// Namespace and name of those that are gone.
    pub gone: Vec<(String, String)>,
}

/// Namespace and name as one key; neither may hold a NUL.
pub(crate) fn full_name(namespace: &str, name: &str) -> String {
    format!("{namespace}\0{name}")
}

impl Catalog {
    pub(crate) fn topic(&self, namespace: &str, name: &str) -> Option<Arc<Topic>> {
        self.topics.get(&full_name(namespace, name)).cloned()
    }

    pub(crate) fn topic_by_id(&self, id: u32) -> Option<Arc<Topic>> {
        self.topics_by_id.get(&id).cloned()
    }

    pub(crate) fn topics(&self) -> Vec<Arc<Topic>> {
        self.topics.values().cloned().collect()
    }

    /// All topics and the log index of their last change: one cannot be newer than the other.
    pub(crate) fn topics_with_index(&self) -> (u64, Vec<Arc<Topic>>) {
        (self.topics_index, self.topics())
    }

    /// Log index of the last change of a topic.
    pub(crate) fn topics_index(&self) -> u64 {
        self.topics_index
    }

    /// What changed behind `index`; `None` when that is not known any more.
    pub(crate) fn topics_changed_behind(&self, index: u64) -> Option<ChangedTopics> {
        if index < self.changes.floor {
            return None;
        }
        let begin = self.changes.changed.partition_point(|(at, _)| *at <= index);
        let keys: BTreeSet<&String> = self.changes.changed.range(begin..).map(|(_, key)| key).collect();
        let mut changed = ChangedTopics { index: self.topics_index, ..ChangedTopics::default() };
        for key in keys {
            match self.topics.get(key) {
                Some(topic) => changed.present.push(Arc::clone(topic)),
                None => {
                    let (namespace, name) = key.split_once('\0').unwrap_or(("", key));
                    changed.gone.push((namespace.to_owned(), name.to_owned()));
                }
            }
        }
        Some(changed)
    }

    /// The topics are what the log says up to this index.
    pub(crate) fn opened_at(&mut self, index: u64) {
        self.topics_index = index;
        self.changes = TopicChanges { floor: index, changed: VecDeque::new() };
    }

    pub(crate) fn put_topic(&mut self, topic: Arc<Topic>, index: u64) {
        let key = full_name(&topic.namespace, &topic.name);
        self.topics_index = index;
        self.changes.note(index, key.clone());
        self.topics_by_id.insert(topic.id, Arc::clone(&topic));
        self.topics.insert(key, topic);
    }

    pub(crate) fn remove_topic(&mut self, topic: &Topic, index: u64) {
        let key = full_name(&topic.namespace, &topic.name);
        self.topics_index = index;
        self.topics_by_id.remove(&topic.id);
        self.topics.remove(&key);
        self.changes.note(index, key);
    }

    pub(crate) fn group(&self, namespace: &str, name: &str) -> Option<Arc<SubscriptionGroup>> {
        self.groups.get(&full_name(namespace, name)).cloned()
    }

    pub(crate) fn group_by_id(&self, id: u32) -> Option<Arc<SubscriptionGroup>> {
        self.groups_by_id.get(&id).cloned()
    }

    pub(crate) fn groups(&self) -> Vec<Arc<SubscriptionGroup>> {
        self.groups.values().cloned().collect()
    }

    pub(crate) fn put_group(&mut self, group: Arc<SubscriptionGroup>) {
        self.groups_by_id.insert(group.id, Arc::clone(&group));
        self.groups.insert(full_name(&group.namespace, &group.name), group);
    }

    pub(crate) fn remove_group(&mut self, group: &SubscriptionGroup) {
        self.groups_by_id.remove(&group.id);
        self.groups.remove(&full_name(&group.namespace, &group.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_the_index_of_their_last_change_go_together() {
        let topic = Arc::new(Topic {
            namespace: String::new(),
            name: "t".to_owned(),
            id: 1,
            incarnation: 1,
            queues: 8,
            permission: READ | WRITE,
            message_type: 1,
        });
        let mut catalog = Catalog::default();
        catalog.opened_at(4);
        assert_eq!(catalog.topics_with_index(), (4, vec![]));
        catalog.put_topic(Arc::clone(&topic), 6);
        assert_eq!(catalog.topics_with_index(), (6, vec![Arc::clone(&topic)]));
        let changed = catalog.topics_changed_behind(4).expect("known");
        assert_eq!((changed.index, changed.present, changed.gone), (6, vec![Arc::clone(&topic)], vec![]));
        catalog.remove_topic(&topic, 9);
        assert_eq!(catalog.topics_with_index(), (9, vec![]));
        let changed = catalog.topics_changed_behind(6).expect("known");
        let gone = vec![(String::new(), "t".to_owned())];
        assert_eq!(changed, ChangedTopics { index: 9, present: vec![], gone });
        assert_eq!(catalog.topics_changed_behind(9), Some(ChangedTopics { index: 9, ..Default::default() }));
        assert_eq!(catalog.topics_changed_behind(3), None, "before this process");
        for index in 10..10 + CHANGES_MAX as u64 {
            catalog.put_topic(Arc::clone(&topic), index);
        }
        assert_eq!(catalog.topics_changed_behind(8), None, "not kept");
        assert_eq!(catalog.topics_changed_behind(9).expect("kept").present.len(), 1, "each once");
    }
}
