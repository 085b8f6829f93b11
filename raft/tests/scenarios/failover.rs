//! How long a group is without a leader, and what the two times do meanwhile.

use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leaders_process_is_replaced_before_the_timers_could() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = Options::default();
    let by_timers = options.timers.election_max + options.timers.election_min;
    let mut cluster = Cluster::started(3, dir.path().to_path_buf(), options).await.expect("three members");
    let last = cluster.propose_anywhere(b"before").await;
    cluster.applied(last.id.index.0).await;
    let mut fast = 0;
    for _ in 0..3 {
        let (leader, term) = cluster.leader().await;
        let killed = Instant::now();
        cluster.kill(leader).await;
        cluster.leader_after(term).await;
        fast += u32::from(killed.elapsed() < by_timers);
        cluster.start(leader).await.expect("restart");
        let again = cluster.propose_anywhere(b"again").await;
        cluster.applied(again.id.index.0).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(fast >= 2, "{fast} of 3 failovers were faster than {by_timers:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_stop_hands_over_first() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = Options::default();
    let by_timers = options.timers.election_max + options.timers.election_min;
    let mut cluster = Cluster::started(3, dir.path().to_path_buf(), options).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    cluster.propose(leader, term, b"before").await.expect("confirmed");
    let group = cluster.group(leader).clone();
    let began = Instant::now();
    let stopping = tokio::runtime::Handle::current().spawn(async move { group.shutdown().await });
    let (next, newer) = cluster.leader_after(term).await;
    let gap = began.elapsed();
    stopping.await.expect("stopped");
    assert!(next != leader && gap < by_timers, "handed over after {gap:?}");
    assert!(cluster.member(leader).applied.stopped(), "its state got a last checkpoint");
    cluster.propose(next, newer, b"after").await.expect("confirmed");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_never_fall_along_the_log_and_lease_time_goes_on_over_a_failover() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let begun = Instant::now();
    let first = cluster.propose_anywhere(b"first").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (leader, term) = cluster.leader().await;
    cluster.kill(leader).await;
    cluster.leader_after(term).await;
    let second = cluster.propose_anywhere(b"second").await;
    let real = u64::try_from(begun.elapsed().as_millis()).expect("short");
    let lease = second.lease_time - first.lease_time;
    assert!(lease + 250 > real && lease < real + 250, "{lease} ms of lease time in {real} ms");
    // All at once: only time that no member saw may be missing.
    cluster.stop().await;
    for id in 1..=3 {
        cluster.start(id).await.expect("restart");
    }
    let third = cluster.propose_anywhere(b"third").await;
    assert!(third.lease_time >= second.lease_time && third.store_time >= second.store_time);
    cluster.applied(third.id.index.0).await;
    for member in &cluster.members {
        let times = member.applied.times();
        assert_eq!(times.len(), 3);
        assert!(times.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1), "{times:?}");
    }
    cluster.stop().await;
}
