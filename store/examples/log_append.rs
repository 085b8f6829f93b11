//! How many synced entries a second one log takes on this disk.
//!
//! `cargo run --release -p mq-store --example log_append -- FOLDER BODY_BYTES IN_FLIGHT SECONDS`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mq_store::{
    AppendEntry, CommitLog, CommitLogConfig, EntryId, FrameKind, GroupFiles, LogEntry, OsFileSystem,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, body, in_flight, seconds] = args.as_slice() else {
        return Err("usage: log_append FOLDER BODY_BYTES IN_FLIGHT SECONDS".into());
    };
    let (body, in_flight) = (Bytes::from(vec![7; body.parse()?]), in_flight.parse()?);
    let files = Arc::new(GroupFiles::open(Arc::new(OsFileSystem), &PathBuf::from(folder))?);
    let (log, _) = CommitLog::open(files, CommitLogConfig::default(), None)?;
    let (permit, done) = sync_channel::<bool>(in_flight);
    for _ in 0..in_flight {
        permit.send(true)?;
    }
    let (start, length) = (Instant::now(), Duration::from_secs(seconds.parse()?));
    let mut index = log.last().map_or(0, |last| last.index.0 + 1);
    let first = index;
    while start.elapsed() < length {
        if !done.recv()? {
            return Err("an append failed".into());
        }
        let entry = LogEntry::new(FrameKind::Items, EntryId::new(1, index), body.clone());
        let permit = permit.clone();
        let told = Box::new(move |result: Result<(), _>| {
            let _ = permit.send(result.is_ok());
        });
        log.append(vec![AppendEntry { entry, expected_head_crc: None }], told)?;
        index += 1;
    }
    log.stop();
    let (count, took) = (index - first, start.elapsed());
    println!("{count} entries in {took:.2?}: {:.0} entries/s", count as f64 / took.as_secs_f64());
    Ok(())
}
