//! A file system per process: an ext4 image in memory, loop-mounted with a long commit interval, that can lose its
//! power, freeze, die and fill up.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::tool;

/// `_IOR('X', 125, __u32)`: shuts an ext4 down.
const SHUTDOWN: rustix::ioctl::Opcode = 0x8004_587d;
/// Without writing the journal first: what was not synced is lost.
const NO_LOG_FLUSH: u32 = 2;
/// What a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// Files of a disk as a process sees them.
pub type View = BTreeMap<PathBuf, Vec<u8>>;

/// One image and where it is mounted.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Makes an image of so many MiB, with no reserved blocks, and mounts it at a new folder.
    pub fn make(image: &Path, mount: &Path, mib: u64) -> anyhow::Result<Self> {
        let file = File::create_new(image).with_context(|| image.display().to_string())?;
        file.set_len(mib << 20).context("size of the image")?;
        let name = image.display().to_string();
        tool("mkfs.ext4", &["-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", &name])?;
        std::fs::create_dir_all(mount).with_context(|| mount.display().to_string())?;
        let disk = Self { image: image.to_owned(), mount: mount.to_owned() };
        disk.mount()?;
        std::fs::remove_dir(mount.join("lost+found")).context("lost+found")?;
        tool("sync", &["--file-system", &mount.display().to_string()])?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.mount
    }

    fn mount(&self) -> anyhow::Result<()> {
        // A failed sync is the process's business, not a reason to stop the whole file system.
        let options = "loop,commit=300,errors=continue";
        let (image, mount) = (self.image.display().to_string(), self.mount.display().to_string());
        tool("mount", &["-t", "ext4", "-o", options, &image, &mount]).map(drop)
    }

    /// Shuts the file system down at once: every further access fails, what was not synced is gone.
    pub fn shut_down(&self) -> anyhow::Result<()> {
        let folder = File::open(&self.mount).with_context(|| self.mount.display().to_string())?;
        #[expect(unsafe_code, reason = "the call has no safe form")]
        // SAFETY: this opcode reads one u32 through the pointer, which is what Setter passes.
        let done = unsafe {
            rustix::ioctl::ioctl(&folder, rustix::ioctl::Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH))
        };
        done.with_context(|| format!("shutdown of {}", self.mount.display()))
    }

    /// Mounts it again after [`Self::shut_down`]; no process may have it open.
    pub fn revive(&self) -> anyhow::Result<()> {
        tool("umount", &[&self.mount])?;
        self.mount()
    }

    /// Stops all writes until [`Self::thaw`]. Thaw before a process that writes is killed: it cannot die before.
    pub fn freeze(&self) -> anyhow::Result<()> {
        tool("fsfreeze", &["--freeze", &self.mount.display().to_string()]).map(drop)
    }

    /// Goes on after [`Self::freeze`].
    pub fn thaw(&self) -> anyhow::Result<()> {
        tool("fsfreeze", &["--unfreeze", &self.mount.display().to_string()]).map(drop)
    }

    /// Takes all space but so many MiB.
    pub fn fill(&self, leave_mib: u64) -> anyhow::Result<()> {
        let status = rustix::fs::statvfs(&self.mount).context("free space")?;
        let free = status.f_bavail * status.f_frsize;
        let take = free.saturating_sub(leave_mib << 20);
        ensure!(take > 0, "only {free} bytes are free on {}", self.mount.display());
        let file = File::create_new(self.ballast()).context("ballast")?;
        // In steps: the file system needs some of the space for its own notes, nobody knows how much.
        for at in (0..take).step_by(1 << 20) {
            let step = (take - at).min(1 << 20);
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, step) {
                Err(rustix::io::Errno::NOSPC) => break,
                other => other.context("ballast")?,
            }
        }
        Ok(())
    }

    /// Gives the space back.
    pub fn empty(&self) -> anyhow::Result<()> {
        std::fs::remove_file(self.ballast()).context("ballast")
    }

    fn ballast(&self) -> PathBuf {
        self.mount.join(".ballast")
    }

    /// All files with their bytes.
    pub fn view(&self) -> anyhow::Result<View> {
        let mut view = View::new();
        collect(&self.mount, &self.mount, &mut view)?;
        Ok(view)
    }

    /// Writes a random subset of the sectors back that were lost from files that still exist with their length, as
    /// a disk may that was writing at that moment. Returns how many.
    pub fn tear(&self, before: &View, random: &mut ChaCha8Rng) -> anyhow::Result<usize> {
        let now = self.view()?;
        let mut restored = 0;
        for (path, old) in before {
            let Some(new) = now.get(path).filter(|new| new.len() == old.len()) else { continue };
            let mut file = None;
            for (n, (lost, kept)) in old.chunks(SECTOR).zip(new.chunks(SECTOR)).enumerate() {
                if lost == kept || !random.random_bool(0.5) {
                    continue;
                }
                if file.is_none() {
                    file = Some(File::options().write(true).open(self.mount.join(path))?);
                }
                let file = file.as_ref().context("opened above")?;
                file.write_all_at(lost, (n * SECTOR) as u64)?;
                restored += 1;
            }
            if let Some(file) = file {
                file.sync_all()?;
            }
        }
        Ok(restored)
    }
}

/// Bytes of `before` that are not in `after`: the measure of what a power cut took.
pub fn lost_bytes(before: &View, after: &View) -> u64 {
    let lost = before.iter().map(|(path, old)| {
        let Some(new) = after.get(path) else { return old.len() };
        let same = old.iter().zip(new).filter(|(a, b)| a == b).count();
        old.len() - same
    });
    lost.map(|bytes| bytes as u64).sum()
}

fn collect(root: &Path, folder: &Path, view: &mut View) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, view)?;
        } else if path.is_file() {
            // A stopped process changes nothing, but a file may be sparse and large; the images bound it.
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            view.insert(path.strip_prefix(root).context("below the root")?.to_owned(), bytes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_bytes_counts_changed_shortened_and_missing_files() {
        let view = |files: &[(&str, &[u8])]| -> View {
            files.iter().map(|(path, bytes)| (PathBuf::from(path), bytes.to_vec())).collect()
        };
        let before = view(&[("a", b"abcd"), ("b", b"xy"), ("c", b"zzz")]);
        assert_eq!(lost_bytes(&before, &before), 0);
        let after = view(&[("a", b"abXd"), ("b", b"x"), ("new", b"12345")]);
        assert_eq!(lost_bytes(&before, &after), 1 + 1 + 3);
    }
}
