//! Wall clocks that jump, strobe and differ: nothing but store times and due times sees them, and those never fall.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options};
use mq_runtime::clock::{Clock, SystemClock};
use mq_store::LogIndex;
use mq_store::commit_log::FrameKind;

const HOUR: i64 = 3_600_000;

/// The machine's clock with a wall clock that is wrong by a number of ms.
#[derive(Debug, Default)]
struct WrongClock(AtomicI64);

impl WrongClock {
    fn set(&self, wrong_by_ms: i64) {
        self.0.store(wrong_by_ms, Ordering::SeqCst);
    }
}

impl Clock for WrongClock {
    fn wall_ms(&self) -> u64 {
        SystemClock.wall_ms().saturating_add_signed(self.0.load(Ordering::SeqCst))
    }

    fn monotonic_ms(&self) -> u64 {
        SystemClock.monotonic_ms()
    }
}

async fn cluster(folder: &std::path::Path) -> (Cluster, Vec<Arc<WrongClock>>) {
    let clocks: Vec<Arc<WrongClock>> = (0..3).map(|_| Arc::default()).collect();
    let shared = clocks.iter().map(|clock| clock.clone() as Arc<dyn Clock>).collect();
    let options = Options { clocks: shared, ..Options::default() };
    (Cluster::started(3, folder.to_path_buf(), options).await.expect("starts"), clocks)
}

/// (store time, lease time) of every frame of items, in log order.
fn times(cluster: &Cluster, id: u64) -> Vec<(u64, u64)> {
    let log = cluster.group(id).log().expect("formed");
    let (first, last) = (log.first().expect("not empty").index.0, log.last().expect("not empty").index.0);
    (first..=last)
        .filter_map(|index| {
            let placed = log.read(LogIndex(index), LogIndex(index + 1), 1).expect("reads").remove(0);
            let entry = placed.entry;
            (entry.kind == FrameKind::Items).then_some((entry.store_time, entry.lease_time))
        })
        .collect()
}

fn never_fall(times: &[(u64, u64)]) {
    for pair in times.windows(2) {
        assert!(pair[0].0 <= pair[1].0, "store time fell: {pair:?}");
        assert!(pair[0].1 <= pair[1].1, "lease time fell: {pair:?}");
    }
}

/// RB-137: the leader's wall clock strobes by an hour either way. No election; lease time and due time go on as if nothing
/// had happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_wall_clock_strobes_elects_frees_and_releases_nothing_early() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, clocks) = cluster(folder.path()).await;
    let (id, term) = cluster.leader().await;
    let group = cluster.group(id).clone();
    let wrong = &clocks[usize::try_from(id - 1).expect("small")];
    let (began, lease) = (Instant::now(), group.lease_now());
    let mut due = group.due_time();
    for step in 0..40 {
        wrong.set(if step % 2 == 0 { HOUR } else { -HOUR });
        cluster.propose(id, term, b"x").await.expect("the leader stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (now, right) = (group.due_time(), SystemClock.wall_ms());
        assert!(now >= due, "due time fell from {due} to {now}");
        assert!(now <= right, "due time is {} ms early", now - right);
        assert!(right - now < 2_000, "due time is {} ms late", right - now);
        due = now;
    }
    let elapsed = u64::try_from(began.elapsed().as_millis()).expect("short");
    let advanced = group.lease_now() - lease;
    assert!(advanced.abs_diff(elapsed) < 100, "lease time went on by {advanced} ms in {elapsed} ms");
    assert_eq!(cluster.leader().await, (id, term), "no election");
    never_fall(&times(&cluster, id));
    cluster.stop().await;
}

/// RB-138, RB-10 (the lease time): clocks at 0, +5 s and -5 s, leadership moved again and again under load.
#[tokio::test(flavor = "multi_thread")]
async fn store_and_lease_times_never_fall_over_leader_changes_with_clocks_that_differ() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut cluster, clocks) = cluster(folder.path()).await;
    clocks[1].set(5_000);
    clocks[2].set(-5_000);
    let (mut leaders, mut killed) = (std::collections::BTreeSet::new(), 0);
    let (mut id, mut term) = cluster.leader().await;
    let (began, lease) = (Instant::now(), cluster.group(id).lease_now());
    for round in 0..8_u64 {
        leaders.insert(id);
        for _ in 0..10 {
            cluster.propose_anywhere(&round.to_le_bytes()).await;
        }
        if round % 4 == 3 {
            cluster.kill(id).await;
            killed += 1;
            let next = cluster.leader_after(term).await;
            cluster.start(id).await.expect("starts again");
            (id, term) = next;
        } else {
            let to = id % 3 + 1;
            let deadline = Instant::now() + Duration::from_secs(5);
            // Refused when the target is behind or away: then it stays, and the next round tries another.
            drop(cluster.group(id).transfer_leadership(Some(to), deadline).await);
            (id, term) = cluster.leader().await;
        }
    }
    let last = cluster.propose_anywhere(b"end").await;
    assert!(leaders.len() > 1 && killed == 2, "leaders: {leaders:?}");
    let (id, _) = cluster.leader().await;
    let elapsed = u64::try_from(began.elapsed().as_millis()).expect("short");
    let advanced = cluster.group(id).lease_now() - lease;
    assert!(advanced.abs_diff(elapsed) < 500, "lease time went on by {advanced} ms in {elapsed} ms");
    cluster.applied(last.id.index.0).await;
    let all: Vec<_> = (1..=3).map(|id| times(&cluster, id)).collect();
    assert!(all[0].len() >= 81, "{} frames", all[0].len());
    assert!(all.iter().all(|times| *times == all[0]), "the same on every member");
    never_fall(&all[0]);
    cluster.stop().await;
}
