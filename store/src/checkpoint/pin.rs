//! Holding a checkpoint while it is copied to another member.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::list::FileList;
use super::{CheckpointRecord, FILES, RECORD, STATE};
use crate::consume_queue::pinned_files;
use crate::{EntryId, LogIndex};

/// How often each checkpoint is held.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<BTreeMap<LogIndex, usize>>);

impl Pins {
    pub fn hold(self: &Arc<Self>, index: LogIndex) -> Held {
        *self.0.lock().entry(index).or_default() += 1;
        Held { pins: Arc::clone(self), index }
    }

    pub fn held(&self, index: LogIndex) -> bool {
        self.0.lock().contains_key(&index)
    }
}

#[derive(Debug)]
pub(super) struct Held {
    pins: Arc<Pins>,
    index: LogIndex,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut pins = self.pins.0.lock();
        if let Some(count) = pins.get_mut(&self.index) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.index);
            }
        }
    }
}

/// A file of a pinned checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedFile {
    /// Below the group's folder.
    pub path: PathBuf,
    /// Its valid bytes; a ConsumeQueue file may be longer.
    pub len: u64,
    /// Checksum of these bytes, where the checkpoint lists one.
    pub crc: Option<u32>,
}

/// A checkpoint that stays until this is dropped.
#[derive(Debug)]
pub struct CheckpointPin {
    /// C.
    pub applied: EntryId,
    /// The bytes of the newest membership up to C, as they were given to the state.
    pub membership: Vec<u8>,
    /// Vote, log end and chain value.
    pub record: CheckpointRecord,
    /// Everything that it consists of: the files of its folder, and the ConsumeQueue files up to C.
    pub files: Vec<PinnedFile>,
    _held: Held,
}

impl CheckpointPin {
    pub(super) fn new(
        applied: EntryId,
        record: CheckpointRecord,
        membership: Vec<u8>,
        list: &FileList,
        checkpoint: &Path,
        held: Held,
    ) -> Self {
        let own = |name: &str, bytes: &[u8]| PinnedFile {
            path: checkpoint.join(name),
            len: bytes.len() as u64,
            crc: Some(crc32c::crc32c(bytes)),
        };
        let mut files = vec![own(RECORD, &record.encode(applied)), own(FILES, &list.encode(applied))];
        files.extend(list.files.iter().map(|file| PinnedFile {
            path: checkpoint.join(STATE).join(&file.name),
            len: file.len,
            crc: Some(file.crc),
        }));
        files.extend(pinned_files(&list.queues).map(|(path, len)| PinnedFile { path, len, crc: None }));
        Self { applied, membership, record, files, _held: held }
    }
}
