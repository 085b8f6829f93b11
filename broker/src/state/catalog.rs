//! Topics and subscription groups as the rest of the broker sees them.

use std::collections::BTreeMap;
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

    /// The topics are what the log says up to this index.
    pub(crate) fn opened_at(&mut self, index: u64) {
        self.topics_index = index;
    }

    pub(crate) fn put_topic(&mut self, topic: Arc<Topic>, index: u64) {
        self.topics_index = index;
        self.topics_by_id.insert(topic.id, Arc::clone(&topic));
        self.topics.insert(full_name(&topic.namespace, &topic.name), topic);
    }

    pub(crate) fn remove_topic(&mut self, topic: &Topic, index: u64) {
        self.topics_index = index;
        self.topics_by_id.remove(&topic.id);
        self.topics.remove(&full_name(&topic.namespace, &topic.name));
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
        catalog.remove_topic(&topic, 9);
        assert_eq!(catalog.topics_with_index(), (9, vec![]));
    }
}
