//! Settings on three name servers: revisions, conditions, listings, watchers.

mod cluster;

use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::Cluster;
use mq_namesrv::Limits;
use mq_protocol::cluster::kv_client::KvClient;
use mq_protocol::cluster::{
    ChangeKvResponse, DeleteKvRequest, GetKvRequest, GetKvResponse, ListKvRequest, PutKvRequest,
    WatchKvRequest, WatchKvResponse,
};
use tonic::Streaming;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(60);

fn kv(cluster: &Cluster, n: usize) -> KvClient<Channel> {
    KvClient::new(cluster.channel(n))
}

fn put(key: &str, value: &str, expected: Option<u64>) -> PutKvRequest {
    let value = Bytes::copy_from_slice(value.as_bytes());
    PutKvRequest { namespace: "ns".into(), key: key.into(), value, expected }
}

/// Asks node `n` until the name group has decided.
async fn change(cluster: &Cluster, n: usize, request: PutKvRequest) -> (i32, ChangeKvResponse) {
    let started = Instant::now();
    loop {
        let answer = kv(cluster, n).put_kv(request.clone()).await.expect("an answer").into_inner();
        let code = answer.result.as_ref().expect("a result").code;
        if code != 50_002 {
            return (code, answer);
        }
        assert!(started.elapsed() < PATIENCE, "not decided: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn get(cluster: &Cluster, n: usize, key: &str) -> (i32, GetKvResponse) {
    let started = Instant::now();
    loop {
        let request = GetKvRequest { namespace: "ns".into(), key: key.into(), local: false };
        let answer = kv(cluster, n).get_kv(request).await.expect("an answer").into_inner();
        let code = answer.result.as_ref().expect("a result").code;
        if code != 50_002 {
            return (code, answer);
        }
        assert!(started.elapsed() < PATIENCE, "no answer: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn message(stream: &mut Streaming<WatchKvResponse>) -> WatchKvResponse {
    let next = tokio::time::timeout(PATIENCE, stream.message()).await;
    next.expect("in time").expect("no error").expect("not the end")
}

async fn watch(cluster: &Cluster, n: usize, after: Option<u64>) -> Streaming<WatchKvResponse> {
    let request = WatchKvRequest { namespace: "ns".into(), prefix: String::new(), after };
    kv(cluster, n).watch_kv(request).await.expect("a stream").into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_fails_returns_what_is_there_and_everything_survives_a_restart_of_all() {
    let mut cluster = Cluster::start(Limits::default()).await;
    let (code, first) = change(&cluster, 0, put("a", "1", Some(0))).await;
    assert_eq!((code, first.revision), (20_000, 1));
    let (code, second) = change(&cluster, 1, put("a", "2", Some(0))).await;
    let current = second.current.expect("the present value");
    assert_eq!((code, &current.value[..], current.revision), (42_800, &b"1"[..], 1));
    assert_eq!(change(&cluster, 2, put("a", "2", Some(1))).await.1.revision, 2);
    assert_eq!(change(&cluster, 2, put("b", "x", None)).await.1.revision, 3);
    let delete = DeleteKvRequest { namespace: "ns".into(), key: "b".into(), expected: Some(3) };
    let leader = cluster.leader().await;
    let answer = kv(&cluster, leader).delete_kv(delete).await.expect("an answer").into_inner();
    assert_eq!((answer.result.expect("a result").code, answer.revision), (20_000, 4));
    for n in 0..3 {
        cluster.kill(n).await;
    }
    for n in 0..3 {
        cluster.run(n).await;
    }
    cluster.leader().await;
    for n in 0..3 {
        let (code, answer) = get(&cluster, n, "a").await;
        let entry = answer.entry.expect("there");
        assert_eq!((code, &entry.value[..], entry.revision, answer.revision), (20_000, &b"2"[..], 2, 4));
        assert_eq!(get(&cluster, n, "b").await.0, 40_400, "deleted");
    }
    assert_eq!(change(&cluster, 0, put("c", "1", None)).await.1.revision, 5, "revisions go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_hears_every_change_in_order_through_a_change_of_leader() {
    let mut cluster = Cluster::start(Limits::default()).await;
    let leader = cluster.leader().await;
    let here = (leader + 1) % 3;
    let mut stream = watch(&cluster, here, Some(0)).await;
    let mut told = Vec::new();
    for n in 0..10 {
        assert_eq!(change(&cluster, here, put("k", &n.to_string(), None)).await.0, 20_000);
    }
    cluster.kill(leader).await;
    // A change whose outcome is unknown is left at that: the watcher says what was done.
    let mut confirmed = 10;
    let started = Instant::now();
    while confirmed < 20 {
        if change(&cluster, here, put("k", "again", None)).await.0 == 20_000 {
            confirmed += 1;
        }
        assert!(started.elapsed() < PATIENCE);
    }
    let newest = get(&cluster, here, "k").await.1.revision;
    while told.last().is_none_or(|last| *last < newest) {
        let WatchKvResponse { result, events, .. } = message(&mut stream).await;
        assert_eq!(result, None, "told {told:?} of {newest}");
        told.extend(events.iter().map(|event| event.entry.as_ref().expect("an entry").revision));
    }
    assert_eq!(told, (1..=newest).collect::<Vec<u64>>(), "in order, each once, none left out");
    let mut late = watch(&cluster, here, Some(newest - 1)).await;
    let events = message(&mut late).await.events;
    assert_eq!(events.len(), 1, "from the revision that is known already");
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_go_on_at_their_revision_and_bad_input_has_a_code() {
    let cluster = Cluster::start(Limits::default()).await;
    for key in ["a", "b", "c"] {
        assert_eq!(change(&cluster, 0, put(key, "1", None)).await.0, 20_000);
    }
    let list = |after_key: &str, revision| ListKvRequest {
        namespace: "ns".into(),
        after_namespace: if after_key.is_empty() { String::new() } else { "ns".into() },
        after_key: after_key.into(),
        limit: 2,
        revision,
        local: false,
    };
    let first = kv(&cluster, 1).list_kv(list("", 0)).await.expect("an answer").into_inner();
    assert_eq!((first.revision, first.entries.len(), first.more), (3, 2, true));
    assert_eq!(change(&cluster, 0, put("c", "2", None)).await.0, 20_000);
    let second = kv(&cluster, 2).list_kv(list("b", 3)).await.expect("an answer").into_inner();
    assert_eq!(&second.entries[0].value[..], b"1", "as it was at revision 3");
    let code = |answer: mq_protocol::cluster::ListKvResponse| answer.result.map(|result| result.code);
    let future = kv(&cluster, 1).list_kv(list("", 99)).await.expect("an answer").into_inner();
    assert_eq!(code(future), Some(50_002), "may be asked again");

    let long = "x".repeat(65_537);
    for (request, expected) in [
        (put("", "1", None), 40_000),
        (put("a\n", "1", None), 40_000),
        (put(&"k".repeat(513), "1", None), 40_000),
        (put("a", &long, None), 41_300),
        (PutKvRequest { namespace: String::new(), ..put("a", "1", None) }, 40_000),
        (PutKvRequest { namespace: "a b".into(), ..put("a", "1", None) }, 40_000),
    ] {
        let shown = format!("{:?}/{:?}", request.namespace, request.key);
        assert_eq!(change(&cluster, 1, request).await.0, expected, "{shown}");
    }
    assert_eq!(get(&cluster, 0, "a").await.1.revision, 4, "nothing was changed");
    let mut stream = watch(&cluster, 0, Some(4)).await;
    let WatchKvResponse { result, revision, events } = message(&mut stream).await;
    assert_eq!((result, revision, events.len()), (None, 4, 0), "the first message says that it is watched");
}
