//! The one file layer. Every file of the project goes through it (RocksDB's own files excepted), so that tests can
//! record what is called and in which order, fail any call, and take the power away.
//!
//! What survives: a written byte survives a crash of the *machine* only after [`File::sync_data`] or
//! [`File::sync_all`]; a created, renamed, linked or removed name only after [`FileSystem::sync_dir`] of its folder. A
//! crash of the *process* loses nothing that was written.

#[cfg(any(test, feature = "testkit"))]
mod crashing;
mod os;
#[cfg(any(test, feature = "testkit"))]
mod recording;

use std::fmt::Debug;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use crate::error::Result;

#[cfg(any(test, feature = "testkit"))]
pub use crashing::{CrashingFs, Failure};
pub use os::OsFileSystem;
#[cfg(any(test, feature = "testkit"))]
pub use recording::{Event, Journal, Op, RecordingFs};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading; the file must exist.
    Read,
    /// Reading and writing; the file must exist.
    ReadWrite,
    /// Reading and writing; the file must not exist and is created empty.
    CreateNew,
    /// Reading and writing; created empty if it does not exist, else kept as it is.
    Create,
}

/// An open file. Positions are always explicit, so that a handle can be shared.
pub trait File: Send + Sync + Debug {
    /// Writes all of `parts` one after the other from `offset` on, extending the file where needed. Partial writes and
    /// the system's limit on the number of parts are handled inside. On an error any part may have been written.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// Reads until `buf` is full or the file ends; returns the number of bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// fdatasync: on return all bytes written before, and the file's length, survive a power cut.
    fn sync_data(&self) -> Result<()>;

    /// fsync: like [`File::sync_data`], with all metadata of the file. Not its name: see [`FileSystem::sync_dir`].
    fn sync_all(&self) -> Result<()>;

    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// True if the file has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The path it was opened with.
    fn path(&self) -> &Path;
}

/// Held as long as it lives; the system frees it also when the process dies.
pub trait HeldLock: Send + Sync + Debug {}

/// Files and folders by path.
pub trait FileSystem: Send + Sync + Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>>;

    /// Creates the folder and what is missing above it. Names are durable after `sync_dir` of each parent.
    fn create_dir_all(&self, path: &Path) -> Result<()>;

    /// Names in the folder, sorted.
    fn read_dir(&self, path: &Path) -> Result<Vec<String>>;

    /// Renames, replacing a file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<()>;

    /// Removes a folder with everything in it.
    fn remove_dir_all(&self, path: &Path) -> Result<()>;

    /// A second name for the same file.
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Copies a file's bytes to a new file, replacing one of that name. Not synced.
    fn copy(&self, from: &Path, to: &Path) -> Result<()>;

    /// fsync of a folder: creations, renames and removals in it so far survive a power cut.
    fn sync_dir(&self, path: &Path) -> Result<()>;

    /// True if a file or folder of that name exists.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Length of a file.
    fn len(&self, path: &Path) -> Result<u64>;

    /// Creates the file if needed and takes the system's exclusive lock on it, without waiting;
    /// [`crate::StoreError::Locked`] if another process holds it.
    fn lock(&self, path: &Path) -> Result<Box<dyn HeldLock>>;
}

/// Creates `path` and what is missing above it; all of it survives a power cut on return.
///
/// Level by level: a folder's name is synced before anything is created in it. So if a killed process left a name in the
/// cache only, it is that of the deepest folder there is, which is synced again here.
pub fn create_dir_durably(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    let mut missing: Vec<&Path> = Vec::new();
    let mut deepest = Some(path);
    while let Some(at) = deepest.filter(|at| !at.as_os_str().is_empty()) {
        if fs.exists(at)? {
            break;
        }
        missing.push(at);
        deepest = at.parent();
    }
    if let Some(above) = deepest.and_then(parent) {
        fs.sync_dir(above)?;
    }
    for at in missing.into_iter().rev() {
        fs.create_dir_all(at)?;
        if let Some(above) = parent(at) {
            fs.sync_dir(above)?;
        }
    }
    Ok(())
}

/// The folder above, the working directory for a bare name.
fn parent(path: &Path) -> Option<&Path> {
    path.parent().map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above })
}
