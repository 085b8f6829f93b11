//! The file layer over the operating system.

use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{File, FileSystem, HeldLock, OpenMode};
use crate::StoreError;
use crate::error::Result;

/// Linux takes at most this many parts per call.
const IOV_MAX: usize = 1024;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFileSystem;

#[derive(Debug)]
struct OsFile {
    file: fs::File,
    path: PathBuf,
}

#[derive(Debug)]
struct OsLock {
    #[expect(dead_code, reason = "the lock lives as long as the open file")]
    file: fs::File,
}

impl HeldLock for OsLock {}

impl OsFile {
    fn error(&self, op: &'static str, source: io::Error) -> StoreError {
        StoreError::io(op, &self.path, source)
    }

    /// Writes at most [`IOV_MAX`] parts completely.
    fn write_parts(&self, parts: &mut [IoSlice<'_>], mut offset: u64) -> Result<u64> {
        let mut rest = parts;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match rustix::io::pwritev(&self.file, rest, offset) {
                Ok(0) => return Err(self.error("pwritev", io::ErrorKind::WriteZero.into())),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(self.error("pwritev", e.into())),
            }
        }
        Ok(offset)
    }
}

impl File for OsFile {
    fn write_at(&self, parts: &[IoSlice<'_>], mut offset: u64) -> Result<()> {
        let mut taken: Vec<IoSlice<'_>> = Vec::with_capacity(parts.len().min(IOV_MAX));
        for some in parts.chunks(IOV_MAX) {
            taken.clear();
            taken.extend_from_slice(some);
            offset = self.write_parts(&mut taken, offset)?;
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.file.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error("pread", e)),
            }
        }
        Ok(filled)
    }

    fn sync_data(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.error("fdatasync", e))
    }

    fn sync_all(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| self.error("fsync", e))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| self.error("ftruncate", e))
    }

    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(|e| self.error("fstat", e))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one file layer")]
impl FileSystem for OsFileSystem {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(false);
            }
        }
        let file = options.open(path).map_err(|e| StoreError::io("open", path, e))?;
        Ok(Arc::new(OsFile { file, path: path.to_path_buf() }))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path).map_err(|e| StoreError::io("mkdir", path, e))
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<String>> {
        let failed = |e| StoreError::io("readdir", path, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|e| StoreError::io("rename", from, e))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| StoreError::io("unlink", path, e))
    }

    fn remove_dir_all(&self, path: &Path) -> Result<()> {
        fs::remove_dir_all(path).map_err(|e| StoreError::io("rmdir", path, e))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        fs::hard_link(from, to).map_err(|e| StoreError::io("link", from, e))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        fs::copy(from, to).map(|_| ()).map_err(|e| StoreError::io("copy", from, e))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let folder = fs::File::open(path).map_err(|e| StoreError::io("open", path, e))?;
        folder.sync_all().map_err(|e| StoreError::io("fsync", path, e))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|e| StoreError::io("stat", path, e))
    }

    fn len(&self, path: &Path) -> Result<u64> {
        fs::metadata(path).map(|m| m.len()).map_err(|e| StoreError::io("stat", path, e))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn HeldLock>> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| StoreError::io("open", path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(OsLock { file })),
            Err(fs::TryLockError::WouldBlock) => Err(StoreError::Locked { path: path.to_path_buf() }),
            Err(fs::TryLockError::Error(e)) => Err(StoreError::io("flock", path, e)),
        }
    }
}
