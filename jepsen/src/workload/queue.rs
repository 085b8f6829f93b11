//! W1: send; receive; ack most, let some expire, ack some twice. Two subscription groups, each must get everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;

use crate::body;
use crate::generator::{ProcessNumber, pause, stream};
use crate::history::Recorder;
use crate::history::record::{Ack, Call, Cause, Kind, Place, Process, Receive, Send};
use crate::wire::{Handed, Miss, Session, Target};

/// What the load looks like.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Marks the messages of this run.
    pub run: String,
    /// Seed of all streams.
    pub seed: u64,
    /// Nodes and their client addresses.
    pub nodes: Vec<(String, String)>,
    /// Topic and broker group.
    pub target: Target,
    /// Subscription groups.
    pub groups: Vec<String>,
    /// Sends per second of all senders together.
    pub rate: u32,
    /// Senders.
    pub senders: u64,
    /// Consumers of each group.
    pub consumers: u64,
    /// Invisible time of every receive.
    pub invisible: Duration,
}

impl Plan {
    fn workers(&self) -> u64 {
        self.senders + self.consumers * self.groups.len() as u64
    }
}

/// State that all workers of a phase share.
#[derive(Debug)]
struct Shared {
    plan: Plan,
    recorder: Recorder,
    stop: AtomicBool,
    /// Time of the newest message that came, in milliseconds since `started`, one per group.
    newest: Vec<AtomicU64>,
    started: Instant,
}

impl Shared {
    fn new(plan: Plan, recorder: Recorder) -> Self {
        let newest = plan.groups.iter().map(|_| AtomicU64::new(0)).collect();
        Self { plan, recorder, stop: AtomicBool::new(false), newest, started: Instant::now() }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// One logical client: its process number, its random numbers, its connection.
struct Worker {
    shared: Arc<Shared>,
    process: ProcessNumber,
    random: ChaCha8Rng,
    session: Option<(usize, Session)>,
    /// Clients of this worker so far; about every 30 s it starts again with a new one.
    generation: u64,
    counter: u64,
}

impl Worker {
    fn new(shared: &Arc<Shared>, phase: &str, index: u64, first_process: u64) -> Self {
        let plan = &shared.plan;
        let random = stream(plan.seed, &format!("{phase}-worker-{index}"));
        let process = ProcessNumber::new(first_process + index, plan.workers());
        Self { shared: Arc::clone(shared), process, random, session: None, generation: 0, counter: 0 }
    }

    /// The connection, made if there is none; with the node's name. Nothing is sent before it stands.
    async fn session(&mut self, node: usize) -> Result<&mut Session, Miss> {
        let plan = &self.shared.plan;
        if self.session.is_none() {
            let client_id = format!("jepsen-{}-{}-{}", plan.run, self.process.get(), self.generation);
            let session = Session::connect(&plan.nodes[node].1, &client_id, &plan.target).await?;
            self.session = Some((node, session));
        }
        match &mut self.session {
            Some((_, session)) => Ok(session),
            None => unreachable!("made above"),
        }
    }

    fn choose_node(&mut self) -> usize {
        let stay = self.random.random_bool(0.9);
        let fresh = self.random.random_range(0..self.shared.plan.nodes.len());
        match &self.session {
            Some((node, _)) if stay => *node,
            _ => {
                self.session = None;
                fresh
            }
        }
    }

    /// Writes begin and end around a call. `f` makes the record of the end from the answer.
    fn begin(&self, call: Call, node: usize) -> Process {
        let process = Process::Worker(self.process.get());
        let nodes = vec![self.shared.plan.nodes[node].0.clone()];
        self.shared.recorder.record(process, Kind::Invoke, call, nodes, None);
        process
    }

    fn end(&mut self, process: Process, kind: Kind, call: Call, node: usize, cause: Option<Cause>) {
        let nodes = vec![self.shared.plan.nodes[node].0.clone()];
        self.shared.recorder.record(process, kind, call, nodes, cause);
        if kind == Kind::Info {
            self.process.retire();
        }
        if kind != Kind::Ok {
            self.session = None;
        }
    }

    /// Takes down a call that is not OK, and waits a moment: the next one goes to another node.
    async fn missed(&mut self, process: Process, call: Call, node: usize, miss: Miss) {
        let (kind, cause) = match miss {
            Miss::Fail(cause) => (Kind::Fail, cause),
            Miss::Unknown(cause) => (Kind::Info, cause),
        };
        self.end(process, kind, call, node, Some(cause));
        let wait = self.random.random_range(20..120);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    async fn send(&mut self) -> bool {
        let node = self.choose_node();
        let mid = format!("{}-{}-{}", self.shared.plan.run, self.process.get(), self.counter);
        self.counter += 1;
        let filling = if self.random.random_bool(0.05) { 60_000 } else { self.random.random_range(0..1_500) };
        let body = body::make(&mid, filling);
        let call = |place| Call::Send(Send { mid: mid.clone(), place });
        let process = self.begin(call(None), node);
        let sent = match self.session(node).await {
            Ok(session) => session.send(&mid, body).await,
            Err(miss) => Err(miss),
        };
        match sent {
            Ok(offset) => {
                self.end(process, Kind::Ok, call(Some(Place { queue: None, offset })), node, None);
                true
            }
            Err(miss) => {
                self.missed(process, call(None), node, miss).await;
                false
            }
        }
    }

    async fn receive(&mut self, group: usize) -> Vec<Handed> {
        let node = self.choose_node();
        let (name, invisible) = (self.shared.plan.groups[group].clone(), self.shared.plan.invisible);
        let invisible_ms = u64::try_from(invisible.as_millis()).unwrap_or(u64::MAX);
        let call =
            |messages, cut| Call::Receive(Receive { group: name.clone(), invisible_ms, messages, cut });
        let process = self.begin(call(Vec::new(), false), node);
        let came = match self.session(node).await {
            Ok(session) => session.receive(&name, 16, invisible).await,
            Err(miss) => Err(miss),
        };
        match came {
            Ok(answer) => {
                if answer.cut || !answer.messages.is_empty() {
                    self.shared.newest[group].store(self.shared.elapsed_ms(), Ordering::Relaxed);
                }
                let deliveries = answer.messages.iter().map(|message| message.delivery.clone()).collect();
                self.end(process, Kind::Ok, call(deliveries, answer.cut), node, None);
                answer.messages
            }
            Err(miss) => {
                // An answer that nobody saw may have taken messages: they come again one invisible time later.
                self.shared.newest[group].store(self.shared.elapsed_ms(), Ordering::Relaxed);
                self.missed(process, call(Vec::new(), false), node, miss).await;
                Vec::new()
            }
        }
    }

    async fn ack(&mut self, group: usize, message: &Handed) {
        let node = self.choose_node();
        let group = self.shared.plan.groups[group].clone();
        let (mid, attempt) = (message.delivery.mid.clone(), message.delivery.attempt);
        let call = Call::Ack(Ack { group: group.clone(), mid, attempt });
        let process = self.begin(call.clone(), node);
        let acked = match self.session(node).await {
            Ok(session) => session.ack(&group, message).await,
            Err(miss) => Err(miss),
        };
        match acked {
            Ok(()) => self.end(process, Kind::Ok, call, node, None),
            Err(miss) => self.missed(process, call, node, miss).await,
        }
    }

    /// About every 30 s the client object is thrown away.
    fn crash_sometimes(&mut self, since: &mut Instant) {
        if since.elapsed() > Duration::from_secs(30) {
            *since = Instant::now();
            self.session = None;
            self.generation += 1;
        }
    }

    async fn send_loop(mut self) {
        let plan = &self.shared.plan;
        let mean = Duration::from_secs(1) * u32::try_from(plan.senders).unwrap_or(1) / plan.rate.max(1);
        let (mut due, mut born) = (Instant::now(), Instant::now());
        while !self.shared.stopped() {
            due += pause(&mut self.random, mean);
            // After an outage the load goes on from now instead of catching up.
            due = due.max(Instant::now() - 4 * mean);
            tokio::time::sleep_until(due.into()).await;
            self.send().await;
            self.crash_sometimes(&mut born);
        }
    }

    /// `settle_all`: acks everything (final phase); else 8 % expire, 2 % are acked twice, 2 % crash before the ack.
    async fn consume_loop(mut self, group: usize, settle_all: bool) {
        let mut born = Instant::now();
        while !self.shared.stopped() {
            for message in self.receive(group).await {
                let choice: u32 = if settle_all { 0 } else { self.random.random_range(0..100) };
                match choice {
                    0..88 => self.ack(group, &message).await,
                    88..90 => {
                        self.ack(group, &message).await;
                        self.ack(group, &message).await;
                    }
                    90..92 => {
                        self.session = None;
                        self.generation += 1;
                    }
                    _ => {}
                }
            }
            self.crash_sometimes(&mut born);
        }
    }
}

/// A running load.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Senders and consumers of the main phase; process numbers from `first_process`.
    pub fn main(plan: &Plan, recorder: &Recorder) -> Self {
        let shared = Arc::new(Shared::new(plan.clone(), recorder.clone()));
        let mut tasks = JoinSet::new();
        for index in 0..plan.senders {
            tasks.spawn(Worker::new(&shared, "main", index, 0).send_loop());
        }
        for (group, index) in consumers(plan) {
            tasks.spawn(Worker::new(&shared, "main", plan.senders + index, 0).consume_loop(group, false));
        }
        Self { shared, tasks }
    }

    /// Fresh consumers that settle everything they get.
    pub fn drain(plan: &Plan, recorder: &Recorder, first_process: u64) -> Self {
        let shared = Arc::new(Shared::new(plan.clone(), recorder.clone()));
        let mut tasks = JoinSet::new();
        for (group, index) in consumers(plan) {
            let worker = Worker::new(&shared, "final", plan.senders + index, first_process);
            tasks.spawn(worker.consume_loop(group, true));
        }
        Self { shared, tasks }
    }

    /// Waits until no group got anything for `quiet`; false when that does not happen within `limit`.
    pub async fn await_quiet(&self, quiet: Duration, limit: Duration) -> bool {
        let quiet = u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX);
        while self.shared.started.elapsed() < limit {
            let now = self.shared.elapsed_ms();
            if self
                .shared
                .newest
                .iter()
                .all(|newest| now.saturating_sub(newest.load(Ordering::Relaxed)) > quiet)
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        false
    }

    /// Sends so many messages, one after the other, beside a running drain; returns how many were confirmed.
    pub async fn send(&self, count: u64, first_process: u64) -> u64 {
        let mut worker = Worker::new(&self.shared, "probe", 0, first_process);
        let mut confirmed = 0;
        for _ in 0..count {
            confirmed += u64::from(worker.send().await);
        }
        confirmed
    }

    /// Ends all workers after their present call.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(())
    }
}

/// (group, number of the consumer) for all consumers.
fn consumers(plan: &Plan) -> impl Iterator<Item = (usize, u64)> + '_ {
    let groups = plan.groups.len() as u64;
    (0..plan.consumers * groups).map(move |index| (usize::try_from(index % groups).unwrap_or(0), index))
}
