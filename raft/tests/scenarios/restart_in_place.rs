//! A group that is started again on its folder while its process and its handle live on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_restarted_in_place_lose_nothing_and_keep_their_handles() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let changes = Arc::new(AtomicUsize::new(0));
    let mut confirmed = Vec::new();
    for round in 0..3 {
        for number in 0..10 {
            let body = format!("{round}-{number}");
            cluster.propose_anywhere(body.as_bytes()).await;
            confirmed.push(body);
        }
        let (leader, _) = cluster.leader().await;
        // A follower, then the leader: somebody leads again, maybe the same one.
        for id in [leader % 3 + 1, leader] {
            let (group, changes) = (cluster.group(id).clone(), changes.clone());
            let restart = group.restart_in_place(move |files| {
                assert!(files.meta().is_some_and(|meta| meta.joined), "its own folder");
                changes.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            restart.await.expect("starts again");
        }
    }
    assert_eq!(changes.load(Ordering::Relaxed), 6);
    let last = cluster.propose_anywhere(b"last").await.id.index.0;
    cluster.applied(last).await;
    common_log(&cluster.logs(), last).expect("equal logs");
    for member in &cluster.members {
        let items = member.applied.items();
        for body in &confirmed {
            assert!(items.iter().any(|item| item == body.as_bytes()), "{body} is missing");
        }
        assert!(member.fatal.lock().is_none(), "{:?}", member.fatal.lock());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_fails_stops_the_group_and_a_stopped_group_is_not_restarted() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(1, dir.path().to_path_buf(), Options::default()).await.expect("one member");
    let (_, term) = cluster.leader().await;
    let group = cluster.group(1).clone();
    let why = || mq_store::StoreError::corrupt("staging".as_ref(), 0, "a segment", "nothing");
    let failed = group.restart_in_place(move |_| Err(why())).await;
    failed.expect_err("the change failed");
    assert!(cluster.member(1).fatal.lock().is_some(), "the group has stopped");
    cluster.propose(1, term, b"late").await.expect_err("nothing is taken any more");
    group.restart_in_place(|_| panic!("not called")).await.expect_err("stopped");
    let begun = Instant::now();
    cluster.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "its end waits for nothing");
}
