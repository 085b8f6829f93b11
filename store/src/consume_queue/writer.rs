//! The write side of all queues of a group: buffered appends, one write per queue and file at publish, sync.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{FileId, OpenFiles, byte_of, file_path, queue_dir, topic_dir};
use super::queue::Queue;
use super::unit::{UNIT_LEN, decode_run};
use super::{QueueId, UNITS_PER_FILE};
use crate::StoreError;
use crate::fs::{FileSystem, OpenMode};

/// Units of one queue that are appended and not yet published.
pub(super) struct Pending {
    pub queue: Arc<Queue>,
    pub at: u64,
    pub bytes: Vec<u8>,
}

impl Pending {
    pub fn next(&self) -> u64 {
        self.at + (self.bytes.len() / UNIT_LEN) as u64
    }
}

/// What has to be synced before a checkpoint is valid.
#[derive(Default)]
pub(super) struct Dirty {
    pub files: BTreeSet<FileId>,
    pub folders: BTreeSet<PathBuf>,
}

/// State of the one writer.
#[derive(Default)]
pub(super) struct Writer {
    pub pending: BTreeMap<QueueId, Pending>,
    pub dirty: Dirty,
    /// Queues that are gone for readers, while a kept checkpoint may need their files.
    pub removed: Vec<QueueId>,
    /// Queues whose minimum was raised, while files below it may be there.
    pub raised: BTreeSet<QueueId>,
    /// Which queue published how many units, oldest first: the hot tails leave memory in this order.
    pub hot: VecDeque<(Arc<Queue>, usize)>,
    pub hot_units: usize,
    /// The first error. After a failed write or sync nothing is known about the files; only a restart helps.
    pub failed: Option<StoreError>,
}

impl Writer {
    /// The first error again, if there was one.
    pub fn usable(&self) -> Result<(), StoreError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Notes the error and returns it.
    pub fn fail(&mut self, error: StoreError) -> StoreError {
        self.failed.get_or_insert(error).clone()
    }

    /// Writes the appended units of one queue to its files.
    pub fn write(
        &mut self,
        fs: &dyn FileSystem,
        root: &Path,
        files: &OpenFiles,
        pending: &Pending,
    ) -> Result<(), StoreError> {
        let mut at = pending.at;
        let mut bytes = pending.bytes.as_slice();
        while !bytes.is_empty() {
            let id = FileId::of(pending.queue.id, at);
            let room = (id.first() + UNITS_PER_FILE - at) as usize * UNIT_LEN;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let create = at == id.first();
            if create {
                self.dirty.new_file(fs, root, id)?;
            }
            files.get(id, create)?.write_at(&[IoSlice::new(now)], byte_of(at))?;
            self.dirty.files.insert(id);
            at += (now.len() / UNIT_LEN) as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Publishes what was written, and lets the oldest units leave memory when there are more than `limit`.
    pub fn publish(&mut self, pending: Pending, limit: usize) {
        let count = pending.bytes.len() / UNIT_LEN;
        pending.queue.publish(decode_run(&pending.bytes));
        self.hot.push_back((pending.queue, count));
        self.hot_units += count;
        while self.hot_units > limit {
            let Some((queue, count)) = self.hot.pop_front() else { break };
            queue.cool(count);
            self.hot_units -= count;
        }
    }
}

impl Dirty {
    /// Makes the folders of a file; each of them has a new name in it, so all are synced with the next checkpoint.
    pub fn new_file(&mut self, fs: &dyn FileSystem, root: &Path, id: FileId) -> Result<(), StoreError> {
        let folder = queue_dir(root, id.queue);
        fs.create_dir_all(&folder)?;
        self.folders.insert(folder);
        self.folders.insert(topic_dir(root, id.queue));
        self.folders.insert(root.to_path_buf());
        Ok(())
    }

    /// Syncs files, then the folders that name them.
    pub fn sync(&self, fs: &dyn FileSystem, root: &Path) -> Result<(), StoreError> {
        for id in &self.files {
            // Opened apart from the bounded set: hundreds of dirty files must not push out those being read.
            fs.open(&file_path(root, *id), OpenMode::ReadWrite)?.sync_all()?;
        }
        for folder in &self.folders {
            fs.sync_dir(folder)?;
        }
        Ok(())
    }

    /// Forgets a queue whose files are deleted.
    pub fn forget(&mut self, root: &Path, id: QueueId) {
        self.files.retain(|file| file.queue != id);
        self.folders.remove(&queue_dir(root, id));
    }
}
