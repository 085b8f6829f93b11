//! A file layer in memory that can take the process or the power away.
//!
//! It keeps apart what is on the disk and what only the page cache has. A power cut ([`CrashingFs::power_cut`]) keeps, by a
//! seed, any subset of the unsynced 512-byte sectors (each in any of its versions since the last sync), any of the file
//! lengths since then, and any subset of the creations, renames and removals that no folder sync covers. A killed process
//! ([`CrashingFs::kill`]) loses nothing but its handles: what it wrote stays in the page cache, unsynced.

mod disk;

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::disk::{Disk, Node};
use super::{File, FileSystem, HeldLock, OpenMode};
use crate::StoreError;
use crate::error::Result;

/// When a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The call of that number (counted from 0 over all changing calls), and only that one. It does nothing.
    Once(u64),
    /// Like `Once`; if the call is the sync of a file, the cache forgets that the file's unsynced bytes are to be written,
    /// as Linux does: later syncs succeed without them.
    LostSync(u64),
    /// That call and every later one. A write still reaches the page cache: the process died while it ran.
    ForEver(u64),
}

#[derive(Debug, Default)]
struct State {
    disk: Disk,
    /// Number of processes that were killed; handles of an older one are dead.
    generation: u64,
    calls: u64,
    failure: Option<Failure>,
    locks: Vec<(PathBuf, u64)>,
}

/// One process's view of the disk. Clones are the same process.
#[derive(Clone, Debug)]
pub struct CrashingFs {
    state: Arc<Mutex<State>>,
    generation: u64,
}

impl Default for CrashingFs {
    fn default() -> Self {
        Self::new()
    }
}

impl CrashingFs {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::new(Mutex::new(State::default())), generation: 0 }
    }

    /// The process dies: its handles are of no use any more. Returns the next process's view.
    #[must_use]
    pub fn kill(&self) -> Self {
        let mut state = self.state.lock();
        state.generation += 1;
        state.failure = None;
        Self { state: Arc::clone(&self.state), generation: state.generation }
    }

    /// The power goes: the process dies and what was not synced is lost as far as the seed says. Returns the next process's
    /// view of what is left, all of which is on the disk.
    #[must_use]
    pub fn power_cut(&self, seed: u64) -> Self {
        self.state.lock().disk.power_cut(seed);
        self.kill()
    }

    /// A copy of the disk and its cache, so that one history can end in several ways.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.state.lock();
        let copy = State { disk: state.disk.clone(), ..State::default() };
        Self { state: Arc::new(Mutex::new(copy)), generation: 0 }
    }

    /// Lets calls fail. The count starts now.
    pub fn fail(&self, failure: Failure) {
        let mut state = self.state.lock();
        (state.calls, state.failure) = (0, Some(failure));
    }

    /// Changing calls since the last [`Self::fail`].
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Flips a bit of a file, on the disk and in the cache.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) {
        self.state.lock().disk.flip_bit(path, byte, bit);
    }

    fn read<T>(&self, op: &'static str, path: &Path, call: impl FnOnce(&Disk) -> io::Result<T>) -> Result<T> {
        let state = self.state.lock();
        state.alive(self.generation).and_then(|()| call(&state.disk)).map_err(|e| StoreError::io(op, path, e))
    }

    fn change<T>(
        &self,
        op: &'static str,
        path: &Path,
        call: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> Result<T> {
        let mut state = self.state.lock();
        state
            .alive(self.generation)
            .and_then(|()| state.fails(op == "pwritev"))
            .and_then(|fails| {
                let done = if fails == Some(Effect::Nothing) { None } else { Some(call(&mut state.disk)) };
                match (fails, done) {
                    (None, Some(result)) => result,
                    _ => Err(io::Error::other("made to fail")),
                }
            })
            .map_err(|e| StoreError::io(op, path, e))
    }
}

/// What a failing call still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    All,
}

impl State {
    fn alive(&self, generation: u64) -> io::Result<()> {
        if generation == self.generation { Ok(()) } else { Err(io::Error::other("this process is dead")) }
    }

    fn fails(&mut self, write: bool) -> io::Result<Option<Effect>> {
        let call = self.calls;
        self.calls += 1;
        Ok(match self.failure {
            Some(Failure::Once(at) | Failure::LostSync(at)) if at == call => Some(Effect::Nothing),
            Some(Failure::ForEver(at)) if at == call && write => Some(Effect::All),
            Some(Failure::ForEver(at)) if at <= call => Some(Effect::Nothing),
            _ => None,
        })
    }
}

#[derive(Debug)]
struct CrashingFile {
    fs: CrashingFs,
    path: PathBuf,
    inode: usize,
}

impl File for CrashingFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.fs.change("pwritev", &self.path, |disk| {
            let mut at = offset;
            for part in parts {
                disk.write(self.inode, part, at);
                at += part.len() as u64;
            }
            Ok(())
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.fs.read("pread", &self.path, |disk| Ok(disk.read(self.inode, buf, offset)))
    }

    fn sync_data(&self) -> Result<()> {
        let synced = self.fs.change("fdatasync", &self.path, |disk| {
            disk.sync(self.inode);
            Ok(())
        });
        let mut state = self.fs.state.lock();
        if synced.is_err() && matches!(state.failure, Some(Failure::LostSync(at)) if at + 1 == state.calls) {
            state.disk.lose_sync(self.inode);
        }
        synced
    }

    fn sync_all(&self) -> Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.fs.change("ftruncate", &self.path, |disk| {
            disk.set_len(self.inode, len);
            Ok(())
        })
    }

    fn len(&self) -> Result<u64> {
        self.fs.read("fstat", &self.path, |disk| Ok(disk.len(self.inode)))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[derive(Debug)]
struct CrashingLock {
    fs: CrashingFs,
    path: PathBuf,
}

impl HeldLock for CrashingLock {}

impl Drop for CrashingLock {
    fn drop(&mut self) {
        let mut state = self.fs.state.lock();
        state.locks.retain(|(path, generation)| *path != self.path || *generation != self.fs.generation);
    }
}

impl FileSystem for CrashingFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let found = self.read("open", path, |disk| Ok(disk.find(path)))?;
        let inode = match (found, mode) {
            (Some(Node::File(_)), OpenMode::CreateNew) => {
                return Err(StoreError::io("open", path, io::ErrorKind::AlreadyExists.into()));
            }
            (Some(Node::File(inode)), _) => inode,
            (Some(Node::Folder(_)), _) => {
                return Err(StoreError::io("open", path, io::ErrorKind::IsADirectory.into()));
            }
            (None, OpenMode::Read | OpenMode::ReadWrite) => {
                return Err(StoreError::io("open", path, io::ErrorKind::NotFound.into()));
            }
            (None, OpenMode::Create | OpenMode::CreateNew) => {
                self.change("open", path, |disk| disk.create_file(path))?
            }
        };
        Ok(Arc::new(CrashingFile { fs: self.clone(), path: path.to_path_buf(), inode }))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let missing: Vec<&Path> = self.read("mkdir", path, |disk| {
            Ok(path.ancestors().take_while(|p| disk.find(p).is_none()).collect())
        })?;
        for folder in missing.into_iter().rev() {
            self.change("mkdir", folder, |disk| disk.create_folder(folder))?;
        }
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<String>> {
        self.read("readdir", path, |disk| disk.names(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("rename", from, |disk| disk.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.change("unlink", path, |disk| disk.remove(path, false))
    }

    fn remove_dir_all(&self, path: &Path) -> Result<()> {
        self.change("rmdir", path, |disk| disk.remove(path, true))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("link", from, |disk| disk.link(from, to))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("copy", from, |disk| disk.copy(from, to))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.change("fsync", path, |disk| disk.sync_folder(path))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.read("stat", path, |disk| Ok(disk.find(path).is_some()))
    }

    fn len(&self, path: &Path) -> Result<u64> {
        self.read("stat", path, |disk| match disk.find(path) {
            Some(Node::File(inode)) => Ok(disk.len(inode)),
            _ => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn HeldLock>> {
        self.open(path, OpenMode::Create)?;
        let mut state = self.state.lock();
        let generation = state.generation;
        if state.locks.iter().any(|(held, of)| held == path && *of == generation) {
            return Err(StoreError::Locked { path: path.to_path_buf() });
        }
        state.locks.push((path.to_path_buf(), generation));
        Ok(Box::new(CrashingLock { fs: self.clone(), path: path.to_path_buf() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(fs: &CrashingFs, path: &Path, bytes: &[u8]) -> Arc<dyn File> {
        let file = fs.open(path, OpenMode::Create).expect("opens");
        file.write_at(&[IoSlice::new(bytes)], 0).expect("writes");
        file
    }

    fn content(fs: &CrashingFs, path: &Path) -> Option<Vec<u8>> {
        let file = fs.open(path, OpenMode::Read).ok()?;
        let mut bytes = vec![0; file.len().expect("has a length") as usize];
        file.read_at(&mut bytes, 0).expect("reads");
        Some(bytes)
    }

    #[test]
    fn what_is_synced_stays_what_is_not_may_go_and_a_kill_takes_nothing() {
        let (dir, path) = (Path::new("/d"), Path::new("/d/f"));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let fs = CrashingFs::new();
            fs.create_dir_all(dir).expect("creates");
            fs.sync_dir(Path::new("/")).expect("syncs");
            write(&fs, path, &[1; 1024]).sync_data().expect("syncs");
            fs.sync_dir(dir).expect("syncs");
            write(&fs, path, &[2; 1536]);
            let other = write(&fs, Path::new("/d/new"), b"x");
            other.sync_all().expect("syncs");
            let next = fs.kill();
            assert_eq!(content(&next, path), Some(vec![2; 1536]));
            assert!(other.sync_data().is_err(), "the process is dead");
            let cut = next.power_cut(seed);
            let left = content(&cut, path).expect("its name was synced");
            assert!(left.len() == 1024 || left.len() == 1536);
            let sectors: Vec<u8> = left.chunks(512).map(|s| s[0]).collect();
            assert!(left.chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "sectors are whole");
            seen.insert((sectors, content(&cut, Path::new("/d/new")).is_some()));
        }
        for new in [false, true] {
            for first in [[1, 1], [1, 2], [2, 1], [2, 2]] {
                for length in [vec![], vec![0], vec![2]] {
                    let sectors = [first.to_vec(), length].concat();
                    assert!(seen.contains(&(sectors.clone(), new)), "{sectors:?} {new} never came: {seen:?}");
                }
            }
        }
    }

    #[test]
    fn renames_and_removals_may_be_undone_until_the_folder_is_synced() {
        let (a, b) = (Path::new("/a"), Path::new("/b"));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let fs = CrashingFs::new();
            write(&fs, a, b"a").sync_data().expect("syncs");
            fs.sync_dir(Path::new("/")).expect("syncs");
            fs.rename(a, b).expect("renames");
            let cut = fs.power_cut(seed);
            seen.insert((content(&cut, a).is_some(), content(&cut, b).is_some()));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(false, true), (true, false)]);
    }

    #[test]
    fn what_is_in_a_folder_stays_in_it_whichever_name_survives() {
        let (a, b) = (Path::new("/a"), Path::new("/b"));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let fs = CrashingFs::new();
            fs.create_dir_all(a).expect("creates");
            write(&fs, &a.join("f"), b"f").sync_data().expect("syncs");
            fs.sync_dir(a).expect("syncs");
            fs.sync_dir(Path::new("/")).expect("syncs");
            fs.rename(a, b).expect("renames");
            let cut = fs.power_cut(seed);
            seen.insert((content(&cut, &a.join("f")).is_some(), content(&cut, &b.join("f")).is_some()));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(false, true), (true, false)]);
    }

    #[test]
    fn a_lost_sync_leaves_bytes_that_only_the_cache_has() {
        let path = Path::new("/f");
        let fs = CrashingFs::new();
        let file = write(&fs, path, b"old");
        file.sync_data().expect("syncs");
        fs.sync_dir(Path::new("/")).expect("syncs");
        file.write_at(&[IoSlice::new(b"new")], 0).expect("writes");
        fs.fail(Failure::LostSync(0));
        assert!(file.sync_data().is_err() && file.sync_data().is_ok());
        assert_eq!(content(&fs.kill(), path), Some(b"new".to_vec()));
        assert_eq!(content(&fs.power_cut(1), path), Some(b"old".to_vec()));
    }

    #[test]
    fn a_chosen_call_fails_once_or_for_ever() {
        let path = Path::new("/f");
        let fs = CrashingFs::new();
        let file = write(&fs, path, b"old");
        fs.fail(Failure::Once(1));
        assert!(file.sync_data().is_ok());
        assert!(file.write_at(&[IoSlice::new(b"new")], 0).is_err());
        assert_eq!(content(&fs, path), Some(b"old".to_vec()));
        assert!(file.write_at(&[IoSlice::new(b"new")], 0).is_ok());
        fs.fail(Failure::ForEver(0));
        assert!(file.sync_data().is_err() && file.sync_data().is_err());
    }
}
