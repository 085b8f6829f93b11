//! Terms: nothing for an old one enters, and no term ever has two leaders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};
use mq_raft::{ProposeError, RaftGroup};
use mq_store::{EncodedItem, Term};

/// Records every (term, leader) that any member ever shows.
async fn record(group: RaftGroup, stop: Arc<AtomicBool>) -> Vec<(Term, u64)> {
    let mut seen = Vec::new();
    let mut leadership = group.leadership();
    while !stop.load(Ordering::Relaxed) {
        let now = leadership.borrow_and_update().clone();
        if let Some(leader) = now.leader {
            seen.push((now.term, leader.id));
        }
        tokio::time::timeout(Duration::from_millis(20), leadership.changed()).await.ok();
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_term_has_two_leaders_while_links_are_cut_and_healed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let stop = Arc::new(AtomicBool::new(false));
    let recorders: Vec<_> = (1..=3)
        .map(|id| tokio::runtime::Handle::current().spawn(record(cluster.group(id).clone(), stop.clone())))
        .collect();
    let mut term = Term(0);
    for round in 0..3u32 {
        let (leader, at) = cluster.leader_after(term).await;
        term = at;
        cluster.propose(leader, term, &round.to_le_bytes()).await.ok();
        cluster.isolate(leader);
        cluster.leader_after(term).await;
        cluster.heal();
    }
    let last = cluster.propose_anywhere(b"last").await.id.index.0;
    cluster.applied(last).await;
    stop.store(true, Ordering::Relaxed);
    let mut leaders = BTreeMap::new();
    for recorder in recorders {
        for (term, leader) in recorder.await.expect("recorder") {
            assert_eq!(*leaders.entry(term).or_insert(leader), leader, "two leaders in term {term}");
        }
    }
    assert!(leaders.len() >= 4, "the leader was changed in each round: {leaders:?}");
    common_log(&cluster.logs(), last).expect("equal logs");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_for_an_old_term_is_refused_also_by_a_node_that_leads_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let (first, old) = cluster.leader().await;
    let deadline = || Instant::now() + Duration::from_secs(5);
    cluster.group(first).transfer_leadership(None, deadline()).await.expect("handed over");
    let (second, middle) = cluster.leader_after(old).await;
    assert_ne!(first, second);
    cluster.group(second).transfer_leadership(Some(first), deadline()).await.expect("handed back");
    let (third, new) = cluster.leader_after(middle).await;
    assert_eq!(third, first);
    for stale in [old, middle] {
        let refused = cluster.propose(first, stale, b"stale").await.expect_err("an old term");
        assert!(matches!(refused, ProposeError::NotLeader { .. }), "{refused}");
        assert!(refused.certainly_not_stored());
    }
    cluster.propose(first, new, b"new").await.expect("the present term");
    let follower = second;
    let refused = cluster.propose(follower, new, b"elsewhere").await.expect_err("a follower");
    let ProposeError::NotLeader { leader: Some(leader) } = refused else { panic!("{refused}") };
    assert_eq!((leader.id, leader.api_address), (first, format!("api-{first}")));
    let items: Vec<_> = cluster.member(first).applied.items();
    assert_eq!(items, ["new"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_confirmed_and_the_refusal_is_typed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    cluster.isolate(leader);
    let until = Instant::now() + Duration::from_secs(3);
    let mut refused = false;
    while Instant::now() < until && !refused {
        let item = EncodedItem::new(1, 0, 1, &[b"lost"]);
        let deadline = Instant::now() + Duration::from_millis(200);
        match cluster.group(leader).propose(term, vec![item], deadline).await {
            Ok(proposed) => panic!("confirmed without a majority: {proposed:?}"),
            Err(ProposeError::NoQuorum) => refused = true,
            Err(error) => assert_eq!(error, ProposeError::Deadline, "proposed before it noticed"),
        }
    }
    assert!(refused, "the leader notices that it has no majority");
    let barrier = cluster.group(leader).read_barrier(Instant::now() + Duration::from_millis(500)).await;
    barrier.expect_err("no read without a majority");
    cluster.heal();
    let last = cluster.propose_anywhere(b"after").await.id.index.0;
    cluster.applied(last).await;
    common_log(&cluster.logs(), last).expect("equal logs");
    cluster.stop().await;
}
