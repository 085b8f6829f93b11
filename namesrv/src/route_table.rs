//! Which broker groups there are, who leads them, and which topics they hold.
//!
//! Pure: commands in, outcome and changes out; no I/O, no clock. What always holds:
//! * Of one group UUID, (term, applied index) never falls, and an equal term never gets another leader: an older
//!   leader never replaces a newer one (P10).
//! * A name never changes its group UUID.
//! * The topics of a group are its log's topics at `view_index`, all of them: an increment that does not begin there
//!   changes nothing, a full report replaces them only when all its parts are there.
//! * The outcome is a function of the commands applied so far. [`RouteTable::load`] of what the changes wrote gives an
//!   equal table.

mod group;
mod look_up;

use std::collections::{BTreeMap, BTreeSet};

use mq_protocol::cluster::name_result::Outcome;
use mq_protocol::cluster::{NameFull, NameGroupRecord, NameLost, NameReport, NameTopic};

pub use group::Group;

/// Most parts of one full report.
pub const FULL_PARTS_MAX: u32 = 4_096;
/// Most broker groups of a cluster.
pub const GROUPS_MAX: usize = 4_096;

/// What identifies a topic: namespace, 0, name. Neither part holds a 0, so that no two topics share a key.
#[must_use]
pub fn topic_key(namespace: &str, name: &str) -> String {
    format!("{namespace}\0{name}")
}

/// The key of the topic that a listing goes on behind, from its wire text `namespace%name`.
///
/// A name may hold `%`, a namespace may not: the first one ends the namespace, and without any there is none. The empty
/// text stands before every topic.
pub(crate) fn key_of_text(text: &str) -> String {
    match text.split_once('%') {
        Some((namespace, name)) => topic_key(namespace, name),
        None if text.is_empty() => String::new(),
        None => topic_key("", text),
    }
}

/// Text of a topic for people: `namespace%name`, without a namespace the bare name. It identifies nothing.
#[must_use]
pub fn resource(namespace: &str, name: &str) -> String {
    mq_protocol::names::resource_key(namespace, name)
}

/// A change that the state has to keep.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The record of a broker group.
    Group(NameGroupRecord),
    /// A topic of a broker group.
    Topic {
        /// The broker group.
        group: String,
        /// The topic there.
        topic: NameTopic,
    },
    /// A broker group no longer has this topic.
    TopicGone {
        /// The broker group.
        group: String,
        /// See [`topic_key`].
        key: String,
    },
    /// A part of a full report that is not complete.
    Staged {
        /// The broker group.
        group: String,
        /// The part.
        full: NameFull,
    },
    /// A staged part is no longer needed.
    StagedGone {
        /// The broker group.
        group: String,
        /// Its number.
        part: u32,
    },
}

/// What a command did.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The answer.
    pub outcome: Outcome,
    /// What the state has to keep, in order.
    pub changes: Vec<Change>,
}

impl Applied {
    fn nothing(outcome: Outcome) -> Self {
        Self { outcome, changes: Vec::new() }
    }
}

/// The table. Only [`RouteTable::apply_report`] and [`RouteTable::apply_lost`] change it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTable {
    groups: BTreeMap<String, Group>,
    /// [`topic_key`] -> the broker groups that hold the topic.
    holders: BTreeMap<String, BTreeSet<String>>,
}

impl RouteTable {
    /// The table that these records, topics and staged parts describe, as the state returns them.
    #[must_use]
    pub fn load(
        records: Vec<NameGroupRecord>,
        topics: Vec<(String, NameTopic)>,
        staged: Vec<(String, NameFull)>,
    ) -> Self {
        let mut table = Self::default();
        for record in records {
            table.groups.insert(record.broker_group.clone(), Group::new(record));
        }
        for (name, topic) in topics {
            let key = topic_key(&topic.namespace, &topic.name);
            if let Some(group) = table.groups.get_mut(&name) {
                table.holders.entry(key.clone()).or_default().insert(name);
                group.topics.insert(key, topic);
            }
        }
        for (name, full) in staged {
            if let Some(group) = table.groups.get_mut(&name) {
                group.staged.insert(full.part, full);
            }
        }
        table
    }

    /// Applies a registration.
    pub fn apply_report(&mut self, report: &NameReport) -> Applied {
        if !is_sane(report) {
            return Applied::nothing(Outcome::Unknown);
        }
        let known = self.groups.get(&report.broker_group);
        if known.is_none() && self.groups.len() >= GROUPS_MAX {
            return Applied::nothing(Outcome::Unknown);
        }
        if let Some(refusal) = known.and_then(|group| group.fence(report)) {
            return Applied::nothing(refusal);
        }
        let group = self.groups.entry(report.broker_group.clone()).or_insert_with(|| Group::unknown(report));
        let before = group.record.clone();
        let mut changes = Vec::new();
        let mut outcome = if group.renew(report) { Outcome::Applied } else { Outcome::Unchanged };
        if let Some(full) = &report.full {
            outcome = group.stage(report.term, full, &mut changes).unwrap_or(outcome);
        } else if let Some(increment) = &report.increment {
            outcome = group.advance(increment, &mut changes).unwrap_or(outcome);
        }
        if group.record != before {
            changes.push(Change::Group(group.record.clone()));
        }
        self.index_topics(&changes);
        Applied { outcome, changes }
    }

    /// Applies an expiry, unless the group registered after the proposer looked.
    pub fn apply_lost(&mut self, lost: &NameLost) -> Applied {
        let Some(group) = self.groups.get_mut(&lost.broker_group) else {
            return Applied::nothing(Outcome::Stale);
        };
        let record = &mut group.record;
        let seen = (&lost.group_uuid, lost.term, lost.applied_index);
        if seen != (&record.group_uuid, record.term, record.applied_index) {
            return Applied::nothing(Outcome::Stale);
        }
        if record.lost {
            return Applied::nothing(Outcome::Unchanged);
        }
        record.lost = true;
        Applied { outcome: Outcome::Applied, changes: vec![Change::Group(record.clone())] }
    }

    fn index_topics(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Topic { group, topic } => {
                    let key = topic_key(&topic.namespace, &topic.name);
                    self.holders.entry(key).or_default().insert(group.clone());
                }
                Change::TopicGone { group, key } => {
                    let Some(holders) = self.holders.get_mut(key) else { continue };
                    holders.remove(group);
                    if holders.is_empty() {
                        self.holders.remove(key);
                    }
                }
                Change::Group(_) | Change::Staged { .. } | Change::StagedGone { .. } => {}
            }
        }
    }
}

/// What no broker sends. The log holds it for ever, so it is answered.
fn is_sane(report: &NameReport) -> bool {
    let NameReport { broker_group, group_uuid, full, increment, .. } = report;
    let whole = full.as_ref().is_none_or(|full| full.part < full.of && full.of <= FULL_PARTS_MAX);
    let forward = increment.as_ref().is_none_or(|increment| increment.from <= increment.to);
    let named = !broker_group.is_empty() && !group_uuid.is_empty();
    named && whole && forward && (full.is_none() || increment.is_none())
}

#[cfg(test)]
mod tests;
