//! A group of one member takes the same path as any other.

use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options};
use mq_raft::{GroupState, ProposeError};
use mq_store::{EncodedItem, Term};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_forms_serves_and_keeps_everything_over_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(1, dir.path().to_path_buf(), Options::default()).await.expect("one member");
    let uuid = cluster.group(1).uuid();
    let (_, term) = cluster.leader().await;
    for number in 0..50u32 {
        cluster.propose(1, term, &number.to_le_bytes()).await.expect("confirmed");
    }
    let barrier = cluster.group(1).read_barrier(Instant::now() + Duration::from_secs(2)).await;
    assert!(barrier.expect("a quorum of one").0 >= 50);
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        // The view's parts are published one after the other.
        let view = cluster.group(1).status();
        assert_eq!(view.state, GroupState::Leader);
        if view.leader_ready && view.applied == view.last && view.flushed == view.last {
            break;
        }
        assert!(Instant::now() < deadline, "{view:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.shutdown(1).await;
    assert!(cluster.member(1).applied.stopped(), "the state got its last checkpoint");

    cluster.start(1).await.expect("restart");
    let (_, next) = cluster.leader_after(Term(0)).await;
    assert!(next > term, "a restart never resumes an old term");
    assert_eq!(cluster.group(1).uuid(), uuid);
    assert_eq!(cluster.member(1).applied.items().len(), 50);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_before_the_log_are_typed_and_certain() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(1, dir.path().to_path_buf(), Options::default()).await.expect("one member");
    let (_, term) = cluster.leader().await;
    let old = cluster.propose(1, Term(term.0 - 1), b"x").await.expect_err("an old term");
    assert!(matches!(old, ProposeError::NotLeader { .. }) && old.certainly_not_stored());
    let large = cluster.propose(1, term, &vec![0; 64 << 10]).await.expect_err("larger than a frame");
    assert!(matches!(large, ProposeError::TooLarge { .. }), "{large}");
    let past = Instant::now();
    let items = vec![EncodedItem::new(1, 0, 1, &[b"late"])];
    let late = cluster.group(1).propose(term, items, past).await;
    assert!(matches!(late, Err(ProposeError::Deadline) | Ok(_)), "{late:?}");
    cluster.stop().await;
}
