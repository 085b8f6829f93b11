//! Members on disks that lose what was not synced.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};
use mq_raft::{Fatal, RaftGroup};
use mq_store::EncodedItem;
use mq_store::fs::{CrashingFs, Failure, FileSystem};

fn options(disks: &[CrashingFs]) -> Options {
    let file_systems = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn FileSystem>).collect();
    Options { file_systems, ..Options::default() }
}

/// Proposes until the group stops; what was confirmed.
async fn load(group: RaftGroup, name: String) -> Vec<String> {
    let term = group.leadership().borrow().term;
    let mut confirmed = Vec::new();
    for number in 0.. {
        let body = format!("{name}-{number}");
        let item = EncodedItem::new(1, 0, 1, &[body.as_bytes()]);
        let deadline = Instant::now() + Duration::from_secs(1);
        match group.propose(term, vec![item], deadline).await {
            Ok(_) => confirmed.push(body),
            Err(_) => break,
        }
    }
    confirmed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_when_all_members_lose_power_at_once() {
    let mut disks: Vec<_> = (0..3).map(|_| CrashingFs::new()).collect();
    let mut cluster =
        Cluster::started(3, PathBuf::from("/data"), options(&disks)).await.expect("three members");
    let mut confirmed = Vec::new();
    for round in 0..3u64 {
        let (leader, _) = cluster.leader().await;
        let loads: Vec<_> = (0..8)
            .map(|worker| load(cluster.group(leader).clone(), format!("{round}-{worker}")))
            .map(|load| tokio::runtime::Handle::current().spawn(load))
            .collect();
        tokio::time::sleep(Duration::from_millis(60 + 40 * round)).await;
        // Killed first, cut later: the page cache of a killed process counts for nothing.
        for (place, disk) in disks.iter_mut().enumerate() {
            let seed = 100 * round + place as u64;
            *disk = if round == 1 { disk.kill().power_cut(seed) } else { disk.power_cut(seed) };
        }
        let before = confirmed.len();
        for load in loads {
            confirmed.extend(load.await.expect("load"));
        }
        assert!(confirmed.len() > before, "the power went while confirmations came");
        cluster.stop().await;
        for (place, disk) in disks.iter().enumerate() {
            let id = place as u64 + 1;
            cluster.set_file_system(id, Arc::new(disk.clone()));
            cluster.start(id).await.unwrap_or_else(|e| panic!("round {round}, member {id}: {e}"));
        }
    }
    let last = cluster.propose_anywhere(b"last").await.id.index.0;
    cluster.applied(last).await;
    common_log(&cluster.logs(), last).expect("equal logs");
    for member in &cluster.members {
        let items: std::collections::BTreeSet<_> = member.applied.items().into_iter().collect();
        for body in &confirmed {
            assert!(items.contains(body.as_bytes()), "{body} is lost");
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_stops_the_leader_with_code_70_and_the_others_elect() {
    let disks: Vec<_> = (0..3).map(|_| CrashingFs::new()).collect();
    let mut cluster =
        Cluster::started(3, PathBuf::from("/data"), options(&disks)).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    cluster.propose(leader, term, b"before").await.expect("confirmed");
    disks[usize::try_from(leader - 1).expect("small")].fail(Failure::ForEver(0));
    let failed = cluster.propose(leader, term, b"during").await;
    failed.expect_err("its own disk has it not");
    let (next, newer) = cluster.leader_after(term).await;
    assert_ne!(next, leader);
    let fatal = cluster.member(leader).fatal.lock().clone().expect("reported");
    assert!(matches!(fatal, Fatal::Disk { .. }) && fatal.exit().code() == 70, "{fatal}");
    cluster.propose(next, newer, b"after").await.expect("confirmed");
    cluster.stop().await;
}
