//! Digests of everything that must be equal on all members, taken at a mark in the log.
//!
//! The state is read where the mark is applied. Frames before the mark never change, so a thread in the background
//! reads them again, up to the mark.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mq_protocol::cluster::DigestPart;
use mq_store::{CommitLog, LogIndex, PlacedEntry, State, StoreError};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::state_machine::FAMILIES;

/// Marks whose digests are kept.
const KEPT: usize = 4;
const READ_BYTES: usize = 1 << 20;

/// What one member computed for a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkDigest {
    /// Log index of the mark.
    pub index: u64,
    /// The comparable parts.
    pub parts: Vec<DigestPart>,
}

/// The digests of the last marks; a mark whose frames are still being read has none yet.
#[derive(Debug, Default)]
pub struct Digests {
    marks: Mutex<VecDeque<(u64, Option<MarkDigest>)>>,
    reading: AtomicUsize,
}

impl Digests {
    /// The digests of a mark; `None` while it is not applied here, not computed, or forgotten.
    #[must_use]
    pub fn get(&self, mark: u64) -> Option<MarkDigest> {
        let marks = self.marks.lock();
        marks.iter().find(|(found, _)| *found == mark).and_then(|(_, digest)| digest.clone())
    }

    /// Takes the digests of the state now, those of the log on a thread of its own.
    pub(crate) fn take(
        self: &Arc<Self>,
        mark: u64,
        index: LogIndex,
        state: &dyn State,
        log: &CommitLog,
    ) -> Result<(), StoreError> {
        if self.reading.fetch_add(1, Ordering::AcqRel) >= KEPT {
            self.reading.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(mark, %index, "digest not computed: {KEPT} others are being computed");
            return Ok(());
        }
        let parts = state_parts(state)?;
        {
            let mut marks = self.marks.lock();
            marks.retain(|(found, _)| *found != mark);
            marks.push_back((mark, None));
            if marks.len() > KEPT {
                marks.pop_front();
            }
        }
        let (digests, log) = (Arc::clone(self), log.clone());
        let read = move || {
            match log_part(&log, index) {
                Ok(log) => {
                    let parts = std::iter::once(log).chain(parts).collect();
                    digests.store(mark, MarkDigest { index: index.0, parts });
                }
                Err(error) => tracing::warn!(mark, %index, %error, "digest not computed"),
            }
            digests.reading.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = std::thread::Builder::new().name("digest".to_owned()).spawn(read) {
            self.reading.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(mark, %error, "no thread for a digest");
        }
        Ok(())
    }

    fn store(&self, mark: u64, digest: MarkDigest) {
        if let Some(slot) = self.marks.lock().iter_mut().find(|(found, _)| *found == mark) {
            slot.1 = Some(digest);
        }
    }
}

fn part(name: String, count: u64, hash: Sha256) -> DigestPart {
    DigestPart { name, count, digest: Bytes::from(hash.finalize().to_vec()) }
}

fn state_parts(state: &dyn State) -> Result<Vec<DigestPart>, StoreError> {
    let mut parts = Vec::new();
    for (family, name) in FAMILIES.iter().enumerate() {
        let (mut hash, mut count) = (Sha256::new(), 0);
        state.scan(family, &[], None, &mut |key, value| {
            for field in [key, value] {
                hash.update((field.len() as u64).to_le_bytes());
                hash.update(field);
            }
            count += 1;
            true
        })?;
        parts.push(part(format!("state/{name}"), count, hash));
    }
    Ok(parts)
}

fn log_part(log: &CommitLog, last: LogIndex) -> Result<DigestPart, StoreError> {
    let (mut hash, mut count) = (Sha256::new(), 0);
    let end = LogIndex(last.0 + 1);
    let mut at = log.first().map_or(end, |first| first.index);
    while at < end {
        let frames = log.read(at, end, READ_BYTES)?;
        let Some(newest) = frames.last() else { break };
        at = LogIndex(newest.entry.index.0 + 1);
        count += frames.len() as u64;
        frames.iter().for_each(|frame| hash_frame(&mut hash, frame));
    }
    Ok(part("log".to_owned(), count, hash))
}

/// Everything of a frame but the number of its write batch, which is the node's own.
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
