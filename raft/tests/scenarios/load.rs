//! Many calls at once: batched, answered in order, bounded; reads see what was confirmed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};
use mq_raft::{Limits, ProposeError};
use mq_store::EncodedItem;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_share_frames_and_each_gets_its_own_results() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    let deadline = Instant::now() + Duration::from_secs(8);
    let calls = (0..600u32).map(|number| {
        let group = cluster.group(leader).clone();
        let items = [number, number].map(|n| EncodedItem::new(1, 0, 1, &[&n.to_le_bytes()])).to_vec();
        async move { (number, group.propose(term, items, deadline).await.expect("confirmed")) }
    });
    let answers = futures::future::join_all(calls).await;
    let mut places = BTreeSet::new();
    let mut frames = BTreeSet::new();
    let last = answers.iter().map(|(_, a)| a.id.index.0).max().expect("some");
    cluster.applied(last).await;
    let items = cluster.member(leader).applied.items();
    for (number, answer) in answers {
        frames.insert(answer.id);
        let [first, second] = &answer.results[..] else { panic!("{answer:?}") };
        let place = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        assert_eq!(place(first) + 1, place(second), "items of one call lie side by side");
        for at in [place(first), place(second)] {
            assert!(places.insert(at), "two items at {at}");
            assert_eq!(items[usize::try_from(at).expect("small")], &number.to_le_bytes()[..]);
        }
    }
    assert!(frames.len() < 300, "{} frames for 600 calls at once", frames.len());
    common_log(&cluster.logs(), last).expect("equal logs");

    let follower = if leader == 1 { 2 } else { 1 };
    let latest = cluster.propose(leader, term, b"latest").await.expect("confirmed");
    let barrier = cluster.group(follower).read_barrier(Instant::now() + Duration::from_secs(5)).await;
    assert!(barrier.expect("the leader confirms") >= latest.id.index);
    assert!(cluster.member(follower).applied.items().iter().any(|item| *item == "latest"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_the_bound_in_bytes_calls_are_refused_at_once() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let limits = Limits { uncommitted_bytes: 64 << 10, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let mut cluster = Cluster::started(3, dir.path().to_path_buf(), options).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    cluster.isolate(leader);
    let deadline = Instant::now() + Duration::from_millis(400);
    let calls = (0..40).map(|_| {
        let group = cluster.group(leader).clone();
        let items = vec![EncodedItem::new(1, 0, 1, &[&[7; 4096]])];
        async move { group.propose(term, items, deadline).await }
    });
    let answers = futures::future::join_all(calls).await;
    let busy =
        |e: &ProposeError| matches!(e, ProposeError::Busy { what: "uncommitted bytes", limit: 65536, .. });
    assert!(answers.iter().all(Result::is_err), "nothing is confirmed by one of three");
    let refused = answers.iter().filter(|a| a.as_ref().is_err_and(busy)).count();
    assert!((20..=26).contains(&refused), "{refused} of 40 refused: {answers:?}");
    cluster.heal();
    cluster.propose_anywhere(b"room again").await;
    cluster.stop().await;
}
