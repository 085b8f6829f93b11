//! The small files beside the CommitLog: `raft/vote` and `raft/meta`, each in two slots ([`slot`]).
//!
//! They are no records of the log, because they differ between replicas and the log does not.

mod meta;
mod slot;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::StoreError;
use crate::error::Result;
use crate::fs::{FileSystem, create_dir_durably};
use meta::Rest;
use slot::TwoSlots;

pub use meta::{DamagedRange, GroupMeta, Intent};

/// A Raft vote: whom this member voted for in which term.
///
/// ```text
///  term u64 · node u64 · committed u8 · store u32        little-endian
///  store = crc32c of the store id in `raft/meta`: the vote of another store is not this one's
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VoteRecord {
    /// The term.
    pub term: u64,
    /// The candidate.
    pub node: u64,
    /// The candidate is known to have won.
    pub committed: bool,
}

impl VoteRecord {
    fn encode(self, store: u32) -> Vec<u8> {
        let mut out = self.term.to_le_bytes().to_vec();
        out.extend_from_slice(&self.node.to_le_bytes());
        out.push(u8::from(self.committed));
        out.extend_from_slice(&store.to_le_bytes());
        out
    }

    /// The vote and the store that it is of.
    fn decode(bytes: &[u8]) -> Result<(Self, u32), String> {
        let mut rest = Rest(bytes);
        let vote = Self { term: rest.u64()?, node: rest.u64()?, committed: rest.flag()? };
        Ok((vote, u32::from_le_bytes(rest.array()?)))
    }
}

/// A record: its slots, which whoever changes it locks over the disk's time, and its value, which nobody waits for.
#[derive(Debug)]
struct Kept<T> {
    slots: Mutex<TwoSlots>,
    value: RwLock<Option<T>>,
}

impl<T> Kept<T> {
    fn new(slots: TwoSlots, value: Option<T>) -> Self {
        Self { slots: Mutex::new(slots), value: RwLock::new(value) }
    }
}

/// Vote and meta of one group.
#[derive(Debug)]
pub struct GroupFiles {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    vote: Kept<VoteRecord>,
    meta: Kept<GroupMeta>,
}

impl GroupFiles {
    /// Opens the files of the group in `dir`, or creates them empty. What it returns survives a power cut.
    pub fn open(fs: Arc<dyn FileSystem>, dir: &Path) -> Result<Self> {
        create_dir_durably(&*fs, dir)?;
        let raft = dir.join("raft");
        create_dir_durably(&*fs, &raft)?;
        let (vote_path, meta_path) = (raft.join("vote"), raft.join("meta"));
        let (vote_slots, vote) = TwoSlots::open(&*fs, &vote_path)?;
        let (meta_slots, meta) = TwoSlots::open(&*fs, &meta_path)?;
        fs.sync_dir(&raft)?;
        let vote = decoded(vote, &vote_path, VoteRecord::decode)?;
        let meta = decoded(meta, &meta_path, GroupMeta::decode)?;
        if let (Some((_, found)), Some(meta)) = (vote, &meta)
            && found != store_of(meta)
        {
            return Err(StoreError::Identity {
                path: vote_path,
                what: "checksum of the store id",
                expected: format!("{:08x}, as in {}", store_of(meta), meta_path.display()),
                found: format!("{found:08x}"),
            });
        }
        let vote = vote.map(|(vote, _)| vote);
        Ok(Self {
            fs,
            dir: dir.to_path_buf(),
            vote: Kept::new(vote_slots, vote),
            meta: Kept::new(meta_slots, meta),
        })
    }

    /// The file layer.
    #[must_use]
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The group's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of the meta record.
    #[must_use]
    pub fn meta_path(&self) -> PathBuf {
        self.dir.join("raft").join("meta")
    }

    /// Last meta that was saved. Never waits for the disk.
    #[must_use]
    pub fn meta(&self) -> Option<GroupMeta> {
        self.meta.value.read().clone()
    }

    /// Last entry that is durably purged. Never waits for the disk.
    #[must_use]
    pub fn purged(&self) -> Option<crate::EntryId> {
        self.meta.value.read().as_ref().and_then(|meta| meta.purged)
    }

    /// Ranges of the log that are noted as damaged. Never waits for the disk.
    #[must_use]
    pub fn damage(&self) -> Vec<DamagedRange> {
        self.meta.value.read().as_ref().map(|meta| meta.damage.clone()).unwrap_or_default()
    }

    /// Replaces the meta as a whole: durable in both slots on return. Only before the log is opened; an open log changes
    /// parts of it on its own, see [`Self::update_meta`].
    pub fn save_meta(&self, meta: &GroupMeta) -> Result<()> {
        let mut slots = self.meta.slots.lock();
        self.write_meta(&mut slots, meta.clone())
    }

    /// Changes parts of the meta (a default one if there is none): durable in both slots on return.
    pub fn update_meta(&self, change: impl FnOnce(&mut GroupMeta)) -> Result<()> {
        let mut slots = self.meta.slots.lock();
        let mut meta = self.meta().unwrap_or_default();
        change(&mut meta);
        self.write_meta(&mut slots, meta)
    }

    fn write_meta(&self, slots: &mut TwoSlots, meta: GroupMeta) -> Result<()> {
        slots.write(meta.encode()?)?;
        slots.settle()?;
        *self.meta.value.write() = Some(meta);
        Ok(())
    }

    /// Last vote that was saved. Never waits for the disk.
    #[must_use]
    pub fn vote(&self) -> Option<VoteRecord> {
        *self.vote.value.read()
    }

    /// Durable in slot A on return; [`Self::settle_vote`] brings slot B to it.
    pub(crate) fn save_vote(&self, vote: VoteRecord) -> Result<()> {
        let store = self.meta.value.read().as_ref().map_or(0, store_of);
        self.vote.slots.lock().write(vote.encode(store))?;
        *self.vote.value.write() = Some(vote);
        Ok(())
    }

    /// Both slots of the vote are equal on return.
    pub(crate) fn settle_vote(&self) -> Result<()> {
        self.vote.slots.lock().settle()
    }
}

/// What stands in a vote for the store that it is of.
fn store_of(meta: &GroupMeta) -> u32 {
    crc32c::crc32c(meta.store_id.as_bytes())
}

fn decoded<T>(
    payload: Option<Vec<u8>>,
    path: &Path,
    decode: fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>> {
    payload
        .map(|bytes| {
            decode(&bytes).map_err(|found| StoreError::corrupt(path, 0, "a record of version 1", found))
        })
        .transpose()
}
