//! Installing a snapshot by an intent that recovery rolls forward.
//!
//! ```text
//!  <group>/commitlog       <group>/commitlog.new       complete, everything in it synced
//!  <group>/consumequeue    <group>/consumequeue.new    (neither: a group without queues)
//!  <group>/state           <group>/state.new
//!
//!  X.old removed ──► intent synced ──► per folder: X → X.old, synced, X.new → X, synced ──► meta synced, without intent
//!  ──► X.old removed
//! ```
//!
//! What always holds: before the intent is synced nothing of the group was touched; from then on every crash ends in the
//! new state, by the same steps, each of which sees from the names alone whether it is done. All names lie in one folder,
//! so that a rename is one change of one folder. Crash after X → X.old, before X.new → X: there is no X, and recovery goes
//! on with the second rename.
//!
//! The vote is untouched, so nobody forgets whom it elected. The leader's vote must have been saved before, for the shipped
//! checkpoint's record names one. An own tail of the log that is to stay is part of the staged one: links of the own
//! segments, whose frames above S follow the entry at S.

use std::path::PathBuf;

use crate::error::Result;
use crate::group_files::{GroupFiles, GroupMeta, Intent};
use crate::{EntryId, LogOffset, StoreError};

/// Folders of a group that a snapshot replaces as a whole.
const FOLDERS: [&str; 3] = ["commitlog", "consumequeue", "state"];
/// The one that a group without queues lacks.
const QUEUES: &str = "consumequeue";

/// What a staged snapshot says of the log that comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Install {
    /// S: the last entry that the staged state holds.
    pub snapshot: EntryId,
    /// Where the oldest staged segment begins.
    pub physical_start: LogOffset,
    /// prev_crc of the frame there.
    pub chain_start: u32,
}

/// A folder of a group by its name: in its place, staged, replaced.
struct Places {
    present: PathBuf,
    new: PathBuf,
    old: PathBuf,
}

fn places(files: &GroupFiles, name: &str) -> Places {
    let place = |ending: &str| files.dir().join(format!("{name}{ending}"));
    Places { present: place(""), new: place(".new"), old: place(".old") }
}

/// Replaces log, queues and state of a group that is not open by what stands staged beside them. On return a crash of the
/// machine restarts from the snapshot.
///
/// # Errors
/// A snapshot below what was purged here, a part that is not staged, another open intent: nothing was changed. A failed call
/// to the system: [`finish_install`] finishes it if the intent was written.
pub fn install(files: &GroupFiles, install: Install) -> Result<()> {
    check(files, &files.meta().unwrap_or_default(), install)?;
    remove_replaced(files)?;
    files.update_meta(|meta| meta.intent = Some(Intent::Install(install)))?;
    finish_install(files)
}

/// Rolls an install forward that a crash interrupted, and removes what one has replaced. To be called before anything
/// else of the group is opened; [`CommitLog::open`](crate::CommitLog::open) calls it as well.
///
/// # Errors
/// A failed call to the system, or a folder that is neither staged nor in its place.
pub fn finish_install(files: &GroupFiles) -> Result<()> {
    if let Some(Intent::Install(install)) = files.meta().and_then(|meta| meta.intent) {
        for name in FOLDERS {
            swap(files, name)?;
        }
        files.update_meta(|meta| {
            let further = meta.purged.filter(|purged| purged.index > install.snapshot.index);
            meta.purged = further.or(Some(install.snapshot));
            meta.physical_start = install.physical_start;
            meta.chain_start = install.chain_start;
            // The damaged bytes went with the old files.
            meta.damage = Vec::new();
            meta.intent = None;
        })?;
        tracing::info!(snapshot = %install.snapshot, dir = %files.dir().display(), "snapshot installed");
    }
    remove_replaced(files)
}

fn check(files: &GroupFiles, meta: &GroupMeta, install: Install) -> Result<()> {
    if let Some(intent) = meta.intent {
        return Err(StoreError::corrupt(&files.meta_path(), 0, "no open intent", format!("{intent:?}")));
    }
    if let Some(purged) = meta.purged.filter(|purged| purged.index > install.snapshot.index) {
        let (what, limit) =
            ("index of the purged entry, which a snapshot must cover,", install.snapshot.index.0);
        return Err(StoreError::Limit { what, value: purged.index.0, limit });
    }
    if install.physical_start.0.checked_rem(meta.segment_size) != Some(0) {
        let (what, value) = ("physical start, a multiple of the segment size,", install.physical_start.0);
        return Err(StoreError::Limit { what, value, limit: meta.segment_size });
    }
    let fs = files.fs();
    for name in FOLDERS {
        let Places { present, new, old: _ } = places(files, name);
        let needed = name != QUEUES || fs.exists(&present)?;
        if needed && !fs.exists(&new)? {
            return Err(StoreError::corrupt(&new, 0, "a staged folder", "none"));
        }
    }
    Ok(())
}

fn swap(files: &GroupFiles, name: &str) -> Result<()> {
    let (fs, Places { present, new, old }) = (files.fs(), places(files, name));
    if fs.exists(&new)? {
        if fs.exists(&present)? {
            fs.rename(&present, &old)?;
            fs.sync_dir(files.dir())?;
        }
        fs.rename(&new, &present)?;
    } else if name != QUEUES && !fs.exists(&present)? {
        return Err(StoreError::corrupt(&present, 0, "a folder, in its place or staged", "none"));
    }
    // Also when nothing was renamed: a killed process may have left its rename in the cache only.
    fs.sync_dir(files.dir())
}

fn remove_replaced(files: &GroupFiles) -> Result<()> {
    let fs = files.fs();
    let mut removed = false;
    for name in FOLDERS {
        let old = places(files, name).old;
        if fs.exists(&old)? {
            fs.remove_dir_all(&old)?;
            removed = true;
        }
    }
    if removed { fs.sync_dir(files.dir()) } else { Ok(()) }
}
