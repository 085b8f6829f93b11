//! One process per data folder: the file `LOCK` in it, held by the system's lock as long as the process lives.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::fs::{FileSystem, HeldLock, create_dir_durably};

/// The lock on a data folder; free again when dropped, and when the process dies.
#[derive(Debug)]
pub struct DataLock {
    path: PathBuf,
    #[expect(dead_code, reason = "held, not used")]
    held: Box<dyn HeldLock>,
}

impl DataLock {
    /// Creates the folder if needed and locks it; [`crate::StoreError::Locked`] if another process has it.
    pub fn acquire(fs: &dyn FileSystem, data_dir: &Path) -> Result<Self> {
        create_dir_durably(fs, data_dir)?;
        let path = data_dir.join("LOCK");
        let held = fs.lock(&path)?;
        Ok(Self { path, held })
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
