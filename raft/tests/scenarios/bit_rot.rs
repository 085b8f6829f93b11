//! A flipped bit in one member's log costs the group nothing.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};
use mq_store::LogIndex;

/// Flips a bit in the body of entry `index` of member `id`, which does not run any more.
fn flip(cluster: &Cluster, id: u64, offset: u64) -> PathBuf {
    let size = cluster.member(id).config.segment_size;
    let base = offset - offset % size;
    let path = cluster.member(id).config.dir.join("commitlog").join(format!("{base:020}"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("its segment");
    let (mut byte, at) = ([0], offset - base + 90);
    file.read_exact_at(&mut byte, at).expect("a byte of the body");
    byte[0] ^= 4;
    file.write_all_at(&byte, at).expect("written");
    path
}

async fn filled(members: u64, dir: &std::path::Path) -> (Cluster, u64, u64) {
    let options = Options { segment_size: 64 << 10, ..Options::default() };
    let cluster = Cluster::started(members, dir.to_path_buf(), options).await.expect("starts");
    let mut last = 0;
    for number in 0..60_u32 {
        last = cluster.propose_anywhere(format!("{number:0>4000}").as_bytes()).await.id.index.0;
    }
    cluster.applied(last).await;
    let log = cluster.group(1).log().expect("formed");
    let placed = log.read(LogIndex(last / 2), LogIndex(last / 2 + 1), 1).expect("reads").remove(0);
    (cluster, last, placed.offset.0)
}

/// RB-30 (a member whose damage recovery finds)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_middle_of_one_log_is_fetched_from_another_member() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut cluster, last, offset) = filled(3, dir.path()).await;
    let (leader, _) = cluster.leader().await;
    let follower = leader % 3 + 1;
    cluster.kill(follower).await;
    let path = flip(&cluster, follower, offset);
    let before = std::fs::read(&path).expect("readable");
    cluster.start(follower).await.expect("repaired, it starts");
    assert_ne!(std::fs::read(&path).expect("readable"), before, "the segment was repaired");
    let after = cluster.propose_anywhere(b"after").await.id.index.0;
    cluster.applied(after).await;
    common_log(&cluster.logs(), last).expect("equal logs");
    for member in &cluster.members {
        assert_eq!(member.applied.items().len(), 61);
        assert!(member.fatal.lock().is_none(), "{:?}", member.fatal.lock());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_another_member_a_damaged_group_does_not_start_and_says_where() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut cluster, _, offset) = filled(1, dir.path()).await;
    cluster.kill(1).await;
    let path = flip(&cluster, 1, offset);
    let before = std::fs::read(&path).expect("readable");
    let begun = Instant::now();
    let error = cluster.start(1).await.expect_err("damaged").to_string();
    assert!(begun.elapsed() < Duration::from_secs(5), "nobody is waited for");
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert_eq!(std::fs::read(&path).expect("readable"), before, "nothing was touched");
    cluster.stop().await;
}
