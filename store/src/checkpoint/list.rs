//! The file `files` of a checkpoint: what belongs to it, so that damage is noticed and a copy can be made elsewhere.
//!
//! ```text
//!  0 "MQCL"
//!  4 version u16
//!  6 flags u16            0
//!  8 applied term u64     C, as in the record beside it
//! 16 applied index u64
//! 24 state files u32, queues u32
//!    state file*          name length u16, name, bytes u64, crc32c u32           sorted by name
//!    queue*               topic u32, incarnation u32, queue u32, min u64, next u64   sorted by queue
//!    crc32c u32           of everything before it                                little-endian
//! ```
//!
//! What always holds: the names are those of the folder `state` beside it, no more and no less. `min` and `next` are the
//! queue's as of C; queues that never held a message are left out.

use std::collections::BTreeMap;
use std::path::Path;

use crate::consume_queue::QueueId;
use crate::fs::{FileSystem, OpenMode};
use crate::{EntryId, QueueOffset, StoreError};

const MAGIC: &[u8; 4] = b"MQCL";
const VERSION: u16 = 1;
const READ_BYTES: usize = 1 << 20;

/// One file of a checkpoint's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateFile {
    pub name: String,
    pub len: u64,
    pub crc: u32,
}

/// Range of one queue as of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRange {
    /// The queue.
    pub id: QueueId,
    /// Its first position.
    pub min: QueueOffset,
    /// Its next position.
    pub next: QueueOffset,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileList {
    pub files: Vec<StateFile>,
    pub queues: Vec<QueueRange>,
}

impl FileList {
    /// Lists the folder `state`. Table files that `known` lists with the same length are not read again: they never
    /// change, and one open RocksDB gives a name once.
    pub fn of(
        fs: &dyn FileSystem,
        state: &Path,
        queues: Vec<QueueRange>,
        known: Option<&Self>,
    ) -> Result<Self, StoreError> {
        let known: BTreeMap<&str, &StateFile> =
            known.into_iter().flat_map(|list| &list.files).map(|file| (file.name.as_str(), file)).collect();
        let mut files = Vec::new();
        for name in fs.read_dir(state)? {
            let path = state.join(&name);
            let len = fs.len(&path)?;
            let same = known.get(name.as_str()).filter(|file| is_table(&name) && file.len == len);
            let crc = match same {
                Some(file) => file.crc,
                None => checksum(fs, &path)?.1,
            };
            files.push(StateFile { name, len, crc });
        }
        Ok(Self { files, queues })
    }

    pub fn encode(&self, applied: EntryId) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(0_u16.to_le_bytes());
        bytes.extend(applied.term.0.to_le_bytes());
        bytes.extend(applied.index.0.to_le_bytes());
        bytes.extend((self.files.len() as u32).to_le_bytes());
        bytes.extend((self.queues.len() as u32).to_le_bytes());
        for StateFile { name, len, crc } in &self.files {
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.extend(crc.to_le_bytes());
        }
        for QueueRange { id, min, next } in &self.queues {
            for number in [id.topic_id, id.incarnation, id.queue] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(min.0.to_le_bytes());
            bytes.extend(next.0.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    pub fn decode(path: &Path, bytes: &[u8], applied: EntryId) -> Result<Self, StoreError> {
        let damaged = |found: &str| StoreError::corrupt(path, 0, "a checkpoint's list of files", found);
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| damaged("no checksum"))?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(damaged("wrong checksum"));
        }
        let mut rest = Rest(body);
        let head = (|| Some((rest.take(4)?, rest.u16()?, rest.u16()?, rest.u64()?, rest.u64()?)))();
        let Some((magic, VERSION, 0, term, index)) = head else { return Err(damaged("another head")) };
        if magic != MAGIC {
            return Err(damaged("another magic"));
        }
        if EntryId::new(term, index) != applied {
            return Err(damaged(&format!("the list of {term}-{index}, not of {applied}")));
        }
        rest.list().filter(|_| rest.0.is_empty()).ok_or_else(|| damaged("a list of another length"))
    }

    /// Compares the folder `state` with the list, byte by byte.
    pub fn check(&self, fs: &dyn FileSystem, state: &Path) -> Result<(), StoreError> {
        let names = fs.read_dir(state)?;
        if let Some(more) = names.iter().find(|name| self.files.iter().all(|file| file.name != **name)) {
            return Err(StoreError::corrupt(&state.join(more), 0, "no file of that name", "a file"));
        }
        for file in &self.files {
            let path = state.join(&file.name);
            let (len, crc) = checksum(fs, &path)?;
            if (len, crc) != (file.len, file.crc) {
                let expected = format!("{} bytes with crc32c {:08x}", file.len, file.crc);
                return Err(StoreError::corrupt(&path, 0, expected, format!("{len} bytes with {crc:08x}")));
            }
        }
        Ok(())
    }
}

/// Table and blob files of RocksDB never change once they are written.
pub(super) fn is_table(name: &str) -> bool {
    matches!(Path::new(name).extension().and_then(|ext| ext.to_str()), Some("sst" | "blob"))
}

fn checksum(fs: &dyn FileSystem, path: &Path) -> Result<(u64, u32), StoreError> {
    let file = fs.open(path, OpenMode::Read)?;
    let mut bytes = vec![0; READ_BYTES];
    let (mut at, mut crc) = (0, 0);
    loop {
        let read = file.read_at(&mut bytes, at)?;
        crc = crc32c::crc32c_append(crc, &bytes[..read]);
        at += read as u64;
        if read < bytes.len() {
            return Ok((at, crc));
        }
    }
}

/// Bytes not yet taken apart.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(*self.take(2)?.first_chunk()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    fn list(&mut self) -> Option<FileList> {
        let (files, queues) = (self.u32()?, self.u32()?);
        let mut list = FileList::default();
        for _ in 0..files {
            let len = usize::from(self.u16()?);
            let name = std::str::from_utf8(self.take(len)?).ok()?.to_owned();
            list.files.push(StateFile { name, len: self.u64()?, crc: self.u32()? });
        }
        for _ in 0..queues {
            let id = QueueId { topic_id: self.u32()?, incarnation: self.u32()?, queue: self.u32()? };
            let (min, next) = (QueueOffset(self.u64()?), QueueOffset(self.u64()?));
            list.queues.push(QueueRange { id, min, next });
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_round_trips_and_notices_every_flipped_bit() {
        let list = FileList {
            files: vec![StateFile { name: "000012.sst".to_owned(), len: 1 << 40, crc: 0xdead_beef }],
            queues: vec![QueueRange {
                id: QueueId::new(1, 2, 3),
                min: QueueOffset(4),
                next: QueueOffset(1 << 33),
            }],
        };
        let (path, applied) = (Path::new("files"), EntryId::new(2, 7));
        let bytes = list.encode(applied);
        assert_eq!(FileList::decode(path, &bytes, applied).expect("intact"), list);
        FileList::decode(path, &bytes, EntryId::new(2, 8)).expect_err("the list of another checkpoint");
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            FileList::decode(path, &bytes, applied).expect_err("a flipped bit is noticed");
        }
    }
}
