//! Digests of everything that must be equal on all members, taken at a mark in the log.
//!
//! The state is read where the mark is applied; frames and queue units before the mark never change, so a thread in
//! the background reads them again from the files, up to where they ended at the mark.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use mq_protocol::cluster::DigestPart;
use mq_store::{CommitLog, LogIndex, PlacedEntry, QueueId, QueueOffset, QueueTable, State, StoreError};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::keys::FAMILIES;

/// Marks whose digests are kept.
const KEPT: usize = 4;
const READ_BYTES: usize = 4 << 20;
const READ_UNITS: usize = 16 * 1024;

/// What one member computed for a mark.
#[derive(Clone, Debug, PartialEq)]
pub struct DigestReport {
    /// Log index of the mark.
    pub index: u64,
    /// The comparable parts: equal names compare equal.
    pub parts: Vec<DigestPart>,
}

/// The digests of the last marks.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    reports: Mutex<VecDeque<(u64, Option<DigestReport>)>>,
    worker: OnceLock<SyncSender<Job>>,
}

#[derive(Debug)]
struct Job {
    mark: u64,
    index: u64,
    parts: Vec<DigestPart>,
    queues: BTreeMap<QueueId, QueueOffset>,
}

impl Digests {
    pub(crate) fn report(&self, mark: u64) -> Option<DigestReport> {
        let reports = self.reports.lock();
        reports.iter().find(|(found, _)| *found == mark).and_then(|(_, report)| report.clone())
    }

    /// Takes the digests of the state now, and those of the files later. `queues` are the ends of all living queues.
    pub(crate) fn take(
        self: &Arc<Self>,
        marks: &[u64],
        index: u64,
        state: &dyn State,
        queues: &BTreeMap<QueueId, QueueOffset>,
        files: (&CommitLog, &QueueTable),
    ) -> Result<(), StoreError> {
        let parts = state_parts(state)?;
        for &mark in marks {
            {
                let mut reports = self.reports.lock();
                reports.retain(|(found, _)| *found != mark);
                reports.push_back((mark, None));
                if reports.len() > KEPT {
                    reports.pop_front();
                }
            }
            let job = Job { mark, index, parts: parts.clone(), queues: queues.clone() };
            let worker = self.worker.get_or_init(|| self.start(files.0.clone(), files.1.clone()));
            if worker.try_send(job).is_err() {
                tracing::warn!(mark, "too many digests are asked for at once: this one is not computed");
            }
        }
        Ok(())
    }

    /// Starts the thread; it ends with this value.
    fn start(self: &Arc<Self>, log: CommitLog, queues: QueueTable) -> SyncSender<Job> {
        let (jobs, queue) = sync_channel(KEPT);
        let digests = Arc::downgrade(self);
        let run = move || {
            while let Some(job) = next(&queue) {
                let (mark, index) = (job.mark, job.index);
                let report = file_parts(job, &log, &queues);
                let Some(digests) = digests.upgrade() else { return };
                match report {
                    Ok(report) => digests.store(mark, report),
                    Err(error) => tracing::warn!(mark, index, %error, "digest not computed"),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("digest".to_owned()).spawn(run) {
            tracing::warn!(%error, "no thread for digests");
        }
        jobs
    }

    fn store(&self, mark: u64, report: DigestReport) {
        if let Some(slot) = self.reports.lock().iter_mut().find(|(found, _)| *found == mark) {
            slot.1 = Some(report);
        }
    }
}

fn next(queue: &Receiver<Job>) -> Option<Job> {
    queue.recv().ok()
}

fn part(name: String, count: u64, hash: Sha256) -> DigestPart {
    let digest = hash.finalize().to_vec();
    DigestPart { name, count, digest: digest.into() }
}

fn state_parts(state: &dyn State) -> Result<Vec<DigestPart>, StoreError> {
    let mut parts = Vec::new();
    for (family, name) in FAMILIES.iter().enumerate() {
        let (mut hash, mut count) = (Sha256::new(), 0);
        state.scan(family, &[], None, &mut |key, value| {
            hash.update((key.len() as u64).to_le_bytes());
            hash.update(key);
            hash.update((value.len() as u64).to_le_bytes());
            hash.update(value);
            count += 1;
            true
        })?;
        parts.push(part(format!("state/{name}"), count, hash));
    }
    Ok(parts)
}

fn file_parts(job: Job, log: &CommitLog, queues: &QueueTable) -> Result<DigestReport, StoreError> {
    let mut parts = vec![log_part(log, job.index)?];
    for (queue, next) in job.queues {
        parts.push(queue_part(queues, queue, next)?);
    }
    parts.extend(job.parts);
    Ok(DigestReport { index: job.index, parts })
}

fn queue_part(queues: &QueueTable, queue: QueueId, next: QueueOffset) -> Result<DigestPart, StoreError> {
    let mut at = queues.range(queue).0;
    let (mut hash, mut count) = (Sha256::new(), 0);
    while at < next {
        let want = usize::try_from(next.0 - at.0).unwrap_or(READ_UNITS).min(READ_UNITS);
        let units = queues.read(queue, at, want)?;
        if units.is_empty() {
            break; // The topic was deleted since.
        }
        for unit in &units {
            hash.update(unit.encode());
        }
        at.0 += units.len() as u64;
        count += units.len() as u64;
    }
    Ok(part(format!("queue/{queue}"), count, hash))
}

fn log_part(log: &CommitLog, last: u64) -> Result<DigestPart, StoreError> {
    let (mut hash, mut count) = (Sha256::new(), 0);
    let mut at = log.first().map_or(last + 1, |first| first.index.0);
    while at <= last {
        let frames = log.read(LogIndex(at), LogIndex(last + 1), READ_BYTES)?;
        let Some(newest) = frames.last() else { break };
        at = newest.entry.index.0 + 1;
        for frame in &frames {
            hash_frame(&mut hash, frame);
            count += 1;
        }
    }
    Ok(part("log".to_owned(), count, hash))
}

/// Everything of a frame but the number of its write batch, which differs between members.
fn hash_frame(hash: &mut Sha256, frame: &PlacedEntry) {
    let PlacedEntry { entry, offset, prev_crc, head_crc } = frame;
    hash.update([entry.kind as u8, entry.flags]);
    for number in [entry.term.0, entry.index.0, offset.0, entry.store_time, entry.lease_time] {
        hash.update(number.to_le_bytes());
    }
    for number in [*prev_crc, *head_crc, entry.body_crc, entry.count] {
        hash.update(number.to_le_bytes());
    }
    hash.update(&entry.body);
}
