//! Topics: commands that change them, and the next offset of each of their queues.
//!
//! A topic's record stays for ever, also when it is deleted: a name keeps its id, and its next life gets the next
//! incarnation.

use std::collections::BTreeMap;
use std::sync::Arc;

use mq_protocol::cluster::{TopicCommand, TopicResult, item_result::Code, topic_command::Action};
use mq_store::{QueueId, QueueOffset, State, StoreError, WriteBatch};
use prost::Message;

use super::catalog::{READ, Topic, WRITE, full_name};
use super::keys::{BadState, Numbers, QUEUES, TOPICS, queue_key};

/// Queues of a new topic when none are asked for.
pub const DEFAULT_QUEUES: u32 = 8;
/// Most queues of a topic.
pub const MAX_QUEUES: u32 = 1_024;
/// Longest namespace or name, in bytes, that apply stores; names are checked more closely before proposing.
pub(crate) const MAX_NAME: usize = 255;
const MESSAGE_TYPES: std::ops::RangeInclusive<u32> = 1..=6;
const NORMAL: u32 = 1;

/// What family `topics` keeps of a topic.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TopicRecord {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint32, tag = "3")]
    incarnation: u32,
    #[prost(bool, tag = "4")]
    living: bool,
    #[prost(uint32, tag = "5")]
    queues: u32,
    #[prost(uint32, tag = "6")]
    permission: u32,
    #[prost(uint32, tag = "7")]
    message_type: u32,
}

#[derive(Debug)]
struct Entry {
    topic: Arc<Topic>,
    living: bool,
    /// Next offset of each queue, and whether it is not in the store yet.
    next: Vec<(u64, bool)>,
}

impl Entry {
    fn record(&self) -> TopicRecord {
        let Topic { namespace, name, id: _, incarnation, queues, permission, message_type } = &*self.topic;
        TopicRecord {
            namespace: namespace.clone(),
            name: name.clone(),
            incarnation: *incarnation,
            living: self.living,
            queues: *queues,
            permission: *permission,
            message_type: *message_type,
        }
    }
}

/// What a command did to a topic.
#[derive(Debug)]
pub(crate) enum Changed {
    /// It is there, new or with other settings.
    Put(Arc<Topic>),
    /// It is gone.
    Deleted(Arc<Topic>),
    /// Everything was so already.
    Nothing,
}

/// All topics, by id; id 1 comes first.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    entries: Vec<Entry>,
    ids: BTreeMap<String, u32>,
    /// Queues whose next offset is not in the store yet.
    dirty: Vec<(u32, u32)>,
}

impl Topics {
    pub(crate) fn load(state: &dyn State) -> Result<Result<Self, BadState>, StoreError> {
        let mut loaded = Self::default();
        let mut good = true;
        state.scan(TOPICS, &[], None, &mut |key, value| {
            good = loaded.load_topic(key, value).is_some();
            good
        })?;
        if !good {
            return Ok(Err(BadState::of(TOPICS)));
        }
        state.scan(QUEUES, &[], None, &mut |key, value| {
            good = loaded.load_queue(key, value).is_some();
            good
        })?;
        Ok(if good { Ok(loaded) } else { Err(BadState::of(QUEUES)) })
    }

    fn load_topic(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let id = Numbers(key).u32()?;
        let record = TopicRecord::decode(value).ok()?;
        if id as usize != self.entries.len() + 1 {
            return None;
        }
        self.ids.insert(full_name(&record.namespace, &record.name), id);
        let TopicRecord { namespace, name, incarnation, living, queues, permission, message_type } = record;
        let topic = Topic { namespace, name, id, incarnation, queues, permission, message_type };
        let next = if living { vec![(0, false); queues as usize] } else { Vec::new() };
        self.entries.push(Entry { topic: Arc::new(topic), living, next });
        Some(())
    }

    fn load_queue(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let queue = Numbers(key).queue()?;
        let next = Numbers(value).u64()?;
        let entry = self.living_mut(queue.topic_id, queue.incarnation)?;
        entry.next.get_mut(queue.queue as usize)?.0 = next;
        Some(())
    }

    fn entry(&self, id: u32) -> Option<&Entry> {
        self.entries.get((id as usize).checked_sub(1)?)
    }

    fn living_mut(&mut self, id: u32, incarnation: u32) -> Option<&mut Entry> {
        let entry = self.entries.get_mut((id as usize).checked_sub(1)?)?;
        (entry.living && entry.topic.incarnation == incarnation).then_some(entry)
    }

    /// The topic of this life, if it lives.
    pub(crate) fn living(&self, id: u32, incarnation: u32) -> Option<&Topic> {
        let entry = self.entry(id)?;
        (entry.living && entry.topic.incarnation == incarnation).then_some(&*entry.topic)
    }

    pub(crate) fn all_living(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.entries.iter().filter(|entry| entry.living).map(|entry| &entry.topic)
    }

    /// Next offset of a living queue.
    pub(crate) fn next(&self, queue: QueueId) -> Option<u64> {
        let entry = self.entry(queue.topic_id)?;
        let lives = entry.living && entry.topic.incarnation == queue.incarnation;
        entry.next.get(queue.queue as usize).filter(|_| lives).map(|(next, _)| *next)
    }

    /// Next offsets of all living queues.
    pub(crate) fn all_next(&self) -> BTreeMap<QueueId, QueueOffset> {
        let living = self.entries.iter().filter(|entry| entry.living);
        living
            .flat_map(|entry| {
                (0..).zip(&entry.next).map(|(queue, (next, _))| {
                    (QueueId::new(entry.topic.id, entry.topic.incarnation, queue), QueueOffset(*next))
                })
            })
            .collect()
    }

    /// Gives the next offset of a queue to a message, if topic and queue are there and take messages.
    pub(crate) fn assign(&mut self, queue: QueueId) -> Result<QueueOffset, Code> {
        let entry = self.living_mut(queue.topic_id, queue.incarnation).ok_or(Code::UnknownTopic)?;
        let writable = entry.topic.writable();
        let (next, dirty) = entry.next.get_mut(queue.queue as usize).ok_or(Code::UnknownTopic)?;
        if !writable {
            return Err(Code::NotWritable);
        }
        let offset = QueueOffset(*next);
        *next += 1;
        if !std::mem::replace(dirty, true) {
            self.dirty.push((queue.topic_id, queue.queue));
        }
        Ok(offset)
    }

    /// Writes the next offsets that changed since the last call.
    pub(crate) fn flush(&mut self, batch: &mut WriteBatch) {
        for (id, queue) in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.entries.get_mut((id as usize) - 1) else { continue };
            // The topic may have been deleted, or made anew with fewer queues, since.
            if let Some((next, dirty)) = entry.next.get_mut(queue as usize)
                && std::mem::replace(dirty, false)
            {
                let key = queue_key(QueueId::new(id, entry.topic.incarnation, queue));
                batch.put(QUEUES, &key, &next.to_be_bytes());
            }
        }
    }

    /// Carries out a command.
    pub(crate) fn command(
        &mut self,
        command: &TopicCommand,
        batch: &mut WriteBatch,
    ) -> Result<(TopicResult, Changed), (Code, String)> {
        check_names(&command.namespace, &command.name).map_err(|detail| (Code::Invalid, detail))?;
        let id = self.ids.get(&full_name(&command.namespace, &command.name)).copied();
        let living = id.and_then(|id| self.entry(id)).is_some_and(|entry| entry.living);
        match command.action() {
            Action::Create if living => Err((Code::Exists, String::new())),
            Action::Upsert if living => self.change(id.unwrap_or_default(), command, batch),
            Action::Create | Action::Upsert => self.create(id, command, batch),
            Action::Delete if living => Ok(self.delete(id.unwrap_or_default(), batch)),
            Action::Delete => Err((Code::UnknownTopic, String::new())),
            Action::Unspecified => Err((Code::Invalid, "the action is not given".to_owned())),
        }
    }

    fn create(
        &mut self,
        id: Option<u32>,
        command: &TopicCommand,
        batch: &mut WriteBatch,
    ) -> Result<(TopicResult, Changed), (Code, String)> {
        let base = Topic {
            namespace: command.namespace.clone(),
            name: command.name.clone(),
            id: id.unwrap_or(self.entries.len() as u32 + 1),
            incarnation: id.and_then(|id| self.entry(id)).map_or(0, |entry| entry.topic.incarnation) + 1,
            queues: DEFAULT_QUEUES,
            permission: READ | WRITE,
            message_type: NORMAL,
        };
        let topic = settings(base, command).map_err(|detail| (Code::Invalid, detail))?;
        let queues = topic.queues;
        let entry = Entry { topic: Arc::new(topic), living: true, next: vec![(0, false); queues as usize] };
        self.ids.insert(full_name(&command.namespace, &command.name), entry.topic.id);
        let id = entry.topic.id;
        match self.entries.get_mut(id as usize - 1) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        Ok(self.written(id, 0, batch))
    }

    fn change(
        &mut self,
        id: u32,
        command: &TopicCommand,
        batch: &mut WriteBatch,
    ) -> Result<(TopicResult, Changed), (Code, String)> {
        let old = Arc::clone(&self.entries[id as usize - 1].topic);
        let topic = settings((*old).clone(), command).map_err(|detail| (Code::Invalid, detail))?;
        if topic.queues < old.queues {
            let detail = format!("{} queues, the topic has {} and cannot shrink", topic.queues, old.queues);
            return Err((Code::Invalid, detail));
        }
        if topic == *old {
            let result = TopicResult { id, incarnation: old.incarnation, changed: false };
            return Ok((result, Changed::Nothing));
        }
        let entry = &mut self.entries[id as usize - 1];
        entry.next.resize(topic.queues as usize, (0, false));
        entry.topic = Arc::new(topic);
        Ok(self.written(id, old.queues, batch))
    }

    /// Puts the record, and the queues from `first_new` on, into the batch.
    fn written(&self, id: u32, first_new: u32, batch: &mut WriteBatch) -> (TopicResult, Changed) {
        let entry = &self.entries[id as usize - 1];
        let incarnation = entry.topic.incarnation;
        batch.put(TOPICS, &id.to_be_bytes(), &entry.record().encode_to_vec());
        for queue in first_new..entry.topic.queues {
            batch.put(QUEUES, &queue_key(QueueId::new(id, incarnation, queue)), &0_u64.to_be_bytes());
        }
        (TopicResult { id, incarnation, changed: true }, Changed::Put(Arc::clone(&entry.topic)))
    }

    fn delete(&mut self, id: u32, batch: &mut WriteBatch) -> (TopicResult, Changed) {
        let entry = &mut self.entries[id as usize - 1];
        entry.living = false;
        entry.next.clear();
        let incarnation = entry.topic.incarnation;
        batch.put(TOPICS, &id.to_be_bytes(), &entry.record().encode_to_vec());
        for queue in 0..entry.topic.queues {
            batch.delete(QUEUES, &queue_key(QueueId::new(id, incarnation, queue)));
        }
        (TopicResult { id, incarnation, changed: true }, Changed::Deleted(Arc::clone(&entry.topic)))
    }
}

/// Lays what the command names over a topic's settings.
fn settings(mut topic: Topic, command: &TopicCommand) -> Result<Topic, String> {
    if let Some(queues) = command.queues {
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(format!("{queues} queues, allowed are 1 to {MAX_QUEUES}"));
        }
        topic.queues = queues;
    }
    if let Some(permission) = command.permission {
        if permission & !(READ | WRITE) != 0 {
            return Err(format!("permission {permission}, known bits are {READ} (read) and {WRITE} (write)"));
        }
        topic.permission = permission;
    }
    if let Some(message_type) = command.message_type {
        if !MESSAGE_TYPES.contains(&message_type) {
            return Err(format!("message type {message_type}, known are {MESSAGE_TYPES:?}"));
        }
        topic.message_type = message_type;
    }
    Ok(topic)
}

/// What apply itself insists on, so that no command can break the keys.
pub(crate) fn check_names(namespace: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    for text in [namespace, name] {
        if text.len() > MAX_NAME {
            return Err(format!("a name of {} bytes, the limit is {MAX_NAME}", text.len()));
        }
        if text.contains('\0') {
            return Err("a name holds a NUL".to_owned());
        }
    }
    Ok(())
}
