//! A small record kept twice in one file, so that neither a crash nor one rotten slot loses it.
//!
//! ```text
//!  slot A at 0, slot B at 4096, each:
//!  0        4      8              16     20       24            4096
//!  +--------+------+--------------+------+--------+---------+----+
//!  | "MQS1" | crc  | sequence u64 | len  | zero   | payload | 0… |
//!  +--------+------+--------------+------+--------+---------+----+
//!  little-endian; crc = crc32c of bytes 8 to 24 + len
//! ```
//!
//! What always holds: a change is written to A, synced, reported; then to B, synced before the next change. So at rest both
//! hold the truth. Crash before A is synced → B has the old record, nothing was reported. Crash before B is synced → A has the
//! new one and the higher sequence. B is written only when A is whole.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use crate::StoreError;
use crate::error::Result;
use crate::fs::{File, FileSystem, OpenMode};

const SLOT_LEN: usize = 4096;
const SLOT_A: u64 = 0;
const SLOT_B: u64 = SLOT_LEN as u64;
const HEADER_LEN: usize = 24;
const MAGIC: &[u8; 4] = b"MQS1";

/// Greatest payload of a record.
pub(crate) const PAYLOAD_MAX: usize = SLOT_LEN - HEADER_LEN;

/// A record in two slots.
#[derive(Debug)]
pub(crate) struct TwoSlots {
    file: Arc<dyn File>,
    sequence: u64,
    /// Written to slot A, not yet to slot B.
    ahead: Option<Vec<u8>>,
}

enum Slot {
    Empty,
    Whole { sequence: u64, payload: Vec<u8> },
    Broken { expected: String, found: String },
}

impl TwoSlots {
    /// Opens or creates the file, brings both slots to the newer record, and syncs it. The caller syncs the folder.
    pub(crate) fn open(fs: &dyn FileSystem, path: &Path) -> Result<(Self, Option<Vec<u8>>)> {
        let file = fs.open(path, OpenMode::Create)?;
        let mut bytes = vec![0; 2 * SLOT_LEN];
        file.read_at(&mut bytes, 0)?;
        let (a, b) = (read_slot(&bytes[..SLOT_LEN]), read_slot(&bytes[SLOT_LEN..]));
        let mut slots = Self { file, sequence: 0, ahead: None };
        let (sequence, payload, newer, other) = match (a, b) {
            (Slot::Whole { sequence: a, payload }, Slot::Whole { sequence: b, .. }) if a >= b => {
                (a, payload, SLOT_A, SLOT_B)
            }
            (_, Slot::Whole { sequence, payload }) => (sequence, payload, SLOT_B, SLOT_A),
            (Slot::Whole { sequence, payload }, _) => (sequence, payload, SLOT_A, SLOT_B),
            // Never reported: the first change ever was not yet whole in A, so B was never begun.
            (_, Slot::Empty) => {
                slots.file.write_at(&[IoSlice::new(&[0; 2 * SLOT_LEN])], SLOT_A)?;
                slots.file.sync_data()?;
                return Ok((slots, None));
            }
            (_, Slot::Broken { expected, found }) => {
                return Err(StoreError::corrupt(path, SLOT_B, expected, found));
            }
        };
        // A killed process, or a sync that failed, may have left either slot in the page cache only. Both are written again,
        // the newer one first: a crash never takes both.
        let image = slot_image(sequence, &payload);
        for at in [newer, other] {
            slots.file.write_at(&[IoSlice::new(&image)], at)?;
            slots.file.sync_data()?;
        }
        slots.sequence = sequence;
        Ok((slots, Some(payload)))
    }

    /// Makes `payload` the record: durable on return. Slot B still has the one before, until [`Self::settle`].
    pub(crate) fn write(&mut self, payload: Vec<u8>) -> Result<()> {
        if payload.len() > PAYLOAD_MAX {
            return Err(StoreError::Limit {
                what: "bytes of a record in two slots",
                value: payload.len() as u64,
                limit: PAYLOAD_MAX as u64,
            });
        }
        self.settle()?;
        self.sequence += 1;
        self.file.write_at(&[IoSlice::new(&slot_image(self.sequence, &payload))], SLOT_A)?;
        self.file.sync_data()?;
        self.ahead = Some(payload);
        Ok(())
    }

    /// Brings slot B to what slot A has, durable on return.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if let Some(payload) = &self.ahead {
            self.file.write_at(&[IoSlice::new(&slot_image(self.sequence, payload))], SLOT_B)?;
            self.file.sync_data()?;
            self.ahead = None;
        }
        Ok(())
    }
}

fn slot_image(sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; SLOT_LEN];
    image[..4].copy_from_slice(MAGIC);
    image[8..16].copy_from_slice(&sequence.to_le_bytes());
    image[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    image[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(payload);
    let crc = crc32c::crc32c(&image[8..HEADER_LEN + payload.len()]);
    image[4..8].copy_from_slice(&crc.to_le_bytes());
    image
}

fn read_slot(slot: &[u8]) -> Slot {
    if slot.iter().all(|b| *b == 0) {
        return Slot::Empty;
    }
    let broken = |expected: String, found: String| Slot::Broken { expected, found };
    if &slot[..4] != MAGIC {
        return broken(format!("{MAGIC:?}"), format!("{:?}", &slot[..4]));
    }
    let word = |at: usize| u32::from_le_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]);
    let len = word(16) as usize;
    if len > PAYLOAD_MAX {
        return broken(format!("at most {PAYLOAD_MAX} bytes"), format!("{len}"));
    }
    let crc = crc32c::crc32c(&slot[8..HEADER_LEN + len]);
    if crc != word(4) {
        return broken(format!("crc {:08x}", word(4)), format!("{crc:08x}"));
    }
    let sequence = u64::from(word(8)) | (u64::from(word(12)) << 32);
    Slot::Whole { sequence, payload: slot[HEADER_LEN..HEADER_LEN + len].to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::OsFileSystem;

    fn damaged(dir: &Path, at: &[usize]) -> Result<Option<Vec<u8>>> {
        let path = dir.join("record");
        let file = OsFileSystem.open(&path, OpenMode::Create)?;
        for at in at {
            let mut byte = [0];
            file.read_at(&mut byte, *at as u64)?;
            file.write_at(&[IoSlice::new(&[byte[0] ^ 1])], *at as u64)?;
        }
        TwoSlots::open(&OsFileSystem, &path).map(|(_, payload)| payload)
    }

    #[test]
    fn one_rotten_slot_changes_nothing_two_are_damage() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("record");
        let (mut slots, none) = TwoSlots::open(&OsFileSystem, &path).expect("created");
        assert_eq!(none, None);
        for value in [b"one".to_vec(), b"two".to_vec()] {
            slots.write(value).expect("written");
        }
        slots.settle().expect("settled");
        drop(slots);
        for slot in [0, SLOT_LEN] {
            for at in [0, 5, 9, 17, HEADER_LEN + 1] {
                let read = damaged(dir.path(), &[slot + at]).expect("the other slot is whole");
                assert_eq!(read.as_deref(), Some(&b"two"[..]), "byte {at} of the slot at {slot}");
            }
        }
        let both = damaged(dir.path(), &[HEADER_LEN, SLOT_LEN + HEADER_LEN]);
        assert!(matches!(both, Err(StoreError::Corrupt { .. })), "{both:?}");
    }

    #[test]
    fn a_crash_between_the_slots_keeps_what_was_reported() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("record");
        let (mut slots, _) = TwoSlots::open(&OsFileSystem, &path).expect("created");
        slots.write(b"old".to_vec()).expect("written");
        slots.write(b"new".to_vec()).expect("written");
        drop(slots);
        let (_, read) = TwoSlots::open(&OsFileSystem, &path).expect("opened");
        assert_eq!(read.as_deref(), Some(&b"new"[..]));
    }
}
