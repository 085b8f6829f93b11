//! Checkpoints of a group's state, and the restart from them.
//!
//! ```text
//! <group>/state/live/               the open RocksDB; thrown away by every restart
//! <group>/state/cp-<C>/state/       the state after entry C (20 digits), nothing later
//! <group>/state/cp-<C>/record       vote, log end, chain value: see `checkpoint/record.rs`
//! <group>/state/cp-<C>/files        what is in `state`, with checksums, and the queues' ranges: `checkpoint/list.rs`
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
//! 4. what is older than the newest two and not pinned is renamed to `.tmp`, then removed.
//!
//! A restart compares every byte of the newest checkpoint with its list. When it is damaged the older one is used, and
//! the log behind it is applied again; without one the group does not start here: [`StoreError::StateDamaged`].
//!
//! RocksDB never opens a checkpoint itself: it would write into it. Table files are shared by hard link, as nobody
//! changes them; everything else is copied.

mod list;
mod pin;
mod policy;
mod record;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::commit_log::{CommitLog, Covered};
use crate::consume_queue::QueueTable;
use crate::fs::{FileSystem, OpenMode, create_dir_durably};
use crate::group_files::VoteRecord;
use crate::state::{MemoryState, State, applied, membership, read_all};
use crate::{EntryId, StoreError};

use list::FileList;
pub use list::QueueRange;
use pin::Pins;
pub use pin::{CheckpointPin, PinnedFile};
pub use policy::CheckpointPolicy;
pub use record::CheckpointRecord;

const LIVE: &str = "live";
const STATE: &str = "state";
const RECORD: &str = "record";
const FILES: &str = "files";
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

/// A valid checkpoint on disk.
#[derive(Clone, Debug)]
struct Kept {
    newest: Newest,
    membership: Vec<u8>,
    list: Arc<FileList>,
}

/// The state of a group and its checkpoints.
#[derive(Debug)]
pub struct StateStore {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    state: Arc<dyn State>,
    /// Oldest first; more than two only while one is pinned.
    kept: Mutex<Vec<Kept>>,
    pins: Arc<Pins>,
    /// The newest record that could be read, also when its checkpoint was damaged: log and vote are not older.
    guard: Option<Newest>,
    /// Why the newest checkpoint was not used.
    damage: Option<StoreError>,
}

impl StateStore {
    /// Opens the state at the newest checkpoint, or empty when there never was one. A damaged newest one is passed over
    /// for the older one; [`StateStore::check`] says whether the log still holds what it needs.
    ///
    /// When none can be used: [`StoreError::StateDamaged`]. The state is never started empty then, as what it knew is
    /// not in the purged part of the log.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        families: &'static [&'static str],
        backend: Backend,
    ) -> Result<Self, StoreError> {
        create_dir_durably(fs.as_ref(), dir)?;
        remove_leftovers(fs.as_ref(), dir)?;
        let (mut guard, mut damage, mut kept) = (None, None, Vec::new());
        for path in list(fs.as_ref(), dir)?.iter().rev() {
            if let Ok(newest) = recorded(fs.as_ref(), path) {
                guard.get_or_insert(newest);
            }
            // Bytes of the older one are compared when it is needed.
            match intact(fs.as_ref(), path, kept.is_empty()) {
                Ok(one) => kept.insert(0, one),
                Err(error) => {
                    tracing::error!(checkpoint = %path.display(), %error, "damaged checkpoint is passed over");
                    damage.get_or_insert(state_damaged(path, error));
                }
            }
        }
        if let (true, Some(damage)) = (kept.is_empty(), &damage) {
            return Err(damage.clone());
        }
        let newest = kept.last().map(|kept| path_of(dir, kept.newest.applied));
        let state = open_state(&fs, dir, families, backend, newest.as_deref())?;
        if let (Some(path), Some(newest)) = (newest, kept.last_mut()) {
            holds(state.as_ref(), &path, newest.newest.applied)?;
            newest.membership = membership(state.as_ref())?.unwrap_or_default();
        }
        let (dir, kept) = (dir.to_path_buf(), Mutex::new(kept));
        Ok(Self { fs, dir, state, kept, pins: Arc::default(), guard, damage })
    }

    /// What the newest checkpoint in `dir` covers, without opening it: recovery of the log must know what may not be
    /// missing. `None`: there is no checkpoint. The index is that of the folder's name, which is there whatever became
    /// of the files in it; the term is 0 when the record cannot be read.
    pub fn covered(fs: &dyn FileSystem, dir: &Path) -> Result<Option<EntryId>, StoreError> {
        Ok(Self::covered_log(fs, dir)?.map(|covered| covered.last))
    }

    /// Like [`Self::covered`], with where the log stood, when the record can be read.
    pub fn covered_log(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Covered>, StoreError> {
        if !fs.exists(dir)? {
            return Ok(None);
        }
        let Some(newest) = list(fs, dir)?.pop() else { return Ok(None) };
        if let Ok(Newest { applied, record }) = recorded(fs, &newest) {
            return Ok(Some(Covered { last: applied, end: Some((record.log_end, record.chain)) }));
        }
        let name = newest.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let index = name.strip_prefix(PREFIX).and_then(|digits| digits.parse().ok());
        Ok(index.map(|index| Covered { last: EntryId::new(0, index), end: None }))
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
        self.kept.lock().last().map(|kept| kept.newest.record)
    }

    /// The C of the newest valid checkpoint.
    #[must_use]
    pub fn checkpointed(&self) -> Option<EntryId> {
        self.kept.lock().last().map(|kept| kept.newest.applied)
    }

    /// The C of the oldest checkpoint that a restart or a transfer may still need: the log above it must stay.
    #[must_use]
    pub fn oldest_kept(&self) -> Option<EntryId> {
        self.kept.lock().first().map(|kept| kept.newest.applied)
    }

    /// The ranges of the queues as of the newest checkpoint; queues that never held a message are left out.
    #[must_use]
    pub fn queue_ranges(&self) -> Vec<QueueRange> {
        self.kept.lock().last().map(|kept| kept.list.queues.clone()).unwrap_or_default()
    }

    /// Holds the newest checkpoint: until the pin is dropped nothing that it consists of is removed.
    #[must_use]
    pub fn pin(&self) -> Option<CheckpointPin> {
        let kept = self.kept.lock();
        let Kept { newest, membership, list } = kept.last()?;
        let folder = Path::new(self.dir.file_name()?);
        let checkpoint = path_of(folder, newest.applied);
        let held = self.pins.hold(newest.applied.index);
        Some(CheckpointPin::new(newest.applied, newest.record, membership.clone(), list, &checkpoint, held))
    }

    /// Refuses a log and a vote that are older than the newest checkpoint's record, and a log that does not go on where
    /// the state ends.
    pub fn check(&self, log: &CommitLog, vote: Option<VoteRecord>) -> Result<(), StoreError> {
        let applied = self.checkpointed();
        let purged = log.purged().map(|purged| purged.index);
        if let Some(purged) = purged
            && applied.is_none_or(|applied| applied.index < purged)
        {
            return Err(self.damage.clone().unwrap_or_else(|| {
                let expected = format!("a state that covers the log's purged part, up to entry {purged}");
                let found = applied.map_or("no checkpoint".to_owned(), |id| format!("the state after {id}"));
                let (checkpoint, file) = (self.dir.clone(), self.dir.clone());
                StoreError::StateDamaged { checkpoint, file, expected, found }
            }));
        }
        let newest = self.kept.lock().last().map(|kept| kept.newest);
        let guard = newest.into_iter().chain(self.guard).max_by_key(|newest| newest.applied.index);
        let Some(guard) = guard else { return Ok(()) };
        let path = self.path_of(guard.applied).join(RECORD);
        guard.record.check_vote(&path, vote)?;
        guard.record.check_log(&path, guard.applied, log)
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
        if fs.exists(&path)? {
            // Damaged and passed over when this process started; what it showed was applied again.
            self.remove_checkpoint(&path)?;
        }
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
        let queues = queues.into().map(QueueTable::ranges).unwrap_or_default();
        let membership = self.membership()?.unwrap_or_default();
        Ok(Some(PendingCheckpoint { newest: Newest { applied, record }, membership, path, queues }))
    }

    fn path_of(&self, applied: EntryId) -> PathBuf {
        path_of(&self.dir, applied)
    }

    /// Takes the new checkpoint in and forgets those that nobody needs any more; gives the lists of the kept ones.
    fn keep(&self, new: Kept) -> Vec<Arc<FileList>> {
        let mut kept = self.kept.lock();
        kept.push(new);
        let spare = kept.len().saturating_sub(KEPT);
        let mut at = 0;
        kept.retain(|one| {
            at += 1;
            at > spare || self.pins.held(one.newest.applied.index)
        });
        kept.iter().map(|kept| Arc::clone(&kept.list)).collect()
    }

    /// Removes every checkpoint that is not kept.
    fn remove_older(&self) -> Result<(), StoreError> {
        let kept: Vec<PathBuf> =
            self.kept.lock().iter().map(|kept| self.path_of(kept.newest.applied)).collect();
        for path in list(self.fs.as_ref(), &self.dir)?.iter().filter(|path| !kept.contains(path)) {
            self.remove_checkpoint(path)?;
        }
        Ok(())
    }

    fn remove_checkpoint(&self, path: &Path) -> Result<(), StoreError> {
        let tmp = with_tmp(path);
        self.fs.rename(path, &tmp)?;
        remove(self.fs.as_ref(), &tmp)
    }
}

/// A checkpoint whose state is on disk and whose queues are not yet known to be.
#[derive(Debug)]
#[must_use = "it becomes valid only by `finish`"]
pub struct PendingCheckpoint {
    newest: Newest,
    membership: Vec<u8>,
    path: PathBuf,
    queues: Vec<QueueRange>,
}

impl PendingCheckpoint {
    /// Writes the list of its files, syncs the queues and makes the checkpoint valid; then removes what is older than
    /// the newest two and not pinned, and the files of queues that none of the kept ones needs.
    pub fn finish<'a>(
        self,
        store: &StateStore,
        queues: impl Into<Option<&'a QueueTable>>,
    ) -> Result<(), StoreError> {
        let Self { newest, membership, path, queues: ranges } = self;
        let (queues, fs, tmp) = (queues.into(), store.fs.as_ref(), with_tmp(&path));
        let known = store.kept.lock().last().map(|kept| Arc::clone(&kept.list));
        let list = FileList::of(fs, &tmp.join(STATE), ranges, known.as_deref())?;
        let file = fs.open(&tmp.join(FILES), OpenMode::CreateNew)?;
        file.write_at(&[std::io::IoSlice::new(&list.encode(newest.applied))], 0)?;
        file.sync_all()?;
        fs.sync_dir(&tmp)?;
        queues.map_or(Ok(()), QueueTable::sync)?;
        fs.rename(&tmp, &path)?;
        fs.sync_dir(&store.dir)?;
        let lists = store.keep(Kept { newest, membership, list: Arc::new(list) });
        store.remove_older()?;
        queues.map_or(Ok(()), |queues| queues.settle(lists.iter().map(|list| list.queues.as_slice())))
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
            remove(fs, &dir.join(name))?;
        }
    }
    Ok(())
}

/// Removes a folder with everything in it, or a file that stands in its place.
fn remove(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    match fs.read_dir(path) {
        Ok(_) => fs.remove_dir_all(path),
        Err(_) => fs.remove_file(path),
    }
}

fn path_of(dir: &Path, applied: EntryId) -> PathBuf {
    dir.join(format!("{PREFIX}{:020}", applied.index.0))
}

/// Reads record and list of a checkpoint and, with `bytes`, compares every file of the state with the list.
fn intact(fs: &dyn FileSystem, checkpoint: &Path, bytes: bool) -> Result<Kept, StoreError> {
    let newest = recorded(fs, checkpoint)?;
    let path = checkpoint.join(FILES);
    let list = FileList::decode(&path, &read_all(fs, &path)?, newest.applied)?;
    if bytes {
        list.check(fs, &checkpoint.join(STATE))?;
    }
    Ok(Kept { newest, membership: Vec::new(), list: Arc::new(list) })
}

fn state_damaged(checkpoint: &Path, error: StoreError) -> StoreError {
    let checkpoint = checkpoint.to_path_buf();
    match error {
        StoreError::Corrupt { path: file, offset: _, expected, found } => {
            StoreError::StateDamaged { checkpoint, file, expected, found }
        }
        StoreError::Io { op, path: file, source } => {
            let (expected, found) = ("a readable file".to_owned(), format!("{op}: {source}"));
            StoreError::StateDamaged { checkpoint, file, expected, found }
        }
        other => other,
    }
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

/// Compares the opened state with what the record says.
fn holds(state: &dyn State, checkpoint: &Path, recorded: EntryId) -> Result<(), StoreError> {
    let held = applied(state)?;
    if held == Some(recorded) {
        return Ok(());
    }
    let (checkpoint, file) = (checkpoint.to_path_buf(), checkpoint.join(STATE));
    let (expected, found) = (format!("the state after {recorded}"), format!("{held:?}"));
    Err(StoreError::StateDamaged { checkpoint, file, expected, found })
}
