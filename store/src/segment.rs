//! The files of a CommitLog: segments of one fixed size, named by the physical offset of their first byte.
//!
//! ```text
//!  commitlog/00000000000000000000    [0, size)
//!  commitlog/00000000001073741824    [size, 2 · size)      for size = 1 GiB; a file is as long as what was written
//! ```
//!
//! What always holds: a segment's file and its name survive a power cut before its first frame is written.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::LogOffset;
use crate::error::Result;
use crate::fs::{File, FileSystem, OpenMode};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// One open segment. Clones share the file.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) base: LogOffset,
    pub(crate) file: Arc<dyn File>,
}

impl Segment {
    /// Reads at a physical offset until `buf` is full or the file ends.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: LogOffset) -> Result<usize> {
        self.file.read_at(buf, offset.0 - self.base.0)
    }

    /// Overwrites `[from, to)` with zeros and syncs.
    pub(crate) fn zero(&self, from: LogOffset, to: LogOffset) -> Result<()> {
        let (mut at, end) = (from.0 - self.base.0, to.0 - self.base.0);
        while at < end {
            let len = (end - at).min(ZEROS.len() as u64);
            self.file.write_at(&[IoSlice::new(&ZEROS[..len as usize])], at)?;
            at += len;
        }
        self.file.sync_data()
    }

    /// Offset behind the file's last byte.
    pub(crate) fn end(&self) -> Result<LogOffset> {
        Ok(LogOffset(self.base.0 + self.file.len()?))
    }
}

/// The segments of one log.
#[derive(Debug)]
pub(crate) struct Segments {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    size: u64,
    open: RwLock<BTreeMap<u64, Segment>>,
}

impl Segments {
    /// Opens every segment in `dir` that begins at or above `start`.
    pub(crate) fn open(fs: Arc<dyn FileSystem>, dir: PathBuf, size: u64, start: LogOffset) -> Result<Self> {
        let mut open = BTreeMap::new();
        for name in fs.read_dir(&dir)? {
            let Some(base) = base_of(&name).filter(|base| base.0 % size == 0) else {
                tracing::warn!(file = name, dir = %dir.display(), "not a segment, left alone");
                continue;
            };
            if base < start {
                // Dropped; a crash came between the record of that and the unlinking.
                fs.remove_file(&dir.join(&name))?;
                continue;
            }
            let file = fs.open(&dir.join(&name), OpenMode::ReadWrite)?;
            open.insert(base.0, Segment { base, file });
        }
        Ok(Self { fs, dir, size, open: RwLock::new(open) })
    }

    /// The folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The segment that begins at `base`.
    pub(crate) fn starting_at(&self, base: LogOffset) -> Option<Segment> {
        self.open.read().get(&base.0).cloned()
    }

    /// The segment that `offset` lies in.
    pub(crate) fn containing(&self, offset: LogOffset) -> Option<Segment> {
        self.starting_at(LogOffset(offset.0 - offset.0 % self.size))
    }

    /// All segments, oldest first.
    pub(crate) fn all(&self) -> Vec<Segment> {
        self.open.read().values().cloned().collect()
    }

    /// Path of the segment that begins at `base`, whether it exists or not.
    pub(crate) fn path(&self, base: LogOffset) -> PathBuf {
        self.dir.join(format!("{:020}", base.0))
    }

    /// Creates the segment that begins at `base`; it survives a power cut on return.
    pub(crate) fn create(&self, base: LogOffset) -> Result<Segment> {
        let file = self.fs.open(&self.path(base), OpenMode::CreateNew)?;
        file.sync_all()?;
        self.fs.sync_dir(&self.dir)?;
        let segment = Segment { base, file };
        self.open.write().insert(base.0, segment.clone());
        Ok(segment)
    }

    /// Unlinks every segment that begins at or above `from`, the newest first, and syncs the folder. Crash in between → the
    /// ones that are left are still in one piece with the log before them.
    pub(crate) fn remove_from(&self, from: LogOffset) -> Result<()> {
        let gone: Vec<u64> = self.open.read().range(from.0..).map(|(base, _)| *base).collect();
        for base in gone.iter().rev() {
            self.fs.remove_file(&self.path(LogOffset(*base)))?;
            self.open.write().remove(base);
        }
        self.sync_dir()
    }

    /// Unlinks every segment that begins below `floor`, the oldest first, and syncs the folder. Readers that hold one go on.
    pub(crate) fn remove_below(&self, floor: LogOffset) -> Result<()> {
        let gone: Vec<u64> = self.open.read().range(..floor.0).map(|(base, _)| *base).collect();
        for base in gone {
            self.open.write().remove(&base);
            self.fs.remove_file(&self.path(LogOffset(base)))?;
        }
        self.sync_dir()
    }

    /// Makes all names durable.
    pub(crate) fn sync_dir(&self) -> Result<()> {
        self.fs.sync_dir(&self.dir)
    }
}

fn base_of(name: &str) -> Option<LogOffset> {
    let digits = name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| name.parse().ok().map(LogOffset)).flatten()
}
