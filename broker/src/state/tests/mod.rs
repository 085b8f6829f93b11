//! The state machine on a memory state: each command's good and bad cases, restarts, and equal bytes on replay.

mod deliveries;
mod repeats;
mod replay;
mod topics;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use mq_protocol::cluster::{
    AckCommand, AckPosition, ChangeInvisibleCommand, DeliverCommand, ItemResult, QueueRef, Redelivery,
    SubscriptionGroupCommand, TopicCommand, item_result::Code, subscription_group_command, topic_command,
};
use mq_protocol::command;
use mq_protocol::message::properties::PropertiesBuilder;
use mq_protocol::message::{NativeSend, Origin, RecordBuilder, Trailer};
use mq_store::item::{BodyBuilder, EncodedItem};
use mq_store::{EntryId, LogOffset, MemoryState, OsFileSystem, QueueId, State, WriteBatch};
use prost::Message;

use super::keys::FAMILIES;
use super::machine::{Effects, FrameHead, Machine, Windows};

pub(super) const WINDOWS: Windows = Windows { producers: 3, repeats: 10 };

pub(super) fn memory() -> Arc<dyn State> {
    Arc::new(MemoryState::new(Arc::new(OsFileSystem), FAMILIES))
}

/// Everything in a state, family by family.
pub(super) fn dump(state: &dyn State) -> Vec<(usize, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for family in 0..FAMILIES.len() {
        state
            .scan(family, &[], None, &mut |key, value| {
                all.push((family, key.to_vec(), value.to_vec()));
                true
            })
            .expect("memory does not fail");
    }
    all
}

/// One frame of a log, as apply gets it.
#[derive(Clone, Debug)]
pub(super) struct LoggedFrame {
    pub head: FrameHead,
    pub body: Bytes,
}

/// A state machine with its state, fed frame by frame.
pub(super) struct Bench {
    pub state: Arc<dyn State>,
    pub machine: Machine,
    pub log: Vec<LoggedFrame>,
    pub effects: Effects,
    pub lease: u64,
    end: u64,
}

impl Bench {
    pub fn new() -> Self {
        let state = memory();
        let machine = Machine::load(&*state, WINDOWS).expect("an empty state");
        Self { state, machine, log: Vec::new(), effects: Effects::default(), lease: 0, end: 0 }
    }

    /// A bench with topic 1 (`t`, two queues) and group 1 (`g`).
    pub fn with_topic_and_group() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.one(put_topic("t", Some(2))).code(), Code::Ok);
        assert_eq!(bench.one(put_group("g")).code(), Code::Ok);
        bench
    }

    pub fn frame(&mut self, items: &[EncodedItem]) -> Vec<ItemResult> {
        let mut body = BodyBuilder::new();
        items.iter().for_each(|item| body.push(item));
        let body = body.finish().body;
        self.lease += 1;
        let head = FrameHead {
            index: self.log.len() as u64,
            offset: LogOffset(self.end),
            store_time: 1_000_000 + self.lease,
            lease_time: self.lease,
        };
        self.end += 72 + body.len() as u64;
        let frame = LoggedFrame { head, body };
        self.log.push(frame.clone());
        apply(&mut self.machine, &*self.state, &frame, &mut self.effects)
    }

    pub fn one(&mut self, item: EncodedItem) -> ItemResult {
        self.frame(&[item]).remove(0)
    }

    /// The same state machine after a restart of the process.
    pub fn restart(&mut self) {
        self.machine = Machine::load(&*self.state, WINDOWS).expect("own state");
    }

    pub fn send(&mut self, count: usize, queue: u32) {
        for _ in 0..count {
            assert_eq!(self.one(message(1, 1, queue, "", Origin::Anonymous)).code(), Code::Ok);
        }
    }
}

/// Applies one frame as a call of its own.
pub(super) fn apply(
    machine: &mut Machine,
    state: &dyn State,
    frame: &LoggedFrame,
    effects: &mut Effects,
) -> Vec<ItemResult> {
    let mut batch = WriteBatch::new();
    let results = machine.apply_frame(frame.head, &frame.body, &mut batch, effects).expect("own frame");
    machine.flush(&mut batch);
    batch.set_applied(EntryId::new(1, frame.head.index));
    state.write(&batch).expect("memory does not fail");
    results.iter().map(|result| ItemResult::decode(result.clone()).expect("own result")).collect()
}

pub(super) fn item(kind: u8, command: &impl Message) -> EncodedItem {
    EncodedItem::new(kind, 0, command::VERSION, &[&command.encode_to_vec()])
}

pub(super) fn topic_command(name: &str, action: topic_command::Action) -> TopicCommand {
    TopicCommand { action: action as i32, name: name.to_owned(), ..TopicCommand::default() }
}

pub(super) fn put_topic(name: &str, queues: Option<u32>) -> EncodedItem {
    let command = topic_command(name, topic_command::Action::Upsert);
    item(command::TOPIC, &TopicCommand { queues, ..command })
}

pub(super) fn delete_topic(name: &str) -> EncodedItem {
    item(command::TOPIC, &topic_command(name, topic_command::Action::Delete))
}

pub(super) fn group_command(
    name: &str,
    action: subscription_group_command::Action,
) -> SubscriptionGroupCommand {
    SubscriptionGroupCommand { action: action as i32, name: name.to_owned(), ..Default::default() }
}

pub(super) fn put_group(name: &str) -> EncodedItem {
    let command = group_command(name, subscription_group_command::Action::Upsert);
    item(command::SUBSCRIPTION_GROUP, &command)
}

pub(super) fn delete_group(name: &str) -> EncodedItem {
    let command = group_command(name, subscription_group_command::Action::Delete);
    item(command::SUBSCRIPTION_GROUP, &command)
}

pub(super) fn message(topic: u32, incarnation: u32, queue: u32, tag: &str, origin: Origin) -> EncodedItem {
    let mut properties = PropertiesBuilder::new();
    if !tag.is_empty() {
        properties.push("TAGS", tag).expect("a plain tag");
    }
    let host = SocketAddr::from(([127, 0, 0, 1], 8081));
    let record = RecordBuilder {
        queue_id: queue,
        flag: 0,
        system_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
        body: b"body",
        topic: "t",
        properties: &properties.finish(),
    };
    let trailer = Trailer { topic_id: topic, incarnation, origin };
    let record = record.encode().expect("within the limits");
    EncodedItem::new(command::MESSAGE, trailer.flags(), command::VERSION, &[&record, &trailer.encode()])
}

pub(super) fn native(producer_id: u64, epoch: u32, floor: u64, sequence: u64) -> Origin {
    Origin::Native(NativeSend { producer_id, epoch, floor, sequence })
}

pub(super) fn queue_ref(queue: u32) -> Option<QueueRef> {
    Some(QueueRef { topic_id: 1, incarnation: 1, queue })
}

pub(super) fn queue_id(queue: u32) -> QueueId {
    QueueId::new(1, 1, queue)
}

/// Hands out `taken` of queue 0 of topic 1 to `client` of group 1, for 1,000 ms.
pub(super) fn deliver(from: u64, to: u64, taken: &[u64], again: &[Redelivery]) -> DeliverCommand {
    DeliverCommand {
        group_id: 1,
        group_incarnation: 1,
        queue: queue_ref(0),
        expected_cursor: from,
        next_cursor: to,
        taken: taken.to_vec(),
        again: again.to_vec(),
        invisible_ms: 1_000,
        auto_renew: false,
        client_id: "client".to_owned(),
        attempt_id: String::new(),
    }
}

pub(super) fn ack(positions: &[(u64, u64)]) -> EncodedItem {
    let positions =
        positions.iter().map(|&(position, deliver_index)| AckPosition { position, deliver_index }).collect();
    let command = AckCommand { group_id: 1, group_incarnation: 1, queue: queue_ref(0), positions };
    item(command::ACK, &command)
}

pub(super) fn change(position: u64, deliver_index: u64, invisible_ms: u64) -> ChangeInvisibleCommand {
    ChangeInvisibleCommand {
        group_id: 1,
        group_incarnation: 1,
        queue: queue_ref(0),
        position,
        deliver_index,
        invisible_ms,
        renewal: false,
    }
}
