//! A replica whose log differs where it must not stops, instead of going on in silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options};
use mq_raft::{Fatal, GroupState};
use mq_store::{
    AppendEntry, BodyBuilder, CommitLog, CommitLogConfig, EncodedItem, EntryId, FrameKind, GroupFiles,
    LogEntry, LogIndex, OsFileSystem, StoreError,
};

/// Gives an entry of the log in `dir` another body under the same id, chain and all, and cuts what is behind it.
fn replace_entry(dir: &std::path::Path, id: EntryId) {
    let files = Arc::new(GroupFiles::open(Arc::new(OsFileSystem), dir).expect("files"));
    let meta = files.meta().expect("formed");
    let config = CommitLogConfig {
        segment_size: meta.segment_size,
        frame_limit: meta.frame_limit,
        chain_start: meta.chain_start,
        ..CommitLogConfig::default()
    };
    let (log, _) = CommitLog::open(files, config, None).expect("log");
    let done = |sender: std::sync::mpsc::Sender<Result<(), StoreError>>| {
        Box::new(move |result| sender.send(result).expect("receiver lives"))
    };
    let (sender, outcome) = std::sync::mpsc::channel();
    log.truncate_after(Some(LogIndex(id.index.0 - 1)), done(sender.clone()));
    outcome.recv().expect("done").expect("cut");
    // Whole in itself, so that only the chain can tell.
    let mut body = BodyBuilder::new();
    body.push(&EncodedItem::new(1, 0, 1, &[b"something else"]));
    let body = body.finish();
    let entry = LogEntry { count: body.count, ..LogEntry::new(FrameKind::Items, id, body.body) };
    log.append(vec![AppendEntry { entry, expected_head_crc: None }], done(sender)).expect("queued");
    outcome.recv().expect("done").expect("written");
    log.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_differs_stops_with_code_71_and_the_others_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster =
        Cluster::started(3, dir.path().to_path_buf(), Options::default()).await.expect("three members");
    let (leader, _) = cluster.leader().await;
    let last = cluster.propose_anywhere(b"the same everywhere").await.id;
    cluster.applied(last.index.0).await;
    let follower = if leader == 1 { 2 } else { 1 };
    cluster.kill(follower).await;
    let folder = cluster.member(follower).config.dir.clone();
    tokio::task::spawn_blocking(move || replace_entry(&folder, last)).await.expect("replaced");
    cluster.propose_anywhere(b"behind it").await;
    cluster.start(follower).await.expect("it looks whole to itself");
    let deadline = Instant::now() + Duration::from_secs(8);
    while cluster.member(follower).fatal.lock().is_none() {
        assert!(Instant::now() < deadline, "the difference was not noticed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let fatal = cluster.member(follower).fatal.lock().clone().expect("just seen");
    assert!(matches!(fatal, Fatal::Divergence { .. }), "{fatal}");
    assert_eq!(fatal.exit().code(), 71);
    assert_eq!(cluster.group(follower).status().state, GroupState::Stopped);
    cluster.propose_anywhere(b"the others go on").await;
    cluster.stop().await;
}
