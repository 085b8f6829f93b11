//! A leader that lost the tail of its own log must not resume its term.
//!
//! Openraft's leader restore does that: the leader gives the lost entry's id to another entry, followers that hold the
//! first one acknowledge by id alone, and what was confirmed is gone. It is off; this test shows that it would be
//! noticed if it were on.

use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use mq_raft::Timers;
use mq_raft::testkit::{Cluster, Options, common_log};
use mq_store::{LogIndex, Term};

/// What came of it after all members were killed and the leader had lost its last entry.
struct Aftermath {
    logs_equal: bool,
    first_kept_everywhere: bool,
    stopped: bool,
    story: String,
}

async fn lose_the_leaders_tail(leader_restore: bool) -> Aftermath {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = Options { leader_restore, ..Options::default() };
    if leader_restore {
        // The old leader resumes at once; nobody else shall stand for election meanwhile.
        let seconds = Duration::from_secs;
        let (election_min, election_max, quorum_loss_probe) = (seconds(3), seconds(4), seconds(9));
        options.timers = Timers { election_min, election_max, quorum_loss_probe, ..Timers::test() };
    }
    let mut cluster = Cluster::started(3, dir.path().to_path_buf(), options).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    let first = cluster.propose(leader, term, b"first").await.expect("confirmed");
    cluster.applied(first.id.index.0).await;
    let log = cluster.group(leader).log().expect("formed");
    let index = first.id.index.0;
    let placed = log.read(LogIndex(index), LogIndex(index + 1), 1).expect("readable").remove(0);
    // The leader last, so that nobody has time to replace it.
    for id in (1..=3).filter(|id| *id != leader).chain([leader]) {
        cluster.kill(id).await;
    }

    // As if a quorum of the others had confirmed it and the leader's own write had not happened.
    let segment = cluster.member(leader).config.dir.join("commitlog").join("00000000000000000000");
    let mut file = std::fs::OpenOptions::new().write(true).open(segment).expect("its segment");
    file.seek(SeekFrom::Start(placed.offset.0)).expect("its frame");
    file.write_all(&[0; 256]).expect("zeroed");
    file.sync_all().expect("synced");

    cluster.start(leader).await.expect("restart");
    for other in (1..=3).filter(|id| *id != leader) {
        cluster.start(other).await.expect("restart");
    }
    // Two more entries: the first may take the lost one's id, the second continues its chain.
    let (now, term) = cluster.leader_after(Term(0)).await;
    let second = cluster.propose(now, term, b"second").await;
    let third = cluster.propose(now, term, b"third").await;
    let story =
        format!("{leader} then {now} in {term}; first {:?}, second {second:?}, third {third:?}", first.id);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stopped = cluster.members.iter().any(|m| m.fatal.lock().is_some());
    let logs = cluster.logs();
    let shortest = logs.iter().filter_map(|log| log.last()).map(|id| id.index.0).min().unwrap_or(0);
    let first_kept = |m: &mq_raft::testkit::Member| m.applied.items().iter().any(|item| *item == "first");
    let aftermath = Aftermath {
        logs_equal: common_log(&logs, shortest).is_ok(),
        first_kept_everywhere: cluster.members.iter().all(first_kept),
        stopped,
        story,
    };
    cluster.stop().await;
    aftermath
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_entry_survives_when_the_leader_lost_it_in_a_kill_of_all() {
    let Aftermath { logs_equal, first_kept_everywhere, stopped, story } = lose_the_leaders_tail(false).await;
    assert!(logs_equal && first_kept_everywhere && !stopped, "{story}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_restore_would_lose_it_and_this_test_would_notice() {
    let Aftermath { logs_equal, first_kept_everywhere, stopped, story } = lose_the_leaders_tail(true).await;
    assert!(!logs_equal || !first_kept_everywhere || stopped, "the loss was not found: {story}");
}
