//! The broker group's state machine: one frame in, changes and answers out. Does no I/O itself.
//!
//! What always holds:
//! * The outcome is a function of the frames applied so far: no clock, no randomness, no settings, no hash-map order,
//!   and no dependence on how frames are grouped into calls.
//! * Every item gets one answer. A command that makes no sense is answered, never an error: the log holds it for ever.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use mq_protocol::cluster::{
    AckCommand, AckResult, ChangeInvisibleCommand, ClientGoneCommand, DeliverCommand, DigestMarkCommand,
    FeatureLevelCommand, ItemResult, MessageResult, ProducerCommand, QueueRef, SubscriptionGroupCommand,
    TopicCommand, item_result::Code,
};
use mq_protocol::command;
use mq_protocol::message::Origin;
use mq_store::item::{ITEM_HEADER_LEN, ItemView, items};
use mq_store::{LogOffset, QueueId, QueueOffset, State, StoreError, Unit, WriteBatch};
use parking_lot::{Mutex, RwLock};
use prost::Message;

use super::catalog::Catalog;
use super::delivery::{At, Deliveries};
use super::groups::{self, Groups};
use super::keys::{BadState, FEATURE_LEVEL, GroupRef, META, Numbers, Place, ProgressKey};
use super::message::{self, Facts};
use super::producers::{MAX_PRODUCERS, Producers, Verdict};
use super::repeats::{MAX_REPEATS, Repeats};
use super::topics::{self, Topics};

/// The highest feature level that this program knows.
pub const KNOWN_FEATURE_LEVEL: u32 = 1;

/// The feature level of a state that says nothing of it. Never changes: members of different versions agree on it.
const BIRTH_FEATURE_LEVEL: u32 = 1;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHead {
    pub index: u64,
    pub offset: LogOffset,
    pub store_time: u64,
    pub lease_time: u64,
}

impl FrameHead {
    fn at(&self) -> At {
        At { index: self.index, lease_time: self.lease_time }
    }
}

/// What is to be done outside of the state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Units to append, in log order.
    pub units: Vec<(QueueId, QueueOffset, Unit)>,
    /// Lives of topics that ended.
    pub removed: Vec<(u32, u32)>,
    /// Topics whose waiting receives have something new to look at.
    pub wake: BTreeSet<u32>,
    /// A topic was made, changed or deleted.
    pub topics_changed: bool,
    /// Digests are wanted of the state after this frame.
    pub marks: Vec<u64>,
}

/// Bounds of the windows; constants of the feature level, smaller in tests only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub producers: usize,
    pub repeats: usize,
}

impl Default for Windows {
    fn default() -> Self {
        Self { producers: MAX_PRODUCERS, repeats: MAX_REPEATS }
    }
}

/// Why the state could not be loaded or a frame not be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    State(#[from] BadState),
}

/// The state machine. Only [`Machine::apply_frame`] changes it.
#[derive(Debug)]
pub(crate) struct Machine {
    topics: Topics,
    groups: Groups,
    producers: Producers,
    repeats: Repeats,
    feature_level: u32,
    /// Shared with readers; written here only.
    pub catalog: Arc<RwLock<Catalog>>,
    /// Shared with readers; written here only.
    pub deliveries: Arc<Mutex<Deliveries>>,
}

impl Machine {
    /// The state machine as the state left it.
    pub(crate) fn load(state: &dyn State, windows: Windows) -> Result<Self, MachineError> {
        let topics = Topics::load(state)??;
        let groups = Groups::load(state)??;
        let feature_level = match state.get(META, FEATURE_LEVEL)? {
            Some(value) => Numbers(&value).u32().ok_or_else(|| BadState::of(META))?,
            None => BIRTH_FEATURE_LEVEL,
        };
        let mut catalog = Catalog::default();
        topics.all_living().for_each(|topic| catalog.put_topic(Arc::clone(topic), 0));
        groups.all_living().for_each(|group| catalog.put_group(Arc::clone(group)));
        Ok(Self {
            topics,
            groups,
            producers: Producers::load(state, windows.producers)??,
            repeats: Repeats::load(state, windows.repeats)??,
            feature_level,
            catalog: Arc::new(RwLock::new(catalog)),
            deliveries: Arc::new(Mutex::new(Deliveries::load(state)??)),
        })
    }

    pub(crate) fn topics(&self) -> &Topics {
        &self.topics
    }

    /// Applies the items of one frame and answers each.
    pub(crate) fn apply_frame(
        &mut self,
        head: FrameHead,
        body: &Bytes,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> Result<Vec<Bytes>, MachineError> {
        self.producers.begin_frame(head.lease_time, batch);
        self.repeats.begin_frame(head.lease_time, head.store_time, batch);
        let mut answers = Vec::new();
        let mut buffer = BytesMut::new();
        for item in items(body) {
            let mut result = self.apply_item(head, &item?, batch, effects);
            result.index = head.index;
            result.lease_time = head.lease_time;
            let len = result.encoded_len();
            if buffer.capacity() < len {
                buffer.reserve(len.max(4_096));
            }
            // A BytesMut grows, so that encoding cannot fail.
            let _ = result.encode(&mut buffer);
            answers.push(buffer.split().freeze());
        }
        self.producers.end_frame(head.index, head.lease_time, batch);
        self.repeats.end_frame(head.index, head.lease_time, batch);
        Ok(answers)
    }

    /// Puts into the batch what is gathered over several frames.
    pub(crate) fn flush(&mut self, batch: &mut WriteBatch) {
        self.topics.flush(batch);
    }

    fn apply_item(
        &mut self,
        head: FrameHead,
        item: &ItemView,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> ItemResult {
        if item.version != command::VERSION {
            let detail = format!("version {} of kind {}", item.version, command::kind_name(item.kind));
            return refused(Code::UnsupportedKind, detail);
        }
        let at = head.at();
        match item.kind {
            command::MESSAGE => self.message(head, item, batch, effects),
            command::DELIVER => decoded(item, |command| self.deliver(&command, at, batch, effects)),
            command::ACK => decoded(item, |command| self.ack(&command, at, batch)),
            command::CHANGE_INVISIBLE => decoded(item, |command| self.change(&command, at, batch, effects)),
            command::CLIENT_GONE => decoded(item, |command| self.client_gone(&command, at, batch, effects)),
            command::TOPIC => decoded(item, |command| self.topic(&command, at, batch, effects)),
            command::SUBSCRIPTION_GROUP => decoded(item, |command| self.group(&command, batch)),
            command::PRODUCER => decoded(item, |command| self.producer(command, batch)),
            command::DIGEST_MARK => decoded(item, |command: DigestMarkCommand| {
                effects.marks.push(command.mark);
                ItemResult::default()
            }),
            command::FEATURE_LEVEL => decoded(item, |command| self.raise_level(command, batch)),
            kind => refused(Code::UnsupportedKind, format!("kind {kind} ({})", command::kind_name(kind))),
        }
    }

    fn message(
        &mut self,
        head: FrameHead,
        item: &ItemView,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> ItemResult {
        let facts = match message::read(item) {
            Ok(facts) => facts,
            Err(reason) => return refused(Code::Invalid, reason),
        };
        if let Some(answer) = self.repeated(&facts, batch) {
            return answer;
        }
        let queue_offset = match self.topics.assign(facts.queue) {
            Ok(queue_offset) => queue_offset,
            Err(code) => return code_only(code),
        };
        let offset = LogOffset(head.offset.0 + u64::from(item.position) + ITEM_HEADER_LEN as u64);
        let Facts { queue, size, tag_hash, origin } = facts;
        effects.units.push((queue, queue_offset, Unit { offset, size, tag_hash }));
        effects.wake.insert(queue.topic_id);
        let place = Place { queue, queue_offset, item_offset: offset, store_time: head.store_time };
        match origin {
            Origin::Anonymous => {}
            Origin::Native(numbered) => self.producers.stored(numbered, place),
            Origin::SendKey(key) => self.repeats.stored(&key, queue, queue_offset, offset),
        }
        stored(place, false)
    }

    /// The answer to a message that was stored before, or that its producer's numbers forbid.
    fn repeated(&mut self, facts: &Facts, batch: &mut WriteBatch) -> Option<ItemResult> {
        match facts.origin {
            Origin::Anonymous => None,
            Origin::Native(numbered) => match self.producers.check(numbered, batch) {
                Verdict::New => None,
                Verdict::Repeat(place) => Some(stored(place, true)),
                Verdict::Refused(code) => Some(code_only(code)),
            },
            // The key covers the topic's life, so that what it finds lies in this one.
            Origin::SendKey(key) => self.repeats.find(&key).map(|place| stored(place, true)),
        }
    }

    /// Which progress a command is about, if group, topic and queue are there.
    fn progress_key(&self, id: u32, incarnation: u32, queue: Option<QueueRef>) -> Result<ProgressKey, Code> {
        let QueueRef { topic_id, incarnation: life, queue } = queue.ok_or(Code::Invalid)?;
        if !self.groups.lives(id, incarnation) {
            return Err(Code::UnknownGroup);
        }
        let topic = self.topics.living(topic_id, life).ok_or(Code::UnknownTopic)?;
        if queue >= topic.queues {
            return Err(Code::UnknownTopic);
        }
        let group = GroupRef { id, incarnation };
        Ok(ProgressKey { group, queue: QueueId::new(topic_id, life, queue) })
    }

    fn deliver(
        &mut self,
        command: &DeliverCommand,
        at: At,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> ItemResult {
        let key = match self.progress_key(command.group_id, command.group_incarnation, command.queue) {
            Ok(key) => key,
            Err(code) => return code_only(code),
        };
        let next = self.topics.next(key.queue).unwrap_or(0);
        match self.deliveries.lock().deliver(key, command, next, at, batch) {
            Ok(deliver) => {
                // Who waits has to know when this comes again.
                if !deliver.taken.is_empty() || !deliver.again.is_empty() {
                    effects.wake.insert(key.queue.topic_id);
                }
                ItemResult { deliver: Some(deliver), ..ItemResult::default() }
            }
            Err(code) => code_only(code),
        }
    }

    fn ack(&mut self, command: &AckCommand, at: At, batch: &mut WriteBatch) -> ItemResult {
        let key = match self.progress_key(command.group_id, command.group_incarnation, command.queue) {
            Ok(key) => key,
            Err(code) => return code_only(code),
        };
        let mut deliveries = self.deliveries.lock();
        let codes = command.positions.iter().map(|position| {
            let outcome = deliveries.ack(key, *position, at, batch);
            outcome.map_or_else(|code| code as u32, |()| Code::Ok as u32)
        });
        ItemResult { ack: Some(AckResult { codes: codes.collect() }), ..ItemResult::default() }
    }

    fn change(
        &mut self,
        command: &ChangeInvisibleCommand,
        at: At,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> ItemResult {
        let key = match self.progress_key(command.group_id, command.group_incarnation, command.queue) {
            Ok(key) => key,
            Err(code) => return code_only(code),
        };
        match self.deliveries.lock().change(key, command, at, batch) {
            Ok(()) => {
                effects.wake.insert(key.queue.topic_id);
                ItemResult::default()
            }
            Err(code) => code_only(code),
        }
    }

    fn client_gone(
        &mut self,
        command: &ClientGoneCommand,
        at: At,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> ItemResult {
        let ClientGoneCommand { client_id, invisible_ms } = command;
        effects.wake.extend(self.deliveries.lock().client_gone(client_id, *invisible_ms, at, batch));
        ItemResult::default()
    }

    fn topic(
        &mut self,
        command: &TopicCommand,
        at: At,
        batch: &mut WriteBatch,
        effects: &mut Effects,
    ) -> ItemResult {
        let (result, changed) = match self.topics.command(command, batch) {
            Ok(done) => done,
            Err((code, detail)) => return refused(code, detail),
        };
        match changed {
            topics::Changed::Nothing => {}
            topics::Changed::Put(topic) => {
                effects.topics_changed = true;
                effects.wake.insert(topic.id);
                self.catalog.write().put_topic(topic, at.index);
            }
            topics::Changed::Deleted(topic) => {
                effects.topics_changed = true;
                effects.wake.insert(topic.id);
                // Units of this call that nobody has seen yet go with the topic.
                effects.units.retain(|(queue, ..)| queue.topic_id != topic.id);
                effects.removed.push((topic.id, topic.incarnation));
                self.deliveries.lock().remove_topic(topic.id, batch);
                self.repeats.remove_topic(topic.id, batch);
                self.catalog.write().remove_topic(&topic, at.index);
            }
        }
        ItemResult { topic: Some(result), ..ItemResult::default() }
    }

    fn group(&mut self, command: &SubscriptionGroupCommand, batch: &mut WriteBatch) -> ItemResult {
        let (result, changed) = match self.groups.command(command, batch) {
            Ok(done) => done,
            Err((code, detail)) => return refused(code, detail),
        };
        match changed {
            groups::Changed::Nothing => {}
            groups::Changed::Put(group) => self.catalog.write().put_group(group),
            groups::Changed::Deleted(group) => {
                let life = GroupRef { id: group.id, incarnation: group.incarnation };
                self.deliveries.lock().remove_group(life, batch);
                self.catalog.write().remove_group(&group);
            }
        }
        ItemResult { topic: Some(result), ..ItemResult::default() }
    }

    fn producer(&mut self, command: ProducerCommand, batch: &mut WriteBatch) -> ItemResult {
        match self.producers.open_epoch(command.producer_id, command.epoch, batch) {
            Ok(()) => ItemResult::default(),
            Err(code) => code_only(code),
        }
    }

    fn raise_level(&mut self, command: FeatureLevelCommand, batch: &mut WriteBatch) -> ItemResult {
        if command.level > KNOWN_FEATURE_LEVEL {
            let detail = format!("feature level {}, known is {KNOWN_FEATURE_LEVEL}", command.level);
            return refused(Code::UnsupportedKind, detail);
        }
        if command.level > self.feature_level {
            self.feature_level = command.level;
            batch.put(META, FEATURE_LEVEL, &command.level.to_be_bytes());
        }
        ItemResult::default()
    }
}

/// Decodes a command and carries it out; bytes that are no such command are answered as invalid.
fn decoded<C: Message + Default>(item: &ItemView, run: impl FnOnce(C) -> ItemResult) -> ItemResult {
    match C::decode(item.body.clone()) {
        Ok(command) => run(command),
        Err(error) => refused(Code::Invalid, format!("{}: {error}", command::kind_name(item.kind))),
    }
}

fn code_only(code: Code) -> ItemResult {
    ItemResult { code: code as i32, ..ItemResult::default() }
}

fn refused(code: Code, detail: String) -> ItemResult {
    ItemResult { code: code as i32, detail, ..ItemResult::default() }
}

fn stored(place: Place, repeat: bool) -> ItemResult {
    let message = MessageResult {
        topic_id: place.queue.topic_id,
        incarnation: place.queue.incarnation,
        queue: place.queue.queue,
        queue_offset: place.queue_offset.0,
        item_offset: place.item_offset.0,
        store_time: place.store_time,
        repeat,
    };
    ItemResult { message: Some(message), ..ItemResult::default() }
}
