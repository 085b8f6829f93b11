//! A disk that hangs instead of failing: its node gives leadership away before anybody's timers notice anything.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options};
use mq_store::fs::{File, FileSystem, HeldLock, OpenMode};
use mq_store::{OsFileSystem, StoreError};
use parking_lot::{Condvar, Mutex};

type Result<T> = std::result::Result<T, StoreError>;

/// Syncs of files wait while it hangs.
#[derive(Debug, Default)]
struct Gate {
    hangs: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut hangs = self.hangs.lock();
        while *hangs {
            self.changed.wait(&mut hangs);
        }
    }
}

#[derive(Clone, Debug)]
struct HangingFs {
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct HangingFile {
    file: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for HangingFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.file.write_at(parts, offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn sync_data(&self) -> Result<()> {
        self.gate.pass();
        self.file.sync_data()
    }
    fn sync_all(&self) -> Result<()> {
        self.gate.pass();
        self.file.sync_all()
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl FileSystem for HangingFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let file = OsFileSystem.open(path, mode)?;
        Ok(Arc::new(HangingFile { file, gate: self.gate.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> Result<()> {
        OsFileSystem.create_dir_all(path)
    }
    fn read_dir(&self, path: &Path) -> Result<Vec<String>> {
        OsFileSystem.read_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        OsFileSystem.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        OsFileSystem.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> Result<()> {
        OsFileSystem.remove_dir_all(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        OsFileSystem.hard_link(from, to)
    }
    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        OsFileSystem.copy(from, to)
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        OsFileSystem.sync_dir(path)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        OsFileSystem.exists(path)
    }
    fn len(&self, path: &Path) -> Result<u64> {
        OsFileSystem.len(path)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn HeldLock>> {
        OsFileSystem.lock(path)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hangs_gives_leadership_away() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let gates: Vec<_> = (0..3).map(|_| Arc::new(Gate::default())).collect();
    let layer = |gate: &Arc<Gate>| Arc::new(HangingFs { gate: gate.clone() }) as Arc<dyn FileSystem>;
    let options = Options { file_systems: gates.iter().map(layer).collect(), ..Options::default() };
    let mut cluster = Cluster::started(3, dir.path().to_path_buf(), options).await.expect("three members");
    let (leader, term) = cluster.leader().await;
    let gate = &gates[usize::try_from(leader - 1).expect("small")];
    gate.set(true);
    let hung = Instant::now();
    // The others store and commit it, but the leader may not apply what its own disk does not have.
    let unanswered = cluster.propose(leader, term, b"in the air");
    let unanswered = tokio::time::timeout(Duration::from_millis(500), unanswered).await;
    assert!(unanswered.is_err(), "answered before the local disk had it: {unanswered:?}");
    let (next, newer) = cluster.leader_after(term).await;
    assert_ne!(next, leader);
    assert!(hung.elapsed() < Duration::from_secs(5), "given away after {:?}", hung.elapsed());
    cluster.propose(next, newer, b"goes on").await.expect("confirmed by the other two");
    let items = cluster.member(next).applied.items();
    assert_eq!(items, ["in the air", "goes on"], "what two members stored is committed");
    gate.set(false);
    cluster.stop().await;
}
