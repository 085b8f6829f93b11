//! Where the files of queues are, and the bounded set of those that are open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{FILE_LEN, QueueId, UNIT_LEN, UNITS_PER_FILE};
use crate::StoreError;
use crate::fs::{File, FileSystem, OpenMode};

/// One file of one queue: `number` counts files from the queue's first unit ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId {
    pub queue: QueueId,
    pub number: u64,
}

impl FileId {
    /// The file that holds unit `position`.
    pub fn of(queue: QueueId, position: u64) -> Self {
        Self { queue, number: position / UNITS_PER_FILE }
    }

    /// Position of its first unit.
    pub fn first(self) -> u64 {
        self.number * UNITS_PER_FILE
    }
}

/// Byte of unit `position` in its file.
pub(super) fn byte_of(position: u64) -> u64 {
    position % UNITS_PER_FILE * UNIT_LEN as u64
}

/// Folder of a topic incarnation.
pub(super) fn topic_dir(root: &Path, id: QueueId) -> PathBuf {
    root.join(format!("{}-{}", id.topic_id, id.incarnation))
}

/// Folder of a queue.
pub(super) fn queue_dir(root: &Path, id: QueueId) -> PathBuf {
    topic_dir(root, id).join(id.queue.to_string())
}

/// Path of a file.
pub(super) fn file_path(root: &Path, id: FileId) -> PathBuf {
    queue_dir(root, id.queue).join(format!("{:020}", id.number * FILE_LEN))
}

/// Reads the name of a topic folder.
pub(super) fn parse_topic_dir(name: &str) -> Option<(u32, u32)> {
    let (topic, incarnation) = name.split_once('-')?;
    let id = (topic.parse().ok()?, incarnation.parse().ok()?);
    (name == format!("{}-{}", id.0, id.1)).then_some(id)
}

/// Reads the name of a file and gives its number.
pub(super) fn parse_file(name: &str) -> Option<u64> {
    let start: u64 = name.parse().ok()?;
    (name.len() == 20 && start.is_multiple_of(FILE_LEN)).then_some(start / FILE_LEN)
}

struct Open {
    file: Arc<dyn File>,
    used: u64,
}

#[derive(Default)]
struct OpenSet {
    files: HashMap<FileId, Open>,
    clock: u64,
}

/// At most `limit` open files; the longest unused ones are closed first.
pub(super) struct OpenFiles {
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
    limit: usize,
    open: Mutex<OpenSet>,
}

impl OpenFiles {
    pub fn new(fs: Arc<dyn FileSystem>, root: PathBuf, limit: usize) -> Self {
        Self { fs, root, limit: limit.max(2), open: Mutex::default() }
    }

    /// The file, opened if it is not. With `create` it is made when missing.
    pub fn get(&self, id: FileId, create: bool) -> Result<Arc<dyn File>, StoreError> {
        let mut open = self.open.lock();
        open.clock += 1;
        let clock = open.clock;
        if let Some(entry) = open.files.get_mut(&id) {
            entry.used = clock;
            return Ok(entry.file.clone());
        }
        // Opened under the lock: two readers of a cold file must not open it twice, and an open is short.
        let mode = if create { OpenMode::Create } else { OpenMode::ReadWrite };
        let file = self.fs.open(&file_path(&self.root, id), mode)?;
        if open.files.len() >= self.limit {
            close_oldest(&mut open.files);
        }
        open.files.insert(id, Open { file: file.clone(), used: clock });
        Ok(file)
    }

    /// Closes one file that goes away.
    pub fn close(&self, file: FileId) {
        self.open.lock().files.remove(&file);
    }

    /// Closes the files of a queue that goes away.
    pub fn forget(&self, queue: QueueId) {
        self.open.lock().files.retain(|id, _| id.queue != queue);
    }
}

/// Closes the longest unused quarter at once, so that a scan over many queues does not sort for each of them.
///
/// Closing a file with unsynced bytes loses nothing: they stay in the page cache, the later sync opens the file again
/// and is told of an error of their write-back that nobody has seen yet.
fn close_oldest(files: &mut HashMap<FileId, Open>) {
    let mut by_use: Vec<(u64, FileId)> = files.iter().map(|(id, open)| (open.used, *id)).collect();
    by_use.sort_unstable();
    for (_, id) in by_use.iter().take((files.len() / 4).max(1)) {
        files.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_drawing() {
        let id = QueueId::new(7, 2, 3);
        let path = file_path(Path::new("q"), FileId::of(id, 300_000));
        assert_eq!(path, Path::new("q/7-2/3/00000000000006000000"));
        assert_eq!(parse_file("00000000000006000000"), Some(1));
        assert_eq!(parse_file("00000000000006000020"), None, "no file begins there");
        assert_eq!(parse_file("6000000"), None);
        assert_eq!(parse_topic_dir("7-2"), Some((7, 2)));
        assert_eq!(parse_topic_dir("07-2"), None, "one folder has one name");
        assert_eq!(parse_topic_dir("7"), None);
    }
}
