//! One broker group of the route table: fence, increments, staging of full reports.

use std::collections::BTreeMap;

use mq_protocol::cluster::name_result::Outcome;
use mq_protocol::cluster::{NameFull, NameGroupRecord, NameIncrement, NameReport, NameStaging, NameTopic};

use super::{Change, topic_key};

/// A broker group with its topics.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub(super) record: NameGroupRecord,
    /// By [`topic_key`].
    pub(super) topics: BTreeMap<String, NameTopic>,
    /// Parts of a full report that is not complete, by number.
    pub(super) staged: BTreeMap<u32, NameFull>,
}

impl Group {
    pub(super) fn new(record: NameGroupRecord) -> Self {
        Self { record, topics: BTreeMap::new(), staged: BTreeMap::new() }
    }

    /// A group that nobody reported yet. Its term is below that of every report.
    pub(super) fn unknown(report: &NameReport) -> Self {
        Self::new(NameGroupRecord {
            broker_group: report.broker_group.clone(),
            group_uuid: report.group_uuid.clone(),
            ..NameGroupRecord::default()
        })
    }

    /// What is replicated of it.
    #[must_use]
    pub fn record(&self) -> &NameGroupRecord {
        &self.record
    }

    /// Its topics in the order of namespace and name.
    pub fn topics(&self) -> impl Iterator<Item = &NameTopic> {
        self.topics.values()
    }

    /// Why the report may not touch this group.
    #[must_use]
    pub fn fence(&self, report: &NameReport) -> Option<Outcome> {
        let record = &self.record;
        if record.group_uuid != report.group_uuid {
            return Some(Outcome::OtherUuid);
        }
        let other_leader = record.term == report.term && record.leader_id != report.leader_id;
        let older = (report.term, report.applied_index) < (record.term, record.applied_index);
        (older || other_leader).then_some(Outcome::Stale)
    }

    /// Whether the report says nothing new of who leads. Its applied index always rises and is no news.
    #[must_use]
    pub fn is_keep_alive(&self, report: &NameReport) -> bool {
        let record = &self.record;
        !record.lost
            && report.full.is_none()
            && report.increment.is_none()
            && (record.term, record.leader_id) == (report.term, report.leader_id)
            && record.members == report.members
    }

    /// Takes over who leads; says whether that changed anything.
    pub(super) fn renew(&mut self, report: &NameReport) -> bool {
        let record = &mut self.record;
        let before = (record.term, record.leader_id, record.lost);
        let moved = before != (report.term, report.leader_id, false) || record.members != report.members;
        record.term = report.term;
        record.applied_index = report.applied_index;
        record.leader_id = report.leader_id;
        record.members.clone_from(&report.members);
        record.lost = false;
        moved
    }

    /// Keeps a part of a full report, and replaces the view when it was the last one missing. `None`: nothing new.
    pub(super) fn stage(&mut self, term: u64, full: &NameFull, changes: &mut Vec<Change>) -> Option<Outcome> {
        if self.record.has_view && full.to <= self.record.view_index {
            return None;
        }
        let staging = NameStaging { term, to: full.to, of: full.of };
        if self.record.staging != Some(staging) {
            self.unstage(changes);
            self.record.staging = Some(staging);
        }
        self.staged.insert(full.part, full.clone());
        if self.staged.len() < full.of as usize {
            changes.push(Change::Staged { group: self.record.broker_group.clone(), full: full.clone() });
            return Some(Outcome::Staged);
        }
        let parts = std::mem::take(&mut self.staged);
        self.unstage_parts(parts.keys().copied(), changes);
        self.record.staging = None;
        self.replace(parts.into_values().flat_map(|part| part.topics), changes);
        self.view(full.to);
        Some(Outcome::Applied)
    }

    /// Applies an increment that begins where the view ends. `None`: the view is there already.
    pub(super) fn advance(
        &mut self,
        increment: &NameIncrement,
        changes: &mut Vec<Change>,
    ) -> Option<Outcome> {
        if self.record.has_view && increment.to <= self.record.view_index {
            return None;
        }
        if !self.record.has_view || increment.from != self.record.view_index {
            return Some(Outcome::Resync);
        }
        // A full report that was on the way is older than the view now.
        self.unstage(changes);
        for topic in &increment.changed {
            self.put(topic.clone(), changes);
        }
        for topic in &increment.removed {
            self.remove(topic_key(&topic.namespace, &topic.name), changes);
        }
        self.view(increment.to);
        Some(Outcome::Applied)
    }

    fn view(&mut self, index: u64) {
        self.record.has_view = true;
        self.record.view_index = index;
    }

    fn replace(&mut self, topics: impl Iterator<Item = NameTopic>, changes: &mut Vec<Change>) {
        let new: BTreeMap<String, NameTopic> =
            topics.map(|topic| (topic_key(&topic.namespace, &topic.name), topic)).collect();
        let gone: Vec<String> = self.topics.keys().filter(|key| !new.contains_key(*key)).cloned().collect();
        for key in gone {
            self.remove(key, changes);
        }
        for topic in new.into_values() {
            self.put(topic, changes);
        }
    }

    fn put(&mut self, topic: NameTopic, changes: &mut Vec<Change>) {
        let key = topic_key(&topic.namespace, &topic.name);
        if self.topics.get(&key) != Some(&topic) {
            self.topics.insert(key, topic.clone());
            changes.push(Change::Topic { group: self.record.broker_group.clone(), topic });
        }
    }

    fn remove(&mut self, key: String, changes: &mut Vec<Change>) {
        if self.topics.remove(&key).is_some() {
            changes.push(Change::TopicGone { group: self.record.broker_group.clone(), key });
        }
    }

    fn unstage(&mut self, changes: &mut Vec<Change>) {
        let parts = std::mem::take(&mut self.staged);
        self.unstage_parts(parts.into_keys(), changes);
        self.record.staging = None;
    }

    fn unstage_parts(&self, parts: impl Iterator<Item = u32>, changes: &mut Vec<Change>) {
        let group = &self.record.broker_group;
        changes.extend(parts.map(|part| Change::StagedGone { group: group.clone(), part }));
    }
}
