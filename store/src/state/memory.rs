//! State in memory, for tests, the simulation and `mqbroker dev --memory`.
//!
//! Its checkpoint is a folder with one file `state`:
//!
//! ```text
//! "MQKV" | version u16 | families u16 | family*families | crc32c u32 of all before it      little-endian
//! family: name length u16, name, entries u64, entry*entries in key order
//! entry:  key length u32, value length u32, key, value
//! ```

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{Change, STORE_FAMILY, State, WriteBatch, own_changes};
use crate::StoreError;
use crate::fs::{FileSystem, OpenMode};

const MAGIC: &[u8; 4] = b"MQKV";
const VERSION: u16 = 1;
const FILE: &str = "state";

type Family = BTreeMap<Vec<u8>, Vec<u8>>;

/// A [`State`] of `BTreeMap`s.
#[derive(Debug)]
pub struct MemoryState {
    fs: Arc<dyn FileSystem>,
    names: Vec<&'static str>,
    families: RwLock<Vec<Family>>,
}

impl MemoryState {
    /// An empty state. `fs` is where checkpoints go.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>, families: &'static [&'static str]) -> Self {
        let mut names = families.to_vec();
        names.push(STORE_FAMILY);
        let families = RwLock::new(vec![Family::new(); names.len()]);
        Self { fs, names, families }
    }

    /// The state that [`State::checkpoint`] wrote into `dir`.
    pub fn load(
        fs: Arc<dyn FileSystem>,
        families: &'static [&'static str],
        dir: &Path,
    ) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let bytes = read_all(fs.as_ref(), &path)?;
        let state = Self::new(fs, families);
        *state.families.write() = Decoder::new(&path, &bytes)?.families(&state.names)?;
        Ok(state)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.names.len() as u16).to_le_bytes());
        for (name, family) in self.names.iter().zip(self.families.read().iter()) {
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend((family.len() as u64).to_le_bytes());
            for (key, value) in family {
                bytes.extend((key.len() as u32).to_le_bytes());
                bytes.extend((value.len() as u32).to_le_bytes());
                bytes.extend(key);
                bytes.extend(value);
            }
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }
}

impl State for MemoryState {
    fn get(&self, family: usize, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.families.read()[family].get(key).cloned())
    }

    fn scan(
        &self,
        family: usize,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        let families = self.families.read();
        for (key, value) in families[family].range::<[u8], _>((Bound::Included(from), end)) {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let own = self.families();
        let mut families = self.families.write();
        for change in batch.changes() {
            match change {
                Change::Put { family, key, value } => {
                    families[family].insert(key.to_vec(), value.to_vec());
                }
                Change::Delete { family, key } => {
                    families[family].remove(key);
                }
            }
        }
        for (key, value) in own_changes(batch) {
            families[own].insert(key.to_vec(), value);
        }
        Ok(())
    }

    fn checkpoint(&self, path: &Path) -> Result<(), StoreError> {
        self.fs.create_dir_all(path)?;
        let file = self.fs.open(&path.join(FILE), OpenMode::CreateNew)?;
        file.write_at(&[IoSlice::new(&self.encode())], 0)?;
        file.sync_all()?;
        self.fs.sync_dir(path)
    }

    fn families(&self) -> usize {
        self.names.len() - 1
    }
}

/// The whole content of a small file.
pub(crate) fn read_all(fs: &dyn FileSystem, path: &Path) -> Result<Vec<u8>, StoreError> {
    let file = fs.open(path, OpenMode::Read)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

struct Decoder<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn new(path: &'a Path, file: &'a [u8]) -> Result<Self, StoreError> {
        let damaged = |what: &str| damaged(path, file.len(), what);
        let (bytes, crc) = file.split_last_chunk::<4>().ok_or_else(|| damaged("no checksum"))?;
        if crc32c::crc32c(bytes) != u32::from_le_bytes(*crc) {
            return Err(damaged("wrong checksum"));
        }
        let mut decoder = Self { path, bytes, at: 0 };
        if decoder.take(MAGIC.len())? != MAGIC || decoder.u16()? != VERSION {
            return Err(damaged("unknown magic or version"));
        }
        Ok(decoder)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], StoreError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..len) else {
            return Err(damaged(self.path, self.at, "a length that runs past the end"));
        };
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, StoreError> {
        self.array().map(u16::from_le_bytes)
    }

    fn len(&mut self) -> Result<usize, StoreError> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn families(mut self, names: &[&str]) -> Result<Vec<Family>, StoreError> {
        let mut families = Vec::new();
        if usize::from(self.u16()?) != names.len() {
            return Err(damaged(self.path, self.at, "another number of families"));
        }
        for name in names {
            let len = usize::from(self.u16()?);
            if self.take(len)? != name.as_bytes() {
                return Err(damaged(self.path, self.at, &format!("not the family {name}")));
            }
            let entries = u64::from_le_bytes(self.array()?);
            let mut family = Family::new();
            for _ in 0..entries {
                let (key, value) = (self.len()?, self.len()?);
                family.insert(self.take(key)?.to_vec(), self.take(value)?.to_vec());
            }
            families.push(family);
        }
        Ok(families)
    }
}

fn damaged(path: &Path, at: usize, found: &str) -> StoreError {
    StoreError::corrupt(path, at as u64, "a state checkpoint", found)
}
