//! Three members over tonic on loopback: what was confirmed survives kills and restarts, and the logs stay equal.

use mq_raft::testkit::{Cluster, Options, common_log};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_items_survive_leader_kills_and_logs_are_equal() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let mut confirmed = Vec::new();
    for round in 0..3 {
        for number in 0..20 {
            let body = format!("{round}-{number}");
            cluster.propose_anywhere(body.as_bytes()).await;
            confirmed.push(body);
        }
        let (leader, term) = cluster.leader().await;
        cluster.kill(leader).await;
        let (next, _) = cluster.leader_after(term).await;
        assert_ne!(next, leader, "the killed member does not lead");
        cluster.propose_anywhere(format!("after-{round}").as_bytes()).await;
        cluster.start(leader).await.expect("restart on its folder");
    }
    let last = cluster.propose_anywhere(b"last").await.id.index.0;
    cluster.applied(last).await;
    let frames = common_log(&cluster.logs(), last).expect("equal logs");
    assert_eq!(frames.len() as u64, last + 1);
    for member in &cluster.members {
        let items = member.applied.items();
        for body in &confirmed {
            assert!(items.iter().any(|item| item == body.as_bytes()), "{body} is missing");
        }
        assert!(member.fatal.lock().is_none(), "{:?}", member.fatal.lock());
    }
    cluster.stop().await;
}
