//! Three name servers: what was registered survives the leader and every restart, and nobody answers for too long
//! from what it knew last.

mod cluster;

use std::time::{Duration, Instant};

use cluster::{Cluster, full, keep_alive, shown};
use mq_namesrv::Limits;
use mq_protocol::cluster::{
    IncrementReport, ListTopicRoutesRequest, MarkDigestRequest, ReadDigestRequest, ReadDigestResponse,
    ReportRequest, Stamp, TopicInfo, TopicName,
};
use mq_protocol::v2;
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;

fn stamp(stamp: Option<&Stamp>) -> (u64, u64) {
    stamp.map_or((0, 0), |stamp| (stamp.term, stamp.index))
}

/// The digest of a mark on node `n`, once it has applied it.
async fn digest(cluster: &Cluster, n: usize, mark: u64) -> ReadDigestResponse {
    for _ in 0..600 {
        let request = ReadDigestRequest { mark, ..ReadDigestRequest::default() };
        let answer = cluster.registry(n).read_name_digest(request).await.expect("an answer").into_inner();
        if answer.result.as_ref().is_some_and(|result| result.code == 20_000) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("node {n} never computed mark {mark}");
}

async fn assert_equal_replicas(cluster: &Cluster) {
    let leader = cluster.leader().await;
    let other = cluster.running().into_iter().find(|n| *n != leader).expect("a follower");
    let marked =
        cluster.registry(other).mark_name_digest(MarkDigestRequest::default()).await.expect("an answer");
    let marked = marked.into_inner();
    assert_eq!(marked.result.as_ref().map(|result| result.code), Some(20_000), "{marked:?}");
    let first = digest(cluster, leader, marked.mark).await;
    assert_eq!(first.index, marked.index);
    let names: Vec<&str> = first.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["log", "state/groups", "state/topics", "state/staged", "state/kv", "state/counters"]);
    assert!(first.parts[0].count > 0 && first.parts[1].count > 0, "{first:?}");
    for n in cluster.running() {
        assert_eq!(digest(cluster, n, marked.mark).await.parts, first.parts, "node {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_survive_a_leader_kill_and_restarts() {
    let mut cluster = Cluster::start(Limits::default()).await;
    let leader = cluster.leader().await;
    // Through a follower, so that the report is passed on.
    let follower = (leader + 1) % 3;
    let answer = cluster.report(follower, &full(5, 100, &["orders", "bills"])).await;
    assert!(!answer.stale && !answer.resync, "{answer:?}");
    assert_eq!(answer.stored_index, 100);
    let confirmed = stamp(answer.stamp.as_ref());
    for n in 0..3 {
        let answer = cluster.route(n, "orders").await;
        assert_eq!(shown(&answer), (20_000, "10.0.0.3:8081".to_owned()), "node {n}");
        assert!(stamp(answer.stamp.as_ref()) >= confirmed, "a linearizable answer is not older");
    }

    cluster.kill(leader).await;
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    for n in cluster.running() {
        assert_eq!(shown(&cluster.route(n, "bills").await), (20_000, "10.0.0.3:8081".to_owned()), "node {n}");
    }
    let stale = cluster.report(next, &full(4, 900, &["stolen"])).await;
    assert!(stale.stale, "an older leader is refused by the new name leader, too: {stale:?}");
    assert_eq!(shown(&cluster.route(next, "stolen").await).0, 40_402);
    let moved = cluster.report(next, &keep_alive(6, 101)).await;
    assert_eq!(moved.stored_index, 100);
    assert_eq!(
        shown(&cluster.route(next, "orders").await).1,
        "10.0.0.1:8081",
        "the broker group's new leader"
    );

    cluster.run(leader).await;
    assert_eq!(
        shown(&cluster.route(leader, "orders").await).1,
        "10.0.0.1:8081",
        "the killed node catches up"
    );
    assert_equal_replicas(&cluster).await;

    // All of them at once: first in order, then killed.
    for n in 0..3 {
        cluster.stop(n).await;
    }
    for n in 0..3 {
        cluster.run(n).await;
    }
    assert_eq!(shown(&cluster.route(0, "orders").await).1, "10.0.0.1:8081");
    cluster.report(1, &full(7, 200, &["orders"])).await;
    for n in 0..3 {
        cluster.kill(n).await;
    }
    for n in 0..3 {
        cluster.run(n).await;
    }
    for n in 0..3 {
        assert_eq!(
            shown(&cluster.route(n, "orders").await),
            (20_000, "10.0.0.2:8081".to_owned()),
            "node {n}"
        );
        assert_eq!(shown(&cluster.route(n, "bills").await).0, 40_402, "node {n}: it is gone since");
    }
    assert_equal_replicas(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_off_node_refuses_routes_after_a_while_and_changes_at_once() {
    let limits = Limits { route_age_ms_max: 4_000, ..Limits::default() };
    let mut cluster = Cluster::start(limits).await;
    cluster.report(0, &full(1, 10, &["orders"])).await;
    let left = (cluster.leader().await + 1) % 3;
    // It has to know the route before it is alone.
    assert_eq!(shown(&cluster.route(left, "orders").await).0, 20_000);
    for n in (0..3).filter(|n| *n != left) {
        cluster.kill(n).await;
    }
    let alone_since = Instant::now();
    let mut service = MessagingServiceClient::new(cluster.channel(left));
    let topic = Some(v2::Resource { name: "orders".into(), ..v2::Resource::default() });
    let query = v2::QueryRouteRequest { topic, endpoints: None };
    let answer = service.query_route(query.clone()).await.expect("an answer").into_inner();
    assert_eq!(answer.status.map(|status| status.code), Some(20_000), "its last state for a while");
    assert_eq!(answer.message_queues.len(), 4);

    let mut report = tonic::Request::new(full(2, 20, &["orders", "more"]));
    report.set_timeout(Duration::from_secs(2));
    let asked = Instant::now();
    let refused = cluster.registry(left).report(report).await.expect("an answer in time").into_inner();
    let code = refused.result.map(|result| result.code);
    assert!(matches!(code, Some(50_002 | 50_400)), "never OK without a majority: {code:?}");
    assert!(asked.elapsed() < Duration::from_secs(2), "within the deadline");

    loop {
        let answer = service.query_route(query.clone()).await.expect("an answer").into_inner();
        let code = answer.status.map(|status| status.code);
        if code == Some(50_002) {
            assert!(answer.message_queues.is_empty());
            break;
        }
        assert_eq!(code, Some(20_000));
        assert!(alone_since.elapsed() < Duration::from_secs(20), "it answers for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(alone_since.elapsed() > Duration::from_millis(500), "not at once");
    assert!(cluster.cluster(left).await.groups.is_empty(), "no leaders of unknown age");
    cluster.run((left + 1) % 3).await;
    assert_eq!(shown(&cluster.route(left, "orders").await).0, 20_000, "with a majority it answers again");
    assert_eq!(shown(&cluster.route(left, "more").await).0, 40_402, "what was refused did not happen");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_broker_group_is_shown_as_lost_and_comes_back() {
    let limits = Limits { lost_after_ms: 1_500, ..Limits::default() };
    let cluster = Cluster::start(limits).await;
    cluster.report(0, &full(1, 10, &["orders"])).await;
    let lost = async |expected: bool| {
        let started = Instant::now();
        loop {
            let mut seen = Vec::new();
            for n in 0..3 {
                seen.extend(cluster.cluster(n).await.groups.iter().map(|group| group.lost));
            }
            if seen.len() == 3 && seen.iter().all(|lost| *lost == expected) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "lost = {seen:?}, not {expected}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // Signs of life keep it, though they never go through the log.
    let before = cluster.cluster(cluster.leader().await).await;
    for applied in 11..31 {
        let answer = cluster.report(applied % 3, &keep_alive(1, applied as u64)).await;
        assert!(!answer.resync && !answer.stale);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let leader = cluster.leader().await;
    let after = cluster.cluster(leader).await;
    assert!(!after.groups[0].lost && after.groups[0].heard_ms_ago.is_some());
    if stamp(before.stamp.as_ref()).0 == stamp(after.stamp.as_ref()).0 {
        assert_eq!(before.stamp, after.stamp, "a sign of life writes nothing");
    }
    lost(true).await;
    let answer = cluster.report(1, &keep_alive(1, 40)).await;
    assert!(!answer.resync, "its topics are known");
    lost(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_code_and_change_nothing() {
    let cluster = Cluster::start(Limits::default()).await;
    cluster.report(0, &full(1, 10, &["orders"])).await;
    let mut other = full(9, 900, &["x"]);
    other.cluster = "prod".into();
    let code = |answer: mq_protocol::cluster::ReportResponse| answer.result.map(|result| result.code);
    assert_eq!(code(cluster.report(0, &other).await), Some(40_300), "another cluster");
    let mut other = full(9, 900, &["x"]);
    other.group_uuid = "uuid-b".into();
    assert_eq!(code(cluster.report(0, &other).await), Some(40_300), "another group under a known name");
    assert_eq!(code(cluster.report(0, &full(2, 20, &["no/slash"])).await), Some(40_002));
    assert_eq!(shown(&cluster.route(1, "x").await).0, 40_402);
    assert_eq!(shown(&cluster.route(1, "orders").await).1, "10.0.0.2:8081", "all as it was");

    let mut service = MessagingServiceClient::new(cluster.channel(1));
    for (name, expected) in [("a b", 40_002), ("", 40_002), ("absent", 40_402)] {
        let topic = Some(v2::Resource { name: name.into(), ..v2::Resource::default() });
        let query = v2::QueryRouteRequest { topic, endpoints: None };
        let answer = service.query_route(query).await.expect("an answer").into_inner();
        assert_eq!(answer.status.map(|status| status.code), Some(expected), "{name:?}");
    }
    let answer =
        service.send_message(v2::SendMessageRequest::default()).await.expect("an answer").into_inner();
    assert_eq!(answer.status.map(|status| status.code), Some(50_100), "brokers serve sends");
}

/// RB-44, the name servers' side.
#[tokio::test(flavor = "multi_thread")]
async fn tens_of_thousands_of_topics_are_told_once_and_changes_one_by_one() {
    let count = 60_000;
    let mut cluster = Cluster::start(Limits::default()).await;
    let names: Vec<String> = (0..count).map(|n| format!("topic-{n:05}")).collect();
    let parts: Vec<&[String]> = names.chunks(1_000).collect();
    for (part, topics) in parts.iter().enumerate() {
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut report = full(1, 10, &topics);
        let full = report.full.as_mut().expect("full");
        (full.part, full.of) = (part as u32, parts.len() as u32);
        let answer = cluster.report(part % 3, &report).await;
        assert!(!answer.resync, "part {part}");
    }
    assert_eq!(shown(&cluster.route(1, &names[count - 1]).await).0, 20_000);
    for n in 0..3 {
        cluster.kill(n).await;
    }
    for n in 0..3 {
        cluster.run(n).await;
    }
    let leader = cluster.leader().await;
    assert_eq!(shown(&cluster.route(leader, &names[count - 1]).await).0, 20_000, "after a restart of all");
    let began = Instant::now();
    let one = TopicInfo { name: "one-more".into(), queues: 4, permission: 6, ..TopicInfo::default() };
    let increment = IncrementReport { from: 10, to: 11, changed: vec![one], removed: vec![] };
    let report = ReportRequest { increment: Some(increment), ..keep_alive(1, 11) };
    let answer = cluster.report((leader + 1) % 3, &report).await;
    assert!(!answer.resync, "{answer:?}");
    assert_eq!(shown(&cluster.route((leader + 2) % 3, "one-more").await).0, 20_000);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // Who knows the routes up to a change is told what came later, and nothing else.
    let list =
        |changed_after| ListTopicRoutesRequest { start_after: String::new(), limit: 1_000, changed_after };
    let mut registry = cluster.registry(leader);
    let everything = registry.list_topic_routes(list(0)).await.expect("an answer").into_inner();
    assert!(everything.more && !everything.partial && everything.routes.len() == 1_000);
    let gone = TopicName { name: names[0].clone(), ..TopicName::default() };
    let increment = IncrementReport { from: 11, to: 12, changed: vec![], removed: vec![gone] };
    cluster.report(leader, &ReportRequest { increment: Some(increment), ..keep_alive(1, 12) }).await;
    let changed =
        registry.list_topic_routes(list(everything.routes_index)).await.expect("an answer").into_inner();
    assert!(changed.partial && !changed.more && changed.routes_index > everything.routes_index);
    assert_eq!(changed.routes.len(), 1, "{changed:?}");
    assert!(changed.routes[0].groups.is_empty(), "it is gone");
}
