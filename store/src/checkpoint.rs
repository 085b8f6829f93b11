//! Checkpoints of a group's state, and the restart from them.
//!
//! ```text
//! <group>/state/live/               the open RocksDB; thrown away by every restart
//! <group>/state/cp-<C>/state/       the state after entry C (20 digits), nothing later
//! <group>/state/cp-<C>/record       vote, log end, chain value: see `checkpoint/record.rs`
//! <group>/state/cp-<C>.tmp          being made, or being removed
//! ```
//!
//! What always holds: a checkpoint that has its name is valid for ever: its files never change, and the ConsumeQueues
//! are on disk up to its next offsets. Hence the order of making one:
//!
//! 1. state into `cp-<C>.tmp/state`, synced; record beside it, synced; both names synced.
//!    Crash: a leftover `.tmp`, removed by the restart.
//! 2. ConsumeQueues synced. Crash between 2 and 3: the queues are longer than the older checkpoint knows; cut.
//! 3. renamed to `cp-<C>`, `state/` synced. Renaming before 2 could make a checkpoint valid whose queues are not
//!    there: the restart would find them shorter than C's next offsets.
//! 4. what is older than the newest two is renamed to `.tmp`, then removed.
//!
//! RocksDB never opens a checkpoint itself: it would write into it. Table files are shared by hard link, as nobody
//! changes them; everything else is copied.

mod record;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::commit_log::{CommitLog, Covered};
use crate::consume_queue::{QueueId, QueueTable};
use crate::fs::{FileSystem, OpenMode, create_dir_durably};
use crate::group_files::VoteRecord;
use crate::state::{MemoryState, State, applied, membership, read_all};
use crate::{EntryId, StoreError};

pub use record::CheckpointRecord;

const LIVE: &str = "live";
const STATE: &str = "state";
const RECORD: &str = "record";
const PREFIX: &str = "cp-";
const TMP: &str = ".tmp";
const KEPT: usize = 2;

/// What holds the state while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `BTreeMap`s in memory.
    Memory,
    /// RocksDB; needs the feature `rocksdb`.
    Rocks,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    applied: EntryId,
    record: CheckpointRecord,
}

/// The state of a group and its checkpoints.
#[derive(Debug)]
pub struct StateStore {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    state: Arc<dyn State>,
    newest: Mutex<Option<Newest>>,
}

impl StateStore {
    /// Opens the state at the newest checkpoint, or empty when there is none.
    ///
    /// A checkpoint that exists and cannot be opened is an error naming it: the state is never started empty then, as
    /// what it knew is not in the purged part of the log.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        families: &'static [&'static str],
        backend: Backend,
    ) -> Result<Self, StoreError> {
        create_dir_durably(fs.as_ref(), dir)?;
        remove_leftovers(fs.as_ref(), dir)?;
        let newest = list(fs.as_ref(), dir)?.pop();
        let state = open_state(&fs, dir, families, backend, newest.as_deref())?;
        let newest = newest.map(|path| read_record(fs.as_ref(), &path, state.as_ref())).transpose()?;
        Ok(Self { fs, dir: dir.to_path_buf(), state, newest: Mutex::new(newest) })
    }

    /// What the newest checkpoint in `dir` says it covers, without opening it: recovery of the log must know what may
    /// not be missing. `None`: there is no checkpoint. A damaged record is an error.
    pub fn covered(fs: &dyn FileSystem, dir: &Path) -> Result<Option<EntryId>, StoreError> {
        if !fs.exists(dir)? {
            return Ok(None);
        }
        let newest = list(fs, dir)?.pop();
        Ok(newest.map(|checkpoint| recorded(fs, &checkpoint)).transpose()?.map(|newest| newest.applied))
    }

    /// Like [`Self::covered`], with where the log stood.
    pub fn covered_log(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Covered>, StoreError> {
        if !fs.exists(dir)? {
            return Ok(None);
        }
        let newest = list(fs, dir)?.pop().map(|checkpoint| recorded(fs, &checkpoint)).transpose()?;
        Ok(newest.map(|newest| Covered {
            last: newest.applied,
            end: Some((newest.record.log_end, newest.record.chain)),
        }))
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> Arc<dyn State> {
        self.state.clone()
    }

    /// The newest entry whose effects are in the state: right after opening, the C of the newest checkpoint.
    pub fn applied(&self) -> Result<Option<EntryId>, StoreError> {
        applied(self.state.as_ref())
    }

    /// The bytes given to [`WriteBatch::set_membership`](crate::WriteBatch::set_membership) last.
    pub fn membership(&self) -> Result<Option<Vec<u8>>, StoreError> {
        membership(self.state.as_ref())
    }

    /// The record of the newest valid checkpoint.
    #[must_use]
    pub fn newest_record(&self) -> Option<CheckpointRecord> {
        self.newest.lock().map(|newest| newest.record)
    }

    /// The C of the newest valid checkpoint.
    #[must_use]
    pub fn checkpointed(&self) -> Option<EntryId> {
        self.newest.lock().map(|newest| newest.applied)
    }

    /// Refuses a log and a vote that are older than the newest checkpoint's record.
    pub fn check(&self, log: &CommitLog, vote: Option<VoteRecord>) -> Result<(), StoreError> {
        let Some(newest) = *self.newest.lock() else { return Ok(()) };
        let path = self.path_of(newest.applied).join(RECORD);
        newest.record.check_vote(&path, vote)?;
        newest.record.check_log(&path, newest.applied, log)
    }

    /// Makes a checkpoint. On return a crash of the machine restarts from it. Does nothing when nothing was applied
    /// since the newest one. Only the apply thread calls it, between two applies. `None`: a group without queues.
    pub fn checkpoint<'a>(
        &self,
        queues: impl Into<Option<&'a QueueTable>>,
        record: CheckpointRecord,
    ) -> Result<(), StoreError> {
        let queues = queues.into();
        match self.begin_checkpoint(queues, record)? {
            Some(pending) => pending.finish(self, queues),
            None => Ok(()),
        }
    }

    /// The part of [`StateStore::checkpoint`] that has to happen between two applies. The rest, which waits longer for
    /// the disk, may run on another thread while the apply thread goes on. One at a time.
    pub fn begin_checkpoint<'a>(
        &self,
        queues: impl Into<Option<&'a QueueTable>>,
        record: CheckpointRecord,
    ) -> Result<Option<PendingCheckpoint>, StoreError> {
        let Some(applied) = self.applied()? else { return Ok(None) };
        if self.checkpointed() == Some(applied) {
            return Ok(None);
        }
        let fs = self.fs.as_ref();
        let path = self.path_of(applied);
        let tmp = with_tmp(&path);
        if fs.exists(&tmp)? {
            fs.remove_dir_all(&tmp)?;
        }
        fs.create_dir_all(&tmp)?;
        self.state.checkpoint(&tmp.join(STATE))?;
        let file = fs.open(&tmp.join(RECORD), OpenMode::CreateNew)?;
        file.write_at(&[std::io::IoSlice::new(&record.encode(applied))], 0)?;
        file.sync_all()?;
        fs.sync_dir(&tmp)?;
        let removals = queues.into().map(QueueTable::removals).unwrap_or_default();
        Ok(Some(PendingCheckpoint { newest: Newest { applied, record }, path, removals }))
    }

    fn path_of(&self, applied: EntryId) -> PathBuf {
        self.dir.join(format!("{PREFIX}{:020}", applied.index.0))
    }

    fn remove_older(&self) -> Result<(), StoreError> {
        let mut paths = list(self.fs.as_ref(), &self.dir)?;
        paths.truncate(paths.len().saturating_sub(KEPT));
        for path in paths {
            let tmp = with_tmp(&path);
            self.fs.rename(&path, &tmp)?;
            self.fs.remove_dir_all(&tmp)?;
        }
        Ok(())
    }
}

/// A checkpoint whose state is on disk and whose queues are not yet known to be.
#[derive(Debug)]
#[must_use = "it becomes valid only by `finish`"]
pub struct PendingCheckpoint {
    newest: Newest,
    path: PathBuf,
    removals: Vec<QueueId>,
}

impl PendingCheckpoint {
    /// Syncs the queues and makes the checkpoint valid; then removes what is older than the newest two, and the files
    /// of queues that none of the two needs.
    pub fn finish<'a>(
        self,
        store: &StateStore,
        queues: impl Into<Option<&'a QueueTable>>,
    ) -> Result<(), StoreError> {
        let queues = queues.into();
        queues.map_or(Ok(()), QueueTable::sync)?;
        store.fs.rename(&with_tmp(&self.path), &self.path)?;
        store.fs.sync_dir(&store.dir)?;
        *store.newest.lock() = Some(self.newest);
        store.remove_older()?;
        queues.map_or(Ok(()), |queues| queues.checkpointed(&self.removals))
    }
}

fn with_tmp(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TMP);
    name.into()
}

/// Removes what an interrupted checkpoint left, and the last process's open state.
fn remove_leftovers(fs: &dyn FileSystem, dir: &Path) -> Result<(), StoreError> {
    for name in fs.read_dir(dir)? {
        if name == LIVE || name.ends_with(TMP) {
            fs.remove_dir_all(&dir.join(name))?;
        }
    }
    Ok(())
}

/// The valid checkpoints, oldest first.
fn list(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for name in fs.read_dir(dir)? {
        let index = name.strip_prefix(PREFIX).and_then(|digits| digits.parse().ok());
        if let Some(index) = index {
            found.push((index, dir.join(&name)));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn open_state(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    families: &'static [&'static str],
    backend: Backend,
    newest: Option<&Path>,
) -> Result<Arc<dyn State>, StoreError> {
    match (backend, newest) {
        (Backend::Memory, None) => Ok(Arc::new(MemoryState::new(fs.clone(), families))),
        (Backend::Memory, Some(newest)) => {
            Ok(Arc::new(MemoryState::load(fs.clone(), families, &newest.join(STATE))?))
        }
        (Backend::Rocks, newest) => open_rocks(fs, dir, families, newest),
    }
}

#[cfg(feature = "rocksdb")]
fn open_rocks(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    families: &'static [&'static str],
    newest: Option<&Path>,
) -> Result<Arc<dyn State>, StoreError> {
    let live = dir.join(LIVE);
    fs.create_dir_all(&live)?;
    if let Some(newest) = newest {
        clone_folder(fs.as_ref(), &newest.join(STATE), &live)?;
    }
    Ok(Arc::new(crate::state::RocksState::open(fs.clone(), families, &live, newest.is_none())?))
}

#[cfg(not(feature = "rocksdb"))]
fn open_rocks(
    _fs: &Arc<dyn FileSystem>,
    dir: &Path,
    _families: &'static [&'static str],
    _newest: Option<&Path>,
) -> Result<Arc<dyn State>, StoreError> {
    let why = std::io::Error::new(std::io::ErrorKind::Unsupported, "this program was built without RocksDB");
    Err(StoreError::io("open", dir, why))
}

/// Links table and blob files, which never change, and copies the rest, which the opened RocksDB writes to.
#[cfg(feature = "rocksdb")]
fn clone_folder(fs: &dyn FileSystem, from: &Path, to: &Path) -> Result<(), StoreError> {
    for name in fs.read_dir(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        match Path::new(&name).extension().and_then(|ext| ext.to_str()) {
            Some("sst" | "blob") => fs.hard_link(&from, &to)?,
            _ => fs.copy(&from, &to)?,
        }
    }
    Ok(())
}

/// Reads the record and compares it with the state beside it and with the folder's name.
fn recorded(fs: &dyn FileSystem, checkpoint: &Path) -> Result<Newest, StoreError> {
    let path = checkpoint.join(RECORD);
    let bytes = read_all(fs, &path).map_err(|error| match error.is_not_found() {
        true => StoreError::corrupt(&path, 0, "a checkpoint record", "no file"),
        false => error,
    })?;
    let (recorded, record) = CheckpointRecord::decode(&path, &bytes)?;
    let name = format!("{PREFIX}{:020}", recorded.index.0);
    if checkpoint.file_name().is_none_or(|found| found != name.as_str()) {
        return Err(StoreError::corrupt(&path, 16, format!("the record of {}", checkpoint.display()), name));
    }
    Ok(Newest { applied: recorded, record })
}

fn read_record(fs: &dyn FileSystem, checkpoint: &Path, state: &dyn State) -> Result<Newest, StoreError> {
    let newest = recorded(fs, checkpoint)?;
    let (recorded, held) = (newest.applied, applied(state)?);
    if held != Some(recorded) {
        let state = checkpoint.join(STATE);
        return Err(StoreError::corrupt(
            &state,
            0,
            format!("the state after {recorded}"),
            format!("{held:?}"),
        ));
    }
    Ok(newest)
}
