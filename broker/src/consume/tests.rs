//! Receives, acks and restarts on a broker group of one member.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::cluster::{
    ItemResult, SubscriptionGroupCommand, TopicCommand, item_result::Code, subscription_group_command,
    topic_command,
};
use mq_protocol::convert::{Arrival, encode_message};
use mq_protocol::message::{Origin, Trailer};
use mq_protocol::{command, v2};
use mq_raft::{Deps, GroupConfig, Limits, MemberConfig, RaftGroup, Role, Timers, Transport};
use mq_runtime::clock::SystemClock;
use mq_runtime::random::Random;
use mq_store::item::EncodedItem;
use mq_store::{Backend, OsFileSystem};
use prost::Message;

use super::{Consumer, Delivered, Filter, Receive, Subscription};
use crate::error::BrokerError;
use crate::state::{self, StateView};

const SUBSCRIPTION: Subscription<'static> = Subscription { namespace: "", group: "g", topic: "t" };

/// A broker group of one member in a folder.
struct Node {
    transport: Arc<Transport>,
    raft: RaftGroup,
    view: StateView,
    consumer: Arc<Consumer>,
}

impl Node {
    async fn start(dir: &Path) -> Self {
        let transport = Transport::bind("127.0.0.1:0").await.expect("a free port");
        let address = transport.local_addr().to_string();
        let member = MemberConfig {
            id: 1,
            node: "b1".to_owned(),
            raft_address: address.clone(),
            api_address: address.clone(),
            client_address: address,
            role: Role::Data,
        };
        let config = GroupConfig {
            cluster: "c".to_owned(),
            group: "broker-a".to_owned(),
            node_name: "b1".to_owned(),
            members: vec![member],
            dir: dir.to_path_buf(),
            segment_size: 64 << 20,
            frame_limit: 8 << 20,
            timers: Timers::test(),
            limits: Limits::default(),
        };
        let (view_out, view) = tokio::sync::oneshot::channel();
        let opened = parking_lot::Mutex::new((Some(view_out), None::<StateView>));
        let make_apply: mq_raft::MakeApply = Arc::new(move |deps| {
            let mut opened = opened.lock();
            if let Some(view) = &opened.1 {
                return Ok(Box::new(state::reopen(deps, Backend::Memory, view)?));
            }
            let (apply, view) = state::open(deps, Backend::Memory)?;
            opened.1 = Some(view.clone());
            let view_out = opened.0.take().expect("opened for the first time");
            view_out.send(view).expect("the test waits");
            Ok(Box::new(apply))
        });
        let deps = Deps {
            fs: Arc::new(OsFileSystem),
            clock: Arc::new(SystemClock::new()),
            random: Random::from_os(),
            on_fatal: Arc::new(|fatal| panic!("{fatal}")),
        };
        let raft = RaftGroup::start(config, Arc::clone(&transport), deps, make_apply).await.expect("starts");
        let view: StateView = view.await.expect("opened");
        let consumer = Consumer::new("broker-a", raft.clone(), view.clone());
        let node = Self { transport, raft, view, consumer };
        let mut leadership = node.raft.leadership();
        let ready = leadership.wait_for(|leadership| leadership.me && leadership.ready);
        let ready = tokio::time::timeout(Duration::from_secs(20), ready).await;
        drop(ready.expect("leads within 20 s").expect("runs"));
        node
    }

    async fn stop(self) {
        self.raft.shutdown().await;
        self.transport.stop().await;
    }

    /// Dies without a word: no checkpoint, no handover.
    async fn kill(self) {
        self.raft.kill().await;
        self.transport.stop().await;
    }

    /// Proposes until it is in the log: a disk that hangs for seconds, as on a loaded test machine, is answered by
    /// refusals.
    async fn propose(&self, items: Vec<EncodedItem>) -> Vec<ItemResult> {
        let until = soon(30_000);
        loop {
            let term = self.raft.leadership().borrow().term;
            match self.raft.propose(term, items.clone(), until).await {
                Ok(proposed) => {
                    let results = proposed.results.iter().map(|bytes| ItemResult::decode(bytes.clone()));
                    return results.map(|result| result.expect("own result")).collect();
                }
                Err(error) if error.certainly_not_stored() && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("one member is a majority: {error}"),
            }
        }
    }

    async fn with_topic(dir: &Path, queues: u32) -> Self {
        let node = Self::start(dir).await;
        let topic = TopicCommand {
            action: topic_command::Action::Create as i32,
            name: "t".to_owned(),
            queues: Some(queues),
            ..TopicCommand::default()
        };
        let group = SubscriptionGroupCommand {
            action: subscription_group_command::Action::Create as i32,
            name: "g".to_owned(),
            ..SubscriptionGroupCommand::default()
        };
        let items = vec![
            EncodedItem::new(command::TOPIC, 0, 1, &[&topic.encode_to_vec()]),
            EncodedItem::new(command::SUBSCRIPTION_GROUP, 0, 1, &[&group.encode_to_vec()]),
        ];
        assert!(node.propose(items).await.iter().all(|result| result.code() == Code::Ok));
        node
    }

    async fn send(&self, messages: impl IntoIterator<Item = (u32, &str, String)>) {
        let items = messages.into_iter().map(|(queue, tag, body)| message(queue, tag, body)).collect();
        assert!(self.propose(items).await.iter().all(|result| result.code() == Code::Ok));
    }

    async fn receive(&self, receive: Receive) -> Vec<Delivered> {
        let until = soon(30_000);
        loop {
            match self.consumer.receive(receive.clone()).await {
                // Nothing was handed out; see `propose`.
                Err(BrokerError::NotLeader { .. }) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                outcome => return outcome.expect("received"),
            }
        }
    }

    async fn ack(&self, handles: &[&str]) -> Vec<Result<(), BrokerError>> {
        let handles: Vec<_> = handles.iter().map(|handle| (*handle).to_owned()).collect();
        let until = soon(30_000);
        loop {
            match self.consumer.ack(SUBSCRIPTION, handles.clone(), until).await {
                Err(BrokerError::NotLeader { .. }) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                outcome => return outcome.expect("acked"),
            }
        }
    }
}

fn soon(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

fn message(queue: u32, tag: &str, body: String) -> EncodedItem {
    let host = SocketAddr::from(([127, 0, 0, 1], 8081));
    let system = v2::SystemProperties {
        tag: (!tag.is_empty()).then(|| tag.to_owned()),
        message_id: body.clone(),
        ..v2::SystemProperties::default()
    };
    let message = v2::Message {
        topic: Some(v2::Resource { resource_namespace: String::new(), name: "t".to_owned() }),
        system_properties: Some(system),
        body: body.into_bytes().into(),
        ..v2::Message::default()
    };
    let arrival = Arrival { queue_id: queue, received_ms: 1, peer: host, store_host: host };
    let trailer = Trailer { topic_id: 1, incarnation: 1, origin: Origin::Anonymous };
    let encoded = encode_message(&message, &arrival, &trailer).expect("within the limits");
    EncodedItem::new(command::MESSAGE, encoded.flags, 1, &encoded.parts())
}

/// A receive of up to 32 messages for 30 s that waits for `poll_ms`.
fn poll(poll_ms: u64) -> Receive {
    Receive {
        namespace: String::new(),
        group: "g".to_owned(),
        topic: "t".to_owned(),
        filter: Filter::all(),
        batch: 32,
        invisible: Some(Duration::from_secs(30)),
        auto_renew: false,
        client_id: "client".to_owned(),
        attempt_id: String::new(),
        poll_until: soon(poll_ms),
        deadline: soon(poll_ms + 10_000),
    }
}

fn bodies(delivered: &[Delivered]) -> Vec<String> {
    let body = |one: &Delivered| String::from_utf8(one.message.body.to_vec()).expect("text");
    delivered.iter().map(body).collect()
}

fn system(delivered: &Delivered) -> &v2::SystemProperties {
    delivered.message.system_properties.as_ref().expect("always there")
}

fn handle(delivered: &Delivered) -> &str {
    system(delivered).receipt_handle()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_receives_never_overlap() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 4).await;
    node.send((0..400).map(|number| (number % 4, "", number.to_string()))).await;
    let shared = &node;
    let one = || async move {
        let mut got = Vec::new();
        loop {
            let delivered = shared.receive(Receive { batch: 7, ..poll(300) }).await;
            if delivered.is_empty() {
                return got;
            }
            got.extend(delivered);
        }
    };
    let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
    let all: Vec<Delivered> = [a, b, c, d].concat();
    assert_eq!(all.len(), 400, "each message once");
    assert_eq!(bodies(&all).into_iter().collect::<BTreeSet<_>>().len(), 400);
    assert!(all.iter().all(|one| system(one).delivery_attempt() == 1));
    let mut places = BTreeMap::<i32, BTreeSet<i64>>::new();
    for one in &all {
        places.entry(system(one).queue_id).or_default().insert(system(one).queue_offset());
    }
    assert!(places.values().all(|queue| queue.iter().copied().eq(0..100)), "{places:?}");
    assert_eq!(node.view.in_flight(), 400);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacked_message_comes_again_with_attempt_2_and_the_old_handle_is_stale() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 2).await;
    node.send([(0, "", "m".to_owned())]).await;
    let short = || Receive { invisible: Some(Duration::from_millis(600)), ..poll(5_000) };
    let first = node.receive(short()).await;
    assert_eq!(bodies(&first), ["m"]);
    let at = Instant::now();
    let second = node.receive(short()).await;
    let after = at.elapsed();
    assert_eq!(bodies(&second), ["m"]);
    assert_eq!(system(&second[0]).delivery_attempt(), 2);
    assert!(after >= Duration::from_millis(500), "not before its time: {after:?}");
    assert!(after < Duration::from_millis(1_600), "within a second of its time: {after:?}");
    assert_eq!(system(&second[0]).queue_offset(), 0, "at its place");
    assert_ne!(handle(&first[0]), handle(&second[0]));
    let stale = node.ack(&[handle(&first[0])]).await;
    assert!(matches!(stale[0], Err(BrokerError::InvalidHandle { .. })), "{stale:?}");
    assert!(node.ack(&[handle(&second[0])]).await[0].is_ok());
    assert!(node.ack(&[handle(&second[0])]).await[0].is_ok(), "again: still OK");
    assert!(node.receive(poll(800)).await.is_empty(), "settled");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_receive_gets_what_another_did_not_settle_within_its_poll() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 2).await;
    let short = || Receive { invisible: Some(Duration::from_secs(2)), ..poll(12_000) };
    let receive = || async { (node.receive(short()).await, Instant::now()) };
    let sending = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        node.send([(0, "", "m".to_owned())]).await;
    };
    let (one, other, ()) = tokio::join!(receive(), receive(), sending);
    let (first, second) = if one.1 < other.1 { (one, other) } else { (other, one) };
    assert_eq!((bodies(&first.0), bodies(&second.0)), (vec!["m".to_owned()], vec!["m".to_owned()]));
    assert_eq!(system(&first.0[0]).delivery_attempt(), 1);
    assert_eq!(system(&second.0[0]).delivery_attempt(), 2);
    let after = second.1 - first.1;
    assert!((1_500..3_000).contains(&after.as_millis()), "at its invisible end: {after:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_and_deliveries_survive_stop_and_kill() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut node = Node::with_topic(dir.path(), 2).await;
    node.send((0..6).map(|number| (number % 2, "", number.to_string()))).await;
    let mut acked = BTreeSet::new();
    for round in 0..2 {
        let delivered = node.receive(Receive { batch: 2, ..poll(2_000) }).await;
        assert_eq!(delivered.len(), 2, "round {round}");
        let handles: Vec<_> = delivered.iter().map(handle).collect();
        assert!(node.ack(&handles).await.iter().all(Result::is_ok));
        acked.extend(bodies(&delivered));
        if round == 0 {
            node.stop().await;
        } else {
            node.kill().await;
        }
        node = Node::start(dir.path()).await;
    }
    let held = node.receive(Receive { batch: 1, ..poll(2_000) }).await;
    node.kill().await;
    let node = Node::start(dir.path()).await;
    let rest = node.receive(poll(2_000)).await;
    assert_eq!(rest.len(), 1, "what another has is not handed out");
    let all: BTreeSet<_> = bodies(&rest).into_iter().chain(bodies(&held)).chain(acked).collect();
    assert_eq!(all.len(), 6);
    assert!(node.ack(&[handle(&held[0])]).await[0].is_ok(), "the handle outlives the process");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_that_are_not_ours_are_refused_one_by_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 1).await;
    node.send((0..2).map(|number| (0, "", number.to_string()))).await;
    let delivered = node.receive(poll(2_000)).await;
    let changed = node.consumer.change_invisible(
        SUBSCRIPTION,
        handle(&delivered[1]),
        Duration::from_secs(60),
        soon(5_000),
    );
    let changed = changed.await.expect("changed");
    let outcomes = node.ack(&["foreign", handle(&delivered[0]), handle(&delivered[1]), &changed, ""]).await;
    let ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [false, true, false, true, false], "{outcomes:?}");
    let elsewhere = Subscription { topic: "other", ..SUBSCRIPTION };
    let unknown = node.consumer.ack(elsewhere, vec![changed.clone()], soon(5_000)).await;
    assert!(matches!(unknown, Err(BrokerError::UnknownTopic { .. })), "{unknown:?}");
    let stale = node.consumer.change_invisible(SUBSCRIPTION, &changed, Duration::ZERO, soon(5_000)).await;
    assert!(matches!(stale, Err(BrokerError::InvalidHandle { .. })), "{stale:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_to_zero_makes_visible_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 1).await;
    node.send([(0, "", "m".to_owned())]).await;
    let first = node.receive(poll(2_000)).await;
    let waiting = node.receive(poll(5_000));
    let changing = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let change =
            node.consumer.change_invisible(SUBSCRIPTION, handle(&first[0]), Duration::ZERO, soon(5_000));
        change.await.expect("changed");
        Instant::now()
    };
    let (again, changed) = tokio::join!(waiting, changing);
    assert_eq!(system(&again[0]).delivery_attempt(), 2);
    assert!(changed.elapsed() < Duration::from_secs(1), "{:?}", changed.elapsed());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_receive_is_woken_by_a_matching_message_behind_many_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 2).await;
    let waiting =
        node.receive(Receive { filter: Filter::tags("yes || never").expect("two tags"), ..poll(10_000) });
    let sending = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for block in 0..5 {
            node.send((0..1_000).map(|number| (0, "no", format!("{block}-{number}")))).await;
        }
        node.send([(0, "yes", "wanted".to_owned())]).await;
        Instant::now()
    };
    let (delivered, sent) = tokio::join!(waiting, sending);
    assert_eq!(bodies(&delivered), ["wanted"]);
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    assert!(node.receive(poll(300)).await.is_empty(), "what was passed over never comes to this group");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_messages_of_other_tags_are_passed_over_within_the_poll() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 1).await;
    // "Aa" and "BB" have the same hash: the record decides.
    node.send([(0, "BB", "0".to_owned()), (0, "", "1".to_owned())]).await;
    let filter = Filter::tags("Aa").expect("a tag");
    assert!(node.receive(Receive { filter: filter.clone(), ..poll(700) }).await.is_empty());
    assert!(node.receive(poll(300)).await.is_empty(), "the cursor went on");
    node.send([(0, "Aa", "2".to_owned())]).await;
    assert_eq!(bodies(&node.receive(Receive { filter, ..poll(2_000) }).await), ["2"]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_goes_away_frees_its_renewed_deliveries() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 1).await;
    node.send([(0, "", "m".to_owned())]).await;
    let gone = Receive { auto_renew: true, invisible: None, client_id: "gone".to_owned(), ..poll(2_000) };
    let first = node.receive(gone).await;
    let granted = system(&first[0]).invisible_duration.expect("granted");
    assert_eq!(granted.seconds, 60);
    node.consumer.client_gone("somebody else", soon(5_000)).await.expect("nothing to do");
    let at = Instant::now();
    node.consumer.client_gone("gone", soon(5_000)).await.expect("applied");
    let again = node.receive(poll(5_000)).await;
    assert_eq!(bodies(&again), ["m"]);
    let after = at.elapsed();
    assert!((800..2_500).contains(&after.as_millis()), "{after:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_poll_ends_in_time_and_unknown_names_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 1).await;
    let at = Instant::now();
    assert!(node.receive(poll(400)).await.is_empty());
    assert!((380..900).contains(&at.elapsed().as_millis()), "{:?}", at.elapsed());
    let unknown = node.consumer.receive(Receive { topic: "x".to_owned(), ..poll(5_000) }).await;
    assert!(matches!(unknown, Err(BrokerError::UnknownTopic { .. })), "{unknown:?}");
    let unknown = node.consumer.receive(Receive { group: "x".to_owned(), ..poll(5_000) }).await;
    assert!(matches!(unknown, Err(BrokerError::UnknownGroup { .. })), "{unknown:?}");
    let consumer = Arc::clone(&node.consumer);
    node.stop().await;
    let stopped = consumer.receive(poll(5_000)).await;
    assert!(stopped.is_err(), "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_of_a_mark_survive_a_restart_of_the_state() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut node = Node::with_topic(dir.path(), 2).await;
    node.send((0..50).map(|number| (number % 2, "", number.to_string()))).await;
    let delivered = node.receive(Receive { batch: 10, ..poll(2_000) }).await;
    assert!(node.ack(&[handle(&delivered[3])]).await[0].is_ok());
    node.propose(vec![mark(77)]).await;
    let first = digest(&node, 77).await;
    assert!(first.parts.iter().any(|part| part.name == "log" && part.count == first.index + 1), "{first:?}");
    assert!(first.parts.iter().any(|part| part.name == "queue/1-1/0" && part.count == 25), "{first:?}");
    // Without a checkpoint everything is applied again, the mark as well.
    node.kill().await;
    node = Node::start(dir.path()).await;
    assert_eq!(digest(&node, 77).await, first);
    node.stop().await;
}

fn topic(name: &str, action: topic_command::Action) -> EncodedItem {
    let command = TopicCommand { action: action as i32, name: name.to_owned(), ..TopicCommand::default() };
    EncodedItem::new(command::TOPIC, 0, 1, &[&command.encode_to_vec()])
}

fn mark(mark: u64) -> EncodedItem {
    let command = mq_protocol::cluster::DigestMarkCommand { mark };
    EncodedItem::new(command::DIGEST_MARK, 0, 1, &[&command.encode_to_vec()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_the_same_from_a_checkpoint_and_from_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::with_topic(dir.path(), 2).await;
    node.send((0..20).map(|number| (number % 2, "", number.to_string()))).await;
    node.propose(vec![topic("u", topic_command::Action::Create)]).await;
    node.receive(Receive { batch: 5, ..poll(2_000) }).await;
    node.stop().await;
    let node = Node::start(dir.path()).await;
    // Behind the checkpoint: a topic that it knows goes and comes back, queues go on.
    node.propose(vec![topic("u", topic_command::Action::Delete)]).await;
    node.propose(vec![topic("u", topic_command::Action::Create)]).await;
    node.send((0..7).map(|number| (number % 2, "", format!("later {number}")))).await;
    let delivered = node.receive(Receive { batch: 3, ..poll(2_000) }).await;
    assert!(node.ack(&[handle(&delivered[0])]).await[0].is_ok());
    node.propose(vec![mark(5)]).await;
    let before = digest(&node, 5).await;
    let (mut node, mut kills) = (node, 0);
    while kills < 2 {
        kills += 1;
        node.kill().await;
        node = Node::start(dir.path()).await;
        assert_eq!(digest(&node, 5).await, before, "kill {kills}");
    }
    assert_eq!(node.view.topic("", "u").expect("there").incarnation, 2);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_come_by_time_and_not_when_idle() {
    let dir = tempfile::tempdir().expect("a folder");
    let checkpoints = || -> Vec<String> {
        let found = std::fs::read_dir(dir.path().join("state")).expect("the state's folder");
        let names = found.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("cp-") && !name.ends_with(".tmp")).collect()
    };
    let node = Node::with_topic(dir.path(), 1).await;
    node.send([(0, "", "m".to_owned())]).await;
    let until = soon(15_000);
    while checkpoints().is_empty() {
        assert!(Instant::now() < until, "no checkpoint within 15 s");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let first = checkpoints();
    tokio::time::sleep(Duration::from_millis(6_500)).await;
    assert_eq!(checkpoints(), first, "nothing was applied since");
    node.kill().await;
    let node = Node::start(dir.path()).await;
    assert_eq!(bodies(&node.receive(poll(2_000)).await), ["m"]);
    node.stop().await;
}

async fn digest(node: &Node, mark: u64) -> state::DigestReport {
    for _ in 0..500 {
        if let Some(report) = node.view.digest(mark) {
            return report;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no digest within 10 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_the_state_go_on_when_it_is_opened_again_under_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let node = Node::with_topic(dir.path(), 1).await;
    node.send([(0, "", "before".to_owned())]).await;
    let (view, mut changed) = (node.view.clone(), node.view.topics_changed());
    changed.mark_unchanged();
    node.raft.restart_in_place(|_| Ok(())).await.expect("starts again");
    assert!(changed.has_changed().expect("the channel lives on"), "told to look again");
    node.send([(0, "", "after".to_owned())]).await;
    let queue = mq_store::QueueId::new(1, 1, 0);
    assert_eq!(view.queue_range(queue), (0, 2), "an old handle shows the new state");
    let bodies = bodies(&node.receive(poll(5_000)).await);
    assert_eq!(bodies, ["before", "after"], "each once, in order");
    node.stop().await;
}
