//! One broker group as this process takes part in it: its Raft group, the read side of its state, its consumer.
//!
//! Answers are decided on the leader. A name that the leader does not know is looked up again behind a read barrier
//! before "unknown" is said, because a deposed leader may not have heard of it yet.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use bytes::Bytes;
use mq_protocol::cluster::{
    ItemResult, SubscriptionGroupCommand, TopicCommand, item_result, subscription_group_command,
    topic_command,
};
use mq_protocol::command;
use mq_raft::{Leadership, RaftGroup, ReadError};
use mq_store::Term;
use mq_store::item::EncodedItem;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{Semaphore, watch};

use crate::consume::Consumer;
use crate::disk::DiskRoom;
use crate::error::BrokerError;
use crate::state::{DEFAULT_QUEUES, StateView, SubscriptionGroup, Topic};

/// What exists once the group is formed and its state is open.
#[derive(Clone)]
pub struct Open {
    /// Read side of the state.
    pub view: StateView,
    /// Picks, reservations, acks.
    pub consumer: Arc<Consumer>,
}

/// One broker group of this process.
pub struct BrokerGroup {
    /// `brokerName`.
    pub name: String,
    /// The replicated log.
    pub raft: RaftGroup,
    /// Bytes of sends that wait for their commit: permits, one per byte.
    pub in_flight: Arc<Semaphore>,
    /// The permits that `in_flight` began with.
    pub in_flight_max: u64,
    /// Room on this node's disk; one for all groups of the process.
    pub disk: Arc<DiskRoom>,
    /// The newest leader's address for clients; kept while there is no leader.
    last_leader: Mutex<Option<String>>,
    /// Whose turn it is among the queues of a topic (leader's memory; the log decides the offsets).
    pub turn: AtomicU32,
    open: OnceLock<Open>,
}

impl std::fmt::Debug for BrokerGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerGroup").field("name", &self.name).finish_non_exhaustive()
    }
}

impl BrokerGroup {
    /// A group that has not opened its state yet.
    pub fn new(name: String, raft: RaftGroup, in_flight_bytes_max: u64, disk: Arc<DiskRoom>) -> Self {
        let permits = usize::try_from(in_flight_bytes_max).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            name,
            raft,
            in_flight: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            in_flight_max: in_flight_bytes_max,
            disk,
            last_leader: Mutex::new(None),
            turn: AtomicU32::new(0),
            open: OnceLock::new(),
        }
    }

    /// Called once, when the state is open.
    pub fn opened(&self, open: Open) {
        let first = self.open.set(open).is_ok();
        debug_assert!(first, "the state of a group opens once");
    }

    /// The state, or "no leader yet" while the group is not formed.
    pub fn open(&self) -> Result<&Open, BrokerError> {
        self.open.get().ok_or(BrokerError::NotLeader { leader: None })
    }

    /// Who leads.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.raft.leadership()
    }

    /// Where clients reach the leader: the present one, else the last one that was seen.
    pub fn leader_client_address(&self) -> Option<String> {
        let present =
            self.raft.leadership().borrow().leader.as_ref().map(|leader| leader.client_address.clone());
        let mut last = self.last_leader.lock();
        if let Some(present) = present.filter(|address| !address.is_empty()) {
            *last = Some(present);
        }
        last.clone()
    }

    /// True while this node leads the group and may serve.
    pub fn leads(&self) -> bool {
        let leadership = self.raft.leadership();
        let leadership = leadership.borrow();
        leadership.me && leadership.ready
    }

    /// What is known here of a topic; may be behind the leader.
    pub fn topic(&self, namespace: &str, name: &str) -> Option<Arc<Topic>> {
        self.open.get()?.view.topic(namespace, name)
    }

    /// What is known here of a subscription group; may be behind the leader.
    pub fn subscription_group(&self, namespace: &str, name: &str) -> Option<Arc<SubscriptionGroup>> {
        self.open.get()?.view.group(namespace, name)
    }

    /// The topic, made now when `create` is set. "Unknown" is said only after a read barrier.
    pub async fn require_topic(&self, call: Lookup<'_>) -> Result<Arc<Topic>, BrokerError> {
        let view = &self.open()?.view;
        if let Some(topic) = view.topic(call.namespace, call.name) {
            return Ok(topic);
        }
        self.barrier(call.deadline).await?;
        if let Some(topic) = view.topic(call.namespace, call.name) {
            return Ok(topic);
        }
        if call.create {
            let command = TopicCommand {
                action: topic_command::Action::Create as i32,
                namespace: call.namespace.to_owned(),
                name: call.name.to_owned(),
                queues: Some(DEFAULT_QUEUES),
                ..TopicCommand::default()
            };
            self.put_topic(&command, call.term, call.deadline).await?;
        }
        let topic = view.topic(call.namespace, call.name);
        topic.ok_or_else(|| BrokerError::UnknownTopic { topic: call.name.to_owned() })
    }

    /// The subscription group, made now when `create` is set.
    pub async fn require_subscription_group(
        &self,
        call: Lookup<'_>,
    ) -> Result<Arc<SubscriptionGroup>, BrokerError> {
        let view = &self.open()?.view;
        if let Some(group) = view.group(call.namespace, call.name) {
            return Ok(group);
        }
        self.barrier(call.deadline).await?;
        if let Some(group) = view.group(call.namespace, call.name) {
            return Ok(group);
        }
        if call.create {
            let command = SubscriptionGroupCommand {
                action: subscription_group_command::Action::Create as i32,
                namespace: call.namespace.to_owned(),
                name: call.name.to_owned(),
                ..SubscriptionGroupCommand::default()
            };
            self.put_subscription_group(&command, call.term, call.deadline).await?;
        }
        let group = view.group(call.namespace, call.name);
        group.ok_or_else(|| BrokerError::UnknownGroup { group: call.name.to_owned() })
    }

    /// Proposes a topic command. Done = on a majority's disks and visible here.
    pub async fn put_topic(
        &self,
        command: &TopicCommand,
        term: Term,
        deadline: Instant,
    ) -> Result<ItemResult, BrokerError> {
        let item = encode_command(command::TOPIC, command);
        self.propose_one(item, &command.name, term, deadline).await
    }

    /// Proposes a subscription group command. Done = on a majority's disks and visible here.
    pub async fn put_subscription_group(
        &self,
        command: &SubscriptionGroupCommand,
        term: Term,
        deadline: Instant,
    ) -> Result<ItemResult, BrokerError> {
        let item = encode_command(command::SUBSCRIPTION_GROUP, command);
        self.propose_one(item, &command.name, term, deadline).await
    }

    /// Proposes one item and reads its result; `name` is what errors are about. `Exists` is a result, not an error.
    pub async fn propose_one(
        &self,
        item: EncodedItem,
        name: &str,
        term: Term,
        deadline: Instant,
    ) -> Result<ItemResult, BrokerError> {
        let proposed = self.raft.propose(term, vec![item], deadline).await?;
        let result = decode_result(proposed.results.first())?;
        if result.code() == item_result::Code::Exists {
            return Ok(result);
        }
        match BrokerError::from_result(&result, name) {
            Some(error) => Err(error),
            None => Ok(result),
        }
    }

    /// Everything that was answered before this call is visible here when it returns.
    pub async fn barrier(&self, deadline: Instant) -> Result<(), BrokerError> {
        match self.raft.read_barrier(deadline).await {
            Ok(_) => Ok(()),
            Err(ReadError::NotLeader { leader }) => Err(BrokerError::NotLeader { leader }),
            // A read has no outcome to be unsure of: nothing was proposed.
            Err(ReadError::NoQuorum | ReadError::Deadline) => Err(BrokerError::NoQuorum),
            Err(ReadError::Stopped) => Err(BrokerError::Stopped),
        }
    }
}

/// A name that a call needs.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// Tenant prefix; mostly empty.
    pub namespace: &'a str,
    /// Name of the topic or group.
    pub name: &'a str,
    /// Make it when it is not there.
    pub create: bool,
    /// The term in which the call is served.
    pub term: Term,
    /// The caller waits until here.
    pub deadline: Instant,
}

/// A command as an item of the log.
pub fn encode_command(kind: u8, command: &impl prost::Message) -> EncodedItem {
    EncodedItem::new(kind, 0, command::VERSION, &[&command.encode_to_vec()])
}

/// The result that apply answered for an item.
pub fn decode_result(result: Option<&Bytes>) -> Result<ItemResult, BrokerError> {
    let bytes = result.ok_or_else(|| BrokerError::Internal { detail: "apply gave no result".into() })?;
    ItemResult::decode(bytes.clone())
        .map_err(|error| BrokerError::Internal { detail: format!("result of apply: {error}") })
}

/// The broker groups of this process.
#[derive(Debug, Default)]
pub struct Groups {
    all: Vec<Arc<BrokerGroup>>,
}

impl Groups {
    /// In the order of the settings.
    pub fn new(all: Vec<Arc<BrokerGroup>>) -> Self {
        Self { all }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<BrokerGroup>> {
        self.all.iter()
    }

    /// The one of that name.
    pub fn named(&self, name: &str) -> Option<&Arc<BrokerGroup>> {
        self.all.iter().find(|group| group.name == name)
    }

    /// The only one, when the process has exactly one.
    pub fn only(&self) -> Option<&Arc<BrokerGroup>> {
        match self.all.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Where a send or receive for a topic goes: a group with the topic that this node leads (clients come here
    /// because the route named this node), else any with the topic.
    pub fn with_topic(&self, namespace: &str, name: &str) -> Option<&Arc<BrokerGroup>> {
        let mut found = None;
        for group in self.all.iter().filter(|group| group.topic(namespace, name).is_some()) {
            if group.leads() {
                return Some(group);
            }
            found = found.or(Some(group));
        }
        found
    }

    /// The group to ask when no group here knows the topic: one that another node leads, whose leader may know
    /// more; else the first, which decides about "unknown" or makes it.
    pub fn to_ask(&self) -> Option<&Arc<BrokerGroup>> {
        self.all.iter().find(|group| !group.leads()).or(self.all.first())
    }
}
