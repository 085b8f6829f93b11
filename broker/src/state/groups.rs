//! Subscription groups and the commands that change them. As with topics, a name keeps its id for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use mq_protocol::cluster::{
    SubscriptionGroupCommand, TopicResult, item_result::Code, subscription_group_command::Action,
};
use mq_store::{State, StoreError, WriteBatch};
use prost::Message;

use super::catalog::{SubscriptionGroup, full_name};
use super::keys::{BadState, GROUPS, Numbers};
use super::topics::check_names;

/// Deliveries of a message, with the first, when a group was never told another number.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 17;
/// Most pauses in a group's own list.
pub const MAX_RETRY_PAUSES: usize = 128;

/// What family `groups` keeps of a subscription group.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GroupRecord {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint32, tag = "3")]
    incarnation: u32,
    #[prost(bool, tag = "4")]
    living: bool,
    #[prost(bool, tag = "5")]
    ordered: bool,
    #[prost(uint32, tag = "6")]
    max_attempts: u32,
    #[prost(uint64, repeated, tag = "7")]
    retry_pauses_ms: Vec<u64>,
    #[prost(bool, tag = "8")]
    consume_enabled: bool,
}

#[derive(Debug)]
struct Entry {
    group: Arc<SubscriptionGroup>,
    living: bool,
}

impl Entry {
    fn record(&self) -> GroupRecord {
        let group = (*self.group).clone();
        let SubscriptionGroup { namespace, name, id: _, incarnation, ordered, max_attempts, .. } = group;
        let SubscriptionGroup { retry_pauses_ms, consume_enabled, .. } = &*self.group;
        GroupRecord {
            namespace,
            name,
            incarnation,
            living: self.living,
            ordered,
            max_attempts,
            retry_pauses_ms: retry_pauses_ms.clone(),
            consume_enabled: *consume_enabled,
        }
    }
}

/// What a command did to a group.
#[derive(Debug)]
pub(crate) enum Changed {
    /// It is there, new or with other settings.
    Put(Arc<SubscriptionGroup>),
    /// It is gone.
    Deleted(Arc<SubscriptionGroup>),
    /// Everything was so already.
    Nothing,
}

/// All subscription groups, by id; id 1 comes first.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    entries: Vec<Entry>,
    ids: BTreeMap<String, u32>,
}

impl Groups {
    pub(crate) fn load(state: &dyn State) -> Result<Result<Self, BadState>, StoreError> {
        let mut loaded = Self::default();
        let mut good = true;
        state.scan(GROUPS, &[], None, &mut |key, value| {
            good = loaded.load_group(key, value).is_some();
            good
        })?;
        Ok(if good { Ok(loaded) } else { Err(BadState::of(GROUPS)) })
    }

    fn load_group(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let id = Numbers(key).u32()?;
        let record = GroupRecord::decode(value).ok()?;
        if id as usize != self.entries.len() + 1 {
            return None;
        }
        self.ids.insert(full_name(&record.namespace, &record.name), id);
        let group = SubscriptionGroup {
            namespace: record.namespace,
            name: record.name,
            id,
            incarnation: record.incarnation,
            ordered: record.ordered,
            max_attempts: record.max_attempts,
            retry_pauses_ms: record.retry_pauses_ms,
            consume_enabled: record.consume_enabled,
        };
        self.entries.push(Entry { group: Arc::new(group), living: record.living });
        Some(())
    }

    fn entry(&self, id: u32) -> Option<&Entry> {
        self.entries.get((id as usize).checked_sub(1)?)
    }

    /// Whether this life of a group lives.
    pub(crate) fn lives(&self, id: u32, incarnation: u32) -> bool {
        self.entry(id).is_some_and(|entry| entry.living && entry.group.incarnation == incarnation)
    }

    pub(crate) fn all_living(&self) -> impl Iterator<Item = &Arc<SubscriptionGroup>> {
        self.entries.iter().filter(|entry| entry.living).map(|entry| &entry.group)
    }

    /// Carries out a command.
    pub(crate) fn command(
        &mut self,
        command: &SubscriptionGroupCommand,
        batch: &mut WriteBatch,
    ) -> Result<(TopicResult, Changed), (Code, String)> {
        check_names(&command.namespace, &command.name).map_err(|detail| (Code::Invalid, detail))?;
        let key = full_name(&command.namespace, &command.name);
        let id = self.ids.get(&key).copied();
        let old = id.and_then(|id| self.entry(id)).map(|entry| (Arc::clone(&entry.group), entry.living));
        let living = old.as_ref().is_some_and(|(_, living)| *living);
        let (group, lives) = match (command.action(), old) {
            (Action::Create, _) if living => return Err((Code::Exists, String::new())),
            (Action::Upsert, Some((old, true))) => {
                let group = settings((*old).clone(), command)?;
                if group == *old {
                    let result = TopicResult { id: group.id, incarnation: group.incarnation, changed: false };
                    return Ok((result, Changed::Nothing));
                }
                (group, true)
            }
            (Action::Create | Action::Upsert, old) => {
                let id = id.unwrap_or(self.entries.len() as u32 + 1);
                let incarnation = old.map_or(0, |(old, _)| old.incarnation) + 1;
                (settings(new_group(command, id, incarnation), command)?, true)
            }
            (Action::Delete, Some((old, true))) => ((*old).clone(), false),
            (Action::Delete, _) => return Err((Code::UnknownGroup, String::new())),
            (Action::Unspecified, _) => return Err((Code::Invalid, "the action is not given".to_owned())),
        };
        self.ids.insert(key, group.id);
        Ok(self.put(Entry { group: Arc::new(group), living: lives }, batch))
    }

    fn put(&mut self, entry: Entry, batch: &mut WriteBatch) -> (TopicResult, Changed) {
        let group = Arc::clone(&entry.group);
        batch.put(GROUPS, &group.id.to_be_bytes(), &entry.record().encode_to_vec());
        let result = TopicResult { id: group.id, incarnation: group.incarnation, changed: true };
        let changed = if entry.living { Changed::Put(group) } else { Changed::Deleted(group) };
        match self.entries.get_mut(result.id as usize - 1) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        (result, changed)
    }
}

fn new_group(command: &SubscriptionGroupCommand, id: u32, incarnation: u32) -> SubscriptionGroup {
    SubscriptionGroup {
        namespace: command.namespace.clone(),
        name: command.name.clone(),
        id,
        incarnation,
        ordered: false,
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        retry_pauses_ms: Vec::new(),
        consume_enabled: true,
    }
}

/// Lays what the command names over a group's settings.
fn settings(
    mut group: SubscriptionGroup,
    command: &SubscriptionGroupCommand,
) -> Result<SubscriptionGroup, (Code, String)> {
    group.ordered = command.ordered.unwrap_or(group.ordered);
    group.consume_enabled = command.consume_enabled.unwrap_or(group.consume_enabled);
    if let Some(max_attempts) = command.max_attempts {
        if max_attempts == 0 {
            return Err((Code::Invalid, "0 attempts, the least is 1".to_owned()));
        }
        group.max_attempts = max_attempts;
    }
    let pauses = command.retry_pauses_ms.len();
    if pauses > MAX_RETRY_PAUSES {
        return Err((Code::Invalid, format!("{pauses} retry pauses, the limit is {MAX_RETRY_PAUSES}")));
    }
    if pauses > 0 {
        group.retry_pauses_ms.clone_from(&command.retry_pauses_ms);
    }
    Ok(group)
}
