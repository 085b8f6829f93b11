//! A file layer that writes down every call with its beginning and end, so that a test can say what came before what.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{File, FileSystem, HeldLock, OpenMode};
use crate::error::Result;

/// A call that changes something or makes it durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A file was opened in a mode that creates it.
    Create(PathBuf),
    /// Bytes were written.
    Write {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// fdatasync or fsync of a file.
    Sync(PathBuf),
    /// fsync of a folder.
    SyncDir(PathBuf),
    /// A file or folder was removed.
    Remove(PathBuf),
    /// Any other change of the path.
    Other(&'static str, PathBuf),
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The call of that number began.
    Begin(u64, Op),
    /// It returned; true if it succeeded.
    End(u64, bool),
    /// Something that the test noted.
    Mark(String),
}

/// What happened, in order.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    events: Arc<Mutex<(u64, Vec<Event>)>>,
}

impl Journal {
    /// Everything so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().1.clone()
    }

    /// Notes something of the test's own.
    pub fn mark(&self, what: impl Into<String>) {
        self.events.lock().1.push(Event::Mark(what.into()));
    }

    fn record<T>(&self, op: Op, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = {
            let mut events = self.events.lock();
            events.0 += 1;
            let number = events.0;
            events.1.push(Event::Begin(number, op));
            number
        };
        let result = call();
        self.events.lock().1.push(Event::End(number, result.is_ok()));
        result
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct RecordingFs {
    inner: Arc<dyn FileSystem>,
    journal: Journal,
}

impl RecordingFs {
    /// Records the calls to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        Self { inner, journal: Journal::default() }
    }

    /// What is recorded.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.journal.clone()
    }
}

#[derive(Debug)]
struct RecordingFile {
    inner: Arc<dyn File>,
    journal: Journal,
}

impl RecordingFile {
    fn record<T>(&self, op: impl FnOnce(PathBuf) -> Op, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.journal.record(op(self.inner.path().to_path_buf()), call)
    }
}

impl File for RecordingFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let len = parts.iter().map(|p| p.len() as u64).sum();
        self.record(|path| Op::Write { path, offset, len }, || self.inner.write_at(parts, offset))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buf, offset)
    }

    fn sync_data(&self) -> Result<()> {
        self.record(Op::Sync, || self.inner.sync_data())
    }

    fn sync_all(&self) -> Result<()> {
        self.record(Op::Sync, || self.inner.sync_all())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.record(|path| Op::Other("set_len", path), || self.inner.set_len(len))
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

impl FileSystem for RecordingFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let open = || self.inner.open(path, mode);
        let inner = match mode {
            OpenMode::CreateNew | OpenMode::Create => self.journal.record(Op::Create(path.into()), open),
            OpenMode::Read | OpenMode::ReadWrite => open(),
        }?;
        Ok(Arc::new(RecordingFile { inner, journal: self.journal.clone() }))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.journal.record(Op::Other("create_dir_all", path.into()), || self.inner.create_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<String>> {
        self.inner.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.journal.record(Op::Other("rename", to.into()), || self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.journal.record(Op::Remove(path.into()), || self.inner.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> Result<()> {
        self.journal.record(Op::Remove(path.into()), || self.inner.remove_dir_all(path))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.journal.record(Op::Other("hard_link", to.into()), || self.inner.hard_link(from, to))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.journal.record(Op::Other("copy", to.into()), || self.inner.copy(from, to))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.journal.record(Op::SyncDir(path.into()), || self.inner.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        self.inner.len(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn HeldLock>> {
        self.inner.lock(path)
    }
}
