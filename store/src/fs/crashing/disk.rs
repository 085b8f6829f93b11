//! The disk behind the crashing file layer: files and folders by number, each with what is durable and what is not.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

const SECTOR: usize = 512;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(usize),
    Folder(usize),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    /// As the process sees it.
    live: Vec<u8>,
    /// As it was at the last sync.
    durable: Vec<u8>,
    /// Each sector's versions since then.
    sectors: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// The lengths since then.
    lengths: Vec<usize>,
}

/// A change of a folder that no sync covers.
#[derive(Clone, Debug)]
enum NameChange {
    Set(String, Node),
    Remove(String),
    /// One step: the old name goes and the new one comes, or neither.
    Move(String, String, Node),
}

#[derive(Clone, Debug, Default)]
struct Folder {
    live: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    changes: Vec<NameChange>,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    inodes: Vec<Inode>,
    /// The root is the first one. One that no name leads to any more is never reached again.
    folders: Vec<Folder>,
}

impl Default for Disk {
    fn default() -> Self {
        Self { inodes: Vec::new(), folders: vec![Folder::default()] }
    }
}

/// A small generator of its own, so that a seed means the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

impl Inode {
    fn touch(&mut self, from: usize, to: usize) {
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            let mut bytes = [0; SECTOR];
            let start = (sector * SECTOR).min(self.live.len());
            let end = (start + SECTOR).min(self.live.len());
            bytes[..end - start].copy_from_slice(&self.live[start..end]);
            self.sectors.entry(sector).or_default().push(bytes);
        }
    }

    fn power_cut(&mut self, dice: &mut Dice, mode: usize) {
        let mut left = self.durable.clone();
        if !self.lengths.is_empty() {
            let at = choose(dice, mode, self.lengths.len());
            let len = at.map_or(left.len(), |at| self.lengths[at]);
            left.resize(len, 0);
        }
        for (sector, versions) in &self.sectors {
            let start = sector * SECTOR;
            if let Some(at) = choose(dice, mode, versions.len())
                && start < left.len()
            {
                let end = (start + SECTOR).min(left.len());
                left[start..end].copy_from_slice(&versions[at][..end - start]);
            }
        }
        self.durable.clone_from(&left);
        self.live = left;
        self.forget();
    }

    /// Only what is dirty goes to the disk: see [`Self::forget`].
    fn sync(&mut self) {
        if !self.lengths.is_empty() {
            self.durable.resize(self.live.len(), 0);
        }
        for sector in self.sectors.keys() {
            let start = (sector * SECTOR).min(self.live.len());
            let end = (start + SECTOR).min(self.live.len());
            if self.durable.len() < end {
                self.durable.resize(end, 0);
            }
            self.durable[start..end].copy_from_slice(&self.live[start..end]);
        }
        self.forget();
    }

    /// Nothing is dirty any more, whether it reached the disk or not.
    fn forget(&mut self) {
        self.sectors.clear();
        self.lengths.clear();
    }
}

/// Which of `n` versions reaches the disk, none of them for None. Mode 0: nothing does; 1: the newest; else any.
fn choose(dice: &mut Dice, mode: usize, n: usize) -> Option<usize> {
    match mode {
        0 => None,
        1 => Some(n - 1),
        _ if dice.below(2) == 0 => Some(n - 1),
        _ => dice.below(n + 1).checked_sub(1),
    }
}

impl Disk {
    pub(super) fn power_cut(&mut self, seed: u64) {
        let mut dice = Dice(seed);
        for inode in &mut self.inodes {
            let mode = dice.below(6);
            inode.power_cut(&mut dice, mode);
        }
        for folder in &mut self.folders {
            for change in std::mem::take(&mut folder.changes) {
                if dice.below(2) == 0 {
                    apply(&mut folder.durable, &change);
                }
            }
            folder.live.clone_from(&folder.durable);
        }
    }

    pub(super) fn find(&self, path: &Path) -> Option<Node> {
        let Some((folder, name)) = split(path) else { return Some(Node::Folder(0)) };
        self.folder(folder).ok()?.live.get(name).copied()
    }

    fn number(&self, path: &Path) -> io::Result<usize> {
        match self.find(path) {
            Some(Node::Folder(number)) => Ok(number),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn folder(&self, path: &Path) -> io::Result<&Folder> {
        self.number(path).map(|number| &self.folders[number])
    }

    pub(super) fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        Ok(self.folder(path)?.live.keys().cloned().collect())
    }

    pub(super) fn create_file(&mut self, path: &Path) -> io::Result<usize> {
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.set(path, Node::File(inode))?;
        Ok(inode)
    }

    pub(super) fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        self.folders.push(Folder::default());
        self.set(path, Node::Folder(self.folders.len() - 1))
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from).ok_or(io::ErrorKind::NotFound)?;
        let (Some((folder, old)), Some((target, new))) = (split(from), split(to)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if folder == target {
            let change = NameChange::Move(old.to_owned(), new.to_owned(), node);
            return self.note(folder, change);
        }
        let change = NameChange::Set(new.to_owned(), node);
        self.note(target, change)?;
        self.note(folder, NameChange::Remove(old.to_owned()))
    }

    pub(super) fn remove(&mut self, path: &Path, folder: bool) -> io::Result<()> {
        let node = self.find(path).ok_or(io::ErrorKind::NotFound)?;
        if folder != matches!(node, Node::Folder(_)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some((parent, name)) = split(path) else { return Err(io::ErrorKind::InvalidInput.into()) };
        self.note(parent, NameChange::Remove(name.to_owned()))?;
        // What is in it goes at once, also when the name comes back.
        if let Node::Folder(number) = node {
            self.folders[number] = Folder::default();
        }
        Ok(())
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        match (self.find(from), self.find(to)) {
            (Some(Node::File(inode)), None) => self.set(to, Node::File(inode)),
            (Some(_), _) => Err(io::ErrorKind::AlreadyExists.into()),
            (None, _) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn copy(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let Some(Node::File(source)) = self.find(from) else { return Err(io::ErrorKind::NotFound.into()) };
        let bytes = self.inodes[source].live.clone();
        let inode = match self.find(to) {
            Some(Node::File(inode)) => inode,
            _ => self.create_file(to)?,
        };
        self.set_len(inode, 0);
        self.write(inode, &bytes, 0);
        Ok(())
    }

    pub(super) fn sync_folder(&mut self, path: &Path) -> io::Result<()> {
        let number = self.number(path)?;
        let folder = &mut self.folders[number];
        folder.durable.clone_from(&folder.live);
        folder.changes.clear();
        Ok(())
    }

    pub(super) fn write(&mut self, inode: usize, bytes: &[u8], offset: u64) {
        let inode = &mut self.inodes[inode];
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if bytes.is_empty() {
            return;
        }
        if end > inode.live.len() {
            inode.live.resize(end, 0);
            inode.lengths.push(end);
        }
        inode.live[start..end].copy_from_slice(bytes);
        inode.touch(start, end);
    }

    pub(super) fn read(&self, inode: usize, buf: &mut [u8], offset: u64) -> usize {
        let live = &self.inodes[inode].live;
        let start = (offset as usize).min(live.len());
        let len = buf.len().min(live.len() - start);
        buf[..len].copy_from_slice(&live[start..start + len]);
        len
    }

    pub(super) fn sync(&mut self, inode: usize) {
        self.inodes[inode].sync();
    }

    /// A sync that failed: the cache keeps what was written and counts it as clean.
    pub(super) fn lose_sync(&mut self, inode: usize) {
        self.inodes[inode].forget();
    }

    pub(super) fn set_len(&mut self, inode: usize, len: u64) {
        let inode = &mut self.inodes[inode];
        let old = inode.live.len();
        inode.live.resize(len as usize, 0);
        inode.lengths.push(len as usize);
        inode.touch(old.min(len as usize), old.max(len as usize));
    }

    pub(super) fn len(&self, inode: usize) -> u64 {
        self.inodes[inode].live.len() as u64
    }

    pub(super) fn flip_bit(&mut self, path: &Path, byte: u64, bit: u8) {
        let Some(Node::File(inode)) = self.find(path) else { return };
        let inode = &mut self.inodes[inode];
        if let Some(at) = inode.live.get_mut(byte as usize) {
            *at ^= 1 << bit;
        }
        inode.touch(byte as usize, byte as usize + 1);
        inode.sync();
    }

    fn set(&mut self, path: &Path, node: Node) -> io::Result<()> {
        let Some((folder, name)) = split(path) else { return Err(io::ErrorKind::InvalidInput.into()) };
        self.note(folder, NameChange::Set(name.to_owned(), node))
    }

    fn note(&mut self, folder: &Path, change: NameChange) -> io::Result<()> {
        let number = self.number(folder)?;
        let folder = &mut self.folders[number];
        apply(&mut folder.live, &change);
        folder.changes.push(change);
        Ok(())
    }
}

fn apply(names: &mut BTreeMap<String, Node>, change: &NameChange) {
    match change {
        NameChange::Set(name, node) => {
            names.insert(name.clone(), *node);
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
        NameChange::Move(old, new, node) => {
            names.remove(old);
            names.insert(new.clone(), *node);
        }
    }
}

fn split(path: &Path) -> Option<(&Path, &str)> {
    Some((path.parent()?, path.file_name()?.to_str()?))
}
