//! Three nodes in this process that answer as brokers of one group do, and do what a test's script says.
//!
//! They store what they are told to store, recognise repeats by (producer, epoch, sequence), and record every call.

mod admin;
pub mod services;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mq_client::{Client, ClientBuilder};
use mq_protocol::cluster::broker_admin_server::BrokerAdminServer;
use mq_protocol::headers::ProducerNumbers;
use mq_protocol::v2::messaging_service_server::MessagingServiceServer;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

pub const GROUP: &str = "broker-a";
pub const TOPIC: &str = "demo";

/// What the leader does with the next send.
#[derive(Debug, Clone)]
pub enum Step {
    /// Stores nothing, answers this code, with this reason.
    Refuse(i32, Option<&'static str>),
    /// Stores, then the call breaks.
    StoreAndBreak,
    /// Stores, then answers this code.
    StoreAndSay(i32),
    /// Stores nothing, the call breaks.
    Break,
    /// Stores nothing and never answers.
    Hang,
    /// Answers a request of several messages with this code for its second one, the others stored.
    RefuseSecond(i32),
    /// Refuses with this code as long as the request has more than one message.
    RefuseSeveral(i32),
    /// Takes this long, then stores.
    Slow(Duration),
    /// Waits for [`Standin::release`], then stores.
    Held,
}

/// A send as a node saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub node: usize,
    pub numbers: ProducerNumbers,
    pub no_forward: bool,
    pub client_id: String,
    pub bodies: Vec<String>,
    pub queues: Vec<i32>,
}

impl Seen {
    pub fn sequences(&self) -> std::ops::Range<u64> {
        self.numbers.first_sequence..self.numbers.first_sequence + self.bodies.len() as u64
    }
}

#[derive(Debug, Default)]
pub struct State {
    pub leader: usize,
    pub term: u64,
    /// What a node that does not lead names; the leader by default.
    pub hint: Option<usize>,
    /// What routes name; the leader by default.
    pub route: Option<usize>,
    pub script: VecDeque<Step>,
    pub released: bool,
    pub seen: Vec<Seen>,
    pub routes_asked: usize,
    pub statuses_asked: usize,
    /// Bodies by offset.
    pub log: Vec<String>,
    results: HashMap<(u64, u32, u64), i64>,
    pub receive: VecDeque<services::ReceiveStep>,
    pub acks: VecDeque<i32>,
    /// Codes of changes of the invisible time; 20000 when there is none.
    pub changes: VecDeque<i32>,
    pub acked: Vec<String>,
    /// Codes of the next administrative changes; OK when there is none.
    pub admin: VecDeque<i32>,
    pub topics: Vec<mq_protocol::cluster::TopicInfo>,
    pub groups: Vec<mq_protocol::cluster::SubscriptionGroupInfo>,
    /// The member whose digest differs from the others'.
    pub differs: Option<usize>,
    addresses: Vec<String>,
}

impl State {
    fn store(&mut self, numbers: ProducerNumbers, sequence: u64, body: String) -> i64 {
        let next = i64::try_from(self.log.len()).expect("a short log");
        let key = (numbers.producer_id, numbers.epoch, sequence);
        let offset = *self.results.entry(key).or_insert(next);
        if offset == next {
            self.log.push(body);
        }
        offset
    }
}

pub struct Standin {
    pub state: Arc<Mutex<State>>,
    nodes: Vec<Option<Runtime>>,
}

impl Standin {
    /// Three nodes; the first one leads in term 1.
    pub fn start() -> Self {
        Self::with_nodes(3)
    }

    pub fn with_nodes(count: usize) -> Self {
        let state = Arc::new(Mutex::new(State { term: 1, ..State::default() }));
        let nodes = (0..count).map(|node| Some(start_node(&state, node))).collect();
        Self { state, nodes }
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn address(&self, node: usize) -> String {
        self.state.lock().addresses[node].clone()
    }

    pub fn client(&self) -> Client {
        self.builder().build().expect("addresses are right")
    }

    pub fn builder(&self) -> ClientBuilder {
        let addresses = self.state.lock().addresses.clone();
        Client::builder().brokers(addresses)
    }

    pub fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.state.lock().script.extend(steps);
    }

    pub fn lead(&self, node: usize, term: u64) {
        let mut state = self.state.lock();
        (state.leader, state.term) = (node, term);
    }

    /// Ends a node as SIGKILL does: its port is closed and its connections break.
    pub fn kill(&mut self, node: usize) {
        if let Some(runtime) = self.nodes[node].take() {
            runtime.shutdown_background();
        }
    }

    /// Lets those go on that are [`Step::Held`].
    pub fn release(&self) {
        self.state.lock().released = true;
    }

    /// Waits until this many sends have arrived.
    pub async fn arrived(&self, count: usize) {
        while self.state.lock().seen.len() < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }
}

fn start_node(state: &Arc<Mutex<State>>, node: usize) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime for a node");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    state.lock().addresses.push(listener.local_addr().expect("bound").to_string());
    listener.set_nonblocking(true).expect("a setting of every socket");
    let services = services::Node { id: node, state: Arc::clone(state) };
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listening socket");
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let messaging = MessagingServiceServer::new(services.clone()).max_decoding_message_size(16 << 20);
        tonic::transport::Server::builder()
            .add_service(messaging)
            .add_service(BrokerAdminServer::new(services))
            .serve_with_incoming(incoming)
            .await
    });
    runtime
}
