//! The small file `record` of a checkpoint: which log it belongs to.
//!
//! ```text
//!  0 "MQCP"
//!  4 version u16
//!  6 flags u16          1 = a vote is recorded, 2 = it was committed
//!  8 applied term u64   C: the newest entry whose effects are in the state
//! 16 applied index u64
//! 24 vote term u64
//! 32 vote node u64
//! 40 log end u64        CommitLog offset behind the frame of C
//! 48 chain u32          head_crc of the frame of C
//! 52 crc32c u32         of the 52 bytes before it                                  all little-endian
//! ```
//!
//! What always holds: C was committed and flushed here when this was written, and the vote was durable. A log that
//! lacks C, holds another entry there, or a vote that is older, is a log that lost something: it must not vote.

use std::path::Path;

use crate::commit_log::CommitLog;
use crate::group_files::VoteRecord;
use crate::{EntryId, LogIndex, LogOffset, StoreError};

const MAGIC: &[u8; 4] = b"MQCP";
const VERSION: u16 = 1;
const VOTED: u16 = 1;
const COMMITTED: u16 = 2;
pub(super) const RECORD_LEN: usize = 56;

/// What the node's log and vote were when a checkpoint was made. Chain and log end are those of the frame of the
/// newest applied entry, which no truncation can take away, not those of the log's uncommitted tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// The durable vote.
    pub vote: Option<VoteRecord>,
    /// CommitLog offset behind the frame of the newest applied entry.
    pub log_end: LogOffset,
    /// The head_crc of that frame.
    pub chain: u32,
}

impl CheckpointRecord {
    pub(super) fn encode(&self, applied: EntryId) -> [u8; RECORD_LEN] {
        let vote = self.vote.unwrap_or(VoteRecord { term: 0, node: 0, committed: false });
        let mut flags = 0;
        if self.vote.is_some() {
            flags |= VOTED;
        }
        if vote.committed {
            flags |= COMMITTED;
        }
        let mut bytes = Vec::with_capacity(RECORD_LEN);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for number in [applied.term.0, applied.index.0, vote.term, vote.node, self.log_end.0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.chain.to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.try_into().expect("4 + 2 + 2 + 5 * 8 + 4 + 4 bytes")
    }

    pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<(EntryId, Self), StoreError> {
        let damaged = |found: String| StoreError::corrupt(path, 0, "a checkpoint record", found);
        let bytes: &[u8; RECORD_LEN] =
            bytes.try_into().map_err(|_| damaged(format!("{} bytes, not {RECORD_LEN}", bytes.len())))?;
        let crc = crc32c::crc32c(&bytes[..RECORD_LEN - 4]);
        let stored = u32_at(bytes, RECORD_LEN - 4);
        if crc != stored {
            return Err(damaged(format!("checksum {stored:08x} over bytes with {crc:08x}")));
        }
        let (version, flags) = (u16_at(bytes, 4), u16_at(bytes, 6));
        if &bytes[..4] != MAGIC || version != VERSION {
            return Err(damaged(format!("magic {:02x?}, version {version}", &bytes[..4])));
        }
        let vote = VoteRecord {
            term: u64_at(bytes, 24),
            node: u64_at(bytes, 32),
            committed: flags & COMMITTED != 0,
        };
        let record = Self {
            vote: (flags & VOTED != 0).then_some(vote),
            log_end: LogOffset(u64_at(bytes, 40)),
            chain: u32_at(bytes, 48),
        };
        Ok((EntryId::new(u64_at(bytes, 8), u64_at(bytes, 16)), record))
    }

    /// Refuses a vote that is older than the recorded one: it was durable, so somebody lost it.
    pub(super) fn check_vote(&self, path: &Path, now: Option<VoteRecord>) -> Result<(), StoreError> {
        let order = |vote: VoteRecord| (vote.term, vote.committed);
        match (self.vote, now) {
            (None, _) => Ok(()),
            (Some(then), Some(now)) if order(now) >= order(then) => Ok(()),
            (Some(then), now) => Err(StoreError::corrupt(
                path,
                0,
                format!("a vote in raft/vote that is not older than {then:?}"),
                format!("{now:?}"),
            )),
        }
    }

    /// Refuses a log that does not hold the entry `applied` with the recorded chain value.
    pub(super) fn check_log(&self, path: &Path, applied: EntryId, log: &CommitLog) -> Result<(), StoreError> {
        let expected = || format!("entry {applied} ending at {} with chain {:08x}", self.log_end, self.chain);
        let refuse = |found: String| StoreError::corrupt(path, 0, expected(), found);
        if log.purged().is_some_and(|purged| purged.index >= applied.index) {
            return Ok(());
        }
        if log.last().is_none_or(|last| last.index < applied.index) {
            return Err(refuse(format!("a log that ends at {:?}", log.last())));
        }
        let next = LogIndex(applied.index.0 + 1);
        let found = log.read(applied.index, next, 0)?;
        let Some(found) = found.first() else { return Err(refuse("no such entry".to_owned())) };
        if found.entry.term != applied.term || found.head_crc != self.chain {
            return Err(refuse(format!("an entry of term {} with {:08x}", found.entry.term, found.head_crc)));
        }
        Ok(())
    }
}

fn u16_at(bytes: &[u8; RECORD_LEN], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; RECORD_LEN], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8; RECORD_LEN], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CheckpointRecord {
        CheckpointRecord {
            vote: Some(VoteRecord { term: 7, node: 2, committed: true }),
            log_end: LogOffset(1 << 33),
            chain: 0xdead_beef,
        }
    }

    #[test]
    fn record_round_trips_and_notices_every_flipped_bit() {
        let path = Path::new("record");
        let applied = EntryId::new(7, 1 << 40);
        let bytes = record().encode(applied);
        assert_eq!(CheckpointRecord::decode(path, &bytes).expect("intact"), (applied, record()));
        for bit in 0..RECORD_LEN * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            CheckpointRecord::decode(path, &bytes).expect_err("a flipped bit is noticed");
        }
        CheckpointRecord::decode(path, &bytes[..RECORD_LEN - 1]).expect_err("short");
    }

    #[test]
    fn older_vote_is_refused() {
        let path = Path::new("record");
        let vote = |term, committed| Some(VoteRecord { term, node: 1, committed });
        record().check_vote(path, vote(7, true)).expect("the same");
        record().check_vote(path, vote(8, false)).expect("a newer one");
        record().check_vote(path, vote(7, false)).expect_err("its commitment is forgotten");
        record().check_vote(path, vote(6, true)).expect_err("older");
        record().check_vote(path, None).expect_err("forgotten");
    }
}
