//! What the tests of the log share.

#![allow(dead_code, reason = "each test file uses another part of this one")]

pub mod model;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use mq_store::{
    AppendEntry, CommitLog, CommitLogConfig, EntryId, FileSystem, FlushCallback, FrameKind, GroupFiles,
    LogEntry, LogIndex, PlacedEntry, RecoveryReport, Result, StoreError,
};

pub const GROUP: &str = "/data/group";
pub const CHAIN_START: u32 = 0x00C0_FFEE;

/// Small, so that a few entries roll.
pub fn config() -> CommitLogConfig {
    CommitLogConfig {
        segment_size: 4096,
        frame_limit: 2048,
        ring_bytes: 1024,
        write_batch_bytes: 4096,
        chain_start: CHAIN_START,
    }
}

pub struct Open {
    pub log: CommitLog,
    pub files: Arc<GroupFiles>,
    pub report: RecoveryReport,
}

pub fn open(fs: Arc<dyn FileSystem>) -> Result<Open> {
    open_with(fs, Path::new(GROUP), config(), None)
}

pub fn open_with(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    config: CommitLogConfig,
    checkpointed: Option<EntryId>,
) -> Result<Open> {
    let files = Arc::new(GroupFiles::open(fs, dir)?);
    let (log, report) = CommitLog::open(Arc::clone(&files), config, checkpointed)?;
    Ok(Open { log, files, report })
}

/// An entry whose body tells where it comes from.
pub fn entry(term: u64, index: u64, body_len: usize) -> AppendEntry {
    let body: Vec<u8> = (0..body_len)
        .map(|at| (term.wrapping_mul(31) ^ index.wrapping_mul(7) ^ at as u64) as u8 | 1)
        .collect();
    let mut entry = LogEntry::new(FrameKind::Items, EntryId::new(term, index), Bytes::from(body));
    (entry.count, entry.store_time, entry.lease_time) = (1, 1_000 + index, index);
    AppendEntry { entry, expected_head_crc: None }
}

/// Makes a call and waits until its callback is told.
pub fn wait(call: impl FnOnce(FlushCallback) -> Result<()>) -> Result<()> {
    let (done, told) = mpsc::channel();
    call(Box::new(move |result| {
        let _ = done.send(result);
    }))?;
    told.recv_timeout(Duration::from_secs(30)).expect("a callback is told within 30 s")
}

pub fn append(log: &CommitLog, entries: Vec<AppendEntry>) -> Result<()> {
    wait(|done| log.append(entries, done))
}

pub fn truncate(log: &CommitLog, last: Option<u64>) -> Result<()> {
    wait(|done| {
        log.truncate_after(last.map(LogIndex), done);
        Ok(())
    })
}

/// Every entry that the log holds, read in small steps.
pub fn read_all(log: &CommitLog) -> Result<Vec<PlacedEntry>> {
    let Some(first) = log.first() else { return Ok(Vec::new()) };
    let end = LogIndex(log.last().ok_or(StoreError::Stopped)?.index.0 + 1);
    let mut all: Vec<PlacedEntry> = Vec::new();
    let mut from = first.index;
    while from < end {
        let some = log.read(from, end, 700)?;
        from = LogIndex(from.0 + some.len() as u64);
        all.extend(some);
    }
    Ok(all)
}

pub fn segment(base: u64) -> PathBuf {
    Path::new(GROUP).join("commitlog").join(format!("{base:020}"))
}

/// Says which seed failed.
pub struct Seed(pub u64, pub &'static str);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed with seed {}; repeat by RAFTMQ_SEED={} cargo test -p mq-store {}",
                self.0, self.0, self.1
            );
        }
    }
}

/// The seeds to run: `count` of them, or the one of the environment variable `RAFTMQ_SEED`.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RAFTMQ_SEED") {
        Ok(seed) => vec![seed.parse().expect("RAFTMQ_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}
