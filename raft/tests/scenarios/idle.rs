//! What an idle group costs. Measures the whole process, so it runs alone:
//! `cargo test -p mq-raft --test scenarios -- --ignored --nocapture idle`.

use std::time::{Duration, Instant};

use mq_raft::Timers;
use mq_raft::testkit::{Cluster, Options};

/// CPU time of this process in clock ticks (1/100 s).
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<_> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    [11, 12].map(|at: usize| fields[at].parse::<u64>().expect("a number")).iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures the whole process: run it alone"]
async fn an_idle_member_needs_less_than_three_percent_of_a_core() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = Options { timers: Timers::lan(), ..Options::default() };
    let mut cluster = Cluster::started(3, dir.path().to_path_buf(), options).await.expect("three members");
    cluster.propose_anywhere(b"one").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, began) = (ticks(), Instant::now());
    tokio::time::sleep(Duration::from_secs(8)).await;
    #[expect(clippy::cast_precision_loss, reason = "a few hundred ticks")]
    let percent = (ticks() - before) as f64 / began.elapsed().as_secs_f64() / 3.0;
    println!("{percent:.2} % of a core per member");
    assert!(percent < 3.0, "{percent:.2} % of a core per member");

    // How long the group is without a leader when the leader's process dies.
    for _ in 0..5 {
        let (leader, term) = cluster.leader().await;
        let killed = Instant::now();
        cluster.kill(leader).await;
        cluster.leader_after(term).await;
        println!("new leader ready after {:?}", killed.elapsed());
        cluster.start(leader).await.expect("restart");
        let again = cluster.propose_anywhere(b"again").await;
        cluster.applied(again.id.index.0).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    cluster.stop().await;
}
