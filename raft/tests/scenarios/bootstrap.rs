//! D12: a group comes into being once, and nobody takes part under a wrong identity.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};
use mq_raft::{Fatal, GroupState, StartError};
use mq_store::commit_log::{CommitLog, CommitLogConfig};
use mq_store::fs::{FileSystem, OsFileSystem, create_dir_durably};
use mq_store::{GroupFiles, GroupMeta, VoteRecord};

async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(8);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_waits_and_says_for_whom() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = Cluster::new(3, dir.path().to_path_buf(), Options::default()).await.expect("settings");
    cluster.start(2).await.expect("it waits");
    until("names both", || {
        let view = cluster.group(2).status();
        view.state == GroupState::Waiting
            && view.waiting_for.contains("b1")
            && view.waiting_for.contains("b3")
    })
    .await;
    cluster.start(1).await.expect("it waits");
    until("names the one that is missing", || {
        let view = cluster.group(1).status();
        view.state == GroupState::Waiting && view.waiting_for.starts_with("b3")
    })
    .await;
    assert_eq!(cluster.group(1).uuid(), "", "nothing is formed without all members");
    cluster.start(3).await.expect("the last one");
    cluster.leader().await;
    until("all take part", || (1..=3).all(|id| cluster.group(id).status().state != GroupState::Waiting))
        .await;
    assert_eq!(cluster.group(2).uuid(), cluster.group(1).uuid());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_in_the_middle_of_forming_still_form_one_group() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = Cluster::new(3, dir.path().to_path_buf(), Options::default()).await.expect("settings");
    for round in 0..6u64 {
        for id in 1..=3 {
            if cluster.member(id).group.is_none() {
                cluster.start(id).await.expect("start");
            }
        }
        tokio::time::sleep(Duration::from_millis(15 * round)).await;
        cluster.kill(1 + round % 3).await;
    }
    for id in 1..=3 {
        if cluster.member(id).group.is_none() {
            cluster.start(id).await.expect("start");
        }
    }
    let last = cluster.propose_anywhere(b"formed").await.id.index.0;
    cluster.applied(last).await;
    common_log(&cluster.logs(), last).expect("one group, one log");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_member_of_a_formed_group_stops_with_code_72() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let last = cluster.propose_anywhere(b"kept").await.id.index.0;
    cluster.applied(last).await;
    cluster.kill(3).await;
    std::fs::remove_dir_all(&cluster.member(3).config.dir).expect("emptied");
    cluster.start(3).await.expect("it looks around first");
    until("stops", || cluster.member(3).fatal.lock().is_some()).await;
    let fatal = cluster.member(3).fatal.lock().clone().expect("just seen");
    assert!(matches!(fatal, Fatal::Identity { .. }), "{fatal}");
    assert_eq!(fatal.exit().code(), 72);
    assert_eq!(cluster.group(3).status().state, GroupState::Stopped);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_its_log_or_of_another_cluster_does_not_start() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(1, dir.path().to_path_buf(), Options::default()).await.expect("one member");
    cluster.kill(1).await;

    cluster.members[0].config.cluster = "other".into();
    let refused = cluster.start(1).await.expect_err("another cluster");
    let StartError::Identity(mismatch) = &refused else { panic!("{refused}") };
    assert_eq!(mismatch.what, "cluster");
    assert!(refused.to_string().contains("other") && refused.to_string().contains("test"), "{refused}");

    cluster.members[0].config.cluster = "test".into();
    cluster.members[0].config.group = "h".into();
    let refused = cluster.start(1).await.expect_err("another group");
    assert!(matches!(&refused, StartError::Identity(m) if m.what == "group"), "{refused}");

    cluster.members[0].config.group = "g".into();
    std::fs::remove_dir_all(cluster.members[0].config.dir.join("commitlog")).expect("removed");
    let refused = cluster.start(1).await.expect_err("no log");
    assert!(matches!(&refused, StartError::Identity(m) if m.what == "content"), "{refused}");
    assert!(refused.to_string().contains("no log"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_another_node_is_refused_naming_both() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    cluster.stop().await;
    cluster.members[0].config.dir = cluster.members[1].config.dir.clone();
    let refused = cluster.start(1).await.expect_err("the folder of b2");
    let StartError::Identity(mismatch) = &refused else { panic!("{refused}") };
    assert_eq!((mismatch.what, &*mismatch.expected, &*mismatch.found), ("node id", "1", "2"));
}

/// The folder as a kill leaves it between `joined` and the first vote or entry.
fn killed_before_the_first_entry(dir: &std::path::Path, members: &[String], me: u64, uuid: &str) {
    let fs: Arc<dyn FileSystem> = Arc::new(OsFileSystem);
    create_dir_durably(&*fs, dir).expect("a folder");
    let files = Arc::new(GroupFiles::open(fs, dir).expect("new files"));
    let Options { cluster, segment_size, frame_limit, .. } = Options::default();
    let chain_start = crc32c::crc32c(uuid.as_bytes());
    files
        .save_meta(&GroupMeta {
            cluster,
            group: "g".into(),
            group_uuid: uuid.into(),
            members: members.to_vec(),
            segment_size,
            frame_limit,
            node_id: me,
            store_id: format!("store-{me}"),
            joined: true,
            chain_start,
            ..GroupMeta::default()
        })
        .expect("saved");
    let write_batch_bytes = frame_limit as usize;
    let config = CommitLogConfig { segment_size, frame_limit, ring_bytes: 0, write_batch_bytes, chain_start };
    let (log, _) = CommitLog::open(files, config, None).expect("an empty log");
    let (told, saved) = std::sync::mpsc::channel();
    let vote = VoteRecord { term: 0, node: me, committed: false };
    log.save_vote(vote, Box::new(move |result| told.send(result).expect("somebody waits")));
    saved.recv().expect("told").expect("saved");
    log.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_member_killed_before_its_first_entry_still_forms_the_group() {
    for count in [1, 3] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut cluster =
            Cluster::new(count, dir.path().to_path_buf(), Options::default()).await.expect("settings");
        let config = cluster.member(1).config.clone();
        let names: Vec<_> = config.members.iter().map(|member| member.node.clone()).collect();
        killed_before_the_first_entry(&config.dir, &names, 1, "u-1");
        for id in 1..=count {
            cluster.start(id).await.expect("start");
        }
        cluster.leader().await;
        assert_eq!(cluster.group(count).uuid(), "u-1");
        cluster.stop().await;
    }
}
