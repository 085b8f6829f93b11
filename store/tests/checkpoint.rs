//! Checkpoint and restart: whatever step a crash hits, the restart finds the older or the newer checkpoint whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mq_store::fs::{File, HeldLock, OpenMode};
use mq_store::{
    Backend, CheckpointRecord, EntryId, FileSystem, LogOffset, OsFileSystem, QueueId, QueueOffset,
    QueueTable, Result, StateStore, StoreError, Unit, VoteRecord, WriteBatch,
};

const FAMILIES: &[&str] = &["next", "data"];
const QUEUE: QueueId = QueueId { topic_id: 1, incarnation: 1, queue: 0 };

#[cfg(feature = "rocksdb")]
const BACKENDS: &[Backend] = &[Backend::Memory, Backend::Rocks];
#[cfg(not(feature = "rocksdb"))]
const BACKENDS: &[Backend] = &[Backend::Memory];

/// Lets a number of changing calls through, then refuses everything: the process is dead from there on.
#[derive(Clone, Debug)]
struct StoppingFs {
    left: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct StoppingFile {
    fs: StoppingFs,
    file: Arc<dyn File>,
}

impl StoppingFs {
    fn after(calls: usize) -> Arc<Self> {
        Arc::new(Self { left: Arc::new(AtomicUsize::new(calls)) })
    }

    fn change(&self, path: &Path) -> Result<()> {
        let took = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        took.map(|_| ()).map_err(|_| StoreError::io("stopped", path, std::io::ErrorKind::Other.into()))
    }
}

macro_rules! read {
    (fn $name:ident($path:ident $(, $arg:ident: $kind:ty)*) -> $out:ty) => {
        fn $name(&self, $path: &Path $(, $arg: $kind)*) -> Result<$out> {
            OsFileSystem.$name($path $(, $arg)*)
        }
    };
}

macro_rules! change {
    (fn $name:ident($path:ident $(, $arg:ident: $kind:ty)*) -> $out:ty) => {
        fn $name(&self, $path: &Path $(, $arg: $kind)*) -> Result<$out> {
            self.change($path)?;
            OsFileSystem.$name($path $(, $arg)*)
        }
    };
}

impl FileSystem for StoppingFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        if matches!(mode, OpenMode::Create | OpenMode::CreateNew) {
            self.change(path)?;
        }
        Ok(Arc::new(StoppingFile { fs: self.clone(), file: OsFileSystem.open(path, mode)? }))
    }
    change!(fn create_dir_all(path) -> ());
    change!(fn rename(path, to: &Path) -> ());
    change!(fn remove_file(path) -> ());
    change!(fn remove_dir_all(path) -> ());
    change!(fn hard_link(path, to: &Path) -> ());
    change!(fn copy(path, to: &Path) -> ());
    change!(fn sync_dir(path) -> ());
    read!(fn read_dir(path) -> Vec<String>);
    read!(fn exists(path) -> bool);
    read!(fn len(path) -> u64);
    read!(fn lock(path) -> Box<dyn HeldLock>);
}

impl File for StoppingFile {
    fn write_at(&self, parts: &[std::io::IoSlice<'_>], offset: u64) -> Result<()> {
        self.fs.change(self.path())?;
        self.file.write_at(parts, offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn sync_data(&self) -> Result<()> {
        self.fs.change(self.path())?;
        self.file.sync_data()
    }
    fn sync_all(&self) -> Result<()> {
        self.fs.change(self.path())?;
        self.file.sync_all()
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.fs.change(self.path())?;
        self.file.set_len(len)
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

#[derive(Debug)]
struct Node {
    store: StateStore,
    queues: QueueTable,
}

fn vote() -> VoteRecord {
    VoteRecord { term: 3, node: 1, committed: true }
}

fn record(index: u64) -> CheckpointRecord {
    CheckpointRecord { vote: Some(vote()), log_end: LogOffset(index * 100), chain: index as u32 }
}

/// Opens everything as a restart does: state first, then the queues cut to the state's next offsets.
fn open(fs: &Arc<dyn FileSystem>, dir: &Path, backend: Backend) -> Result<Node> {
    let store = StateStore::open(fs.clone(), &dir.join("state"), FAMILIES, backend)?;
    let queues = QueueTable::open(fs.clone(), &dir.join("consumequeue"))?;
    let mut next = BTreeMap::new();
    store.state().scan(0, &[], None, &mut |_, value| {
        next.insert(QUEUE, QueueOffset(u64::from_be_bytes(value.try_into().expect("8 bytes"))));
        true
    })?;
    queues.cut(&next)?;
    Ok(Node { store, queues })
}

/// Entry `index` puts one unit into the queue and one key into the state.
fn apply(node: &Node, index: u64) -> Result<()> {
    let unit = Unit { offset: LogOffset(index), size: 1, tag_hash: 0 };
    node.queues.append(QUEUE, QueueOffset(index), unit)?;
    let mut batch = WriteBatch::new();
    batch.put(0, b"queue", &(index + 1).to_be_bytes());
    batch.put(1, &index.to_be_bytes(), b"value");
    batch.set_applied(EntryId::new(1, index));
    node.store.state().write(&batch)?;
    node.queues.publish()
}

/// What the state and the queue show must be the log up to one entry, and the queue must go on from there.
fn assert_consistent(node: &Node) -> u64 {
    let entries = node.store.applied().expect("applied").map_or(0, |id| id.index.0 + 1);
    assert_eq!(node.queues.range(QUEUE).1, QueueOffset(entries), "queue and state show the same entries");
    let mut keys = 0;
    node.store
        .state()
        .scan(1, &[], None, &mut |key, _| {
            assert_eq!(key, u64::to_be_bytes(keys));
            keys += 1;
            true
        })
        .expect("scan");
    assert_eq!(keys, entries);
    let mut units = 0;
    node.queues
        .for_each_unit(QUEUE, &mut |_, unit| {
            assert_eq!(unit.offset, LogOffset(units));
            units += 1;
        })
        .expect("units");
    assert_eq!(units, entries);
    entries
}

fn checkpoints(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir.join("state"))
        .expect("state folder")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("ascii"))
        .filter(|name| name != "live")
        .collect();
    names.sort();
    names
}

fn os() -> Arc<dyn FileSystem> {
    Arc::new(OsFileSystem)
}

/// Three rounds of four entries and a checkpoint; stops at the first error.
fn run(fs: &Arc<dyn FileSystem>, dir: &Path, backend: Backend) -> Result<()> {
    let node = open(fs, dir, backend)?;
    let mut index = node.store.applied()?.map_or(0, |id| id.index.0 + 1);
    for _ in 0..3 {
        for _ in 0..4 {
            apply(&node, index)?;
            index += 1;
        }
        node.store.checkpoint(&node.queues, record(index - 1))?;
    }
    apply(&node, index)
}

#[test]
fn restart_begins_at_the_newest_checkpoint() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().expect("temp dir");
        run(&os(), dir.path(), *backend).expect("run");
        assert_eq!(
            checkpoints(dir.path()),
            ["cp-00000000000000000007", "cp-00000000000000000011"],
            "two are kept"
        );
        let node = open(&os(), dir.path(), *backend).expect("reopen");
        assert_eq!(assert_consistent(&node), 12, "the thirteenth entry comes from the log again");
        assert_eq!(node.store.newest_record(), Some(record(11)));
        for index in 12..20 {
            apply(&node, index).expect("replay goes on");
        }
        assert_eq!(assert_consistent(&node), 20);
    }
}

#[test]
fn nothing_new_makes_no_checkpoint() {
    let dir = tempfile::tempdir().expect("temp dir");
    let node = open(&os(), dir.path(), Backend::Memory).expect("open");
    node.store.checkpoint(&node.queues, record(0)).expect("nothing applied");
    assert!(checkpoints(dir.path()).is_empty());
    apply(&node, 0).expect("apply");
    for _ in 0..2 {
        node.store.checkpoint(&node.queues, record(0)).expect("checkpoint");
    }
    assert_eq!(checkpoints(dir.path()), ["cp-00000000000000000000"]);
}

#[test]
fn a_crash_after_any_step_leaves_an_older_or_newer_checkpoint() {
    for backend in BACKENDS {
        let mut seen = std::collections::BTreeSet::new();
        for calls in 0.. {
            let dir = tempfile::tempdir().expect("temp dir");
            let stopping: Arc<dyn FileSystem> = StoppingFs::after(calls);
            let whole = run(&stopping, dir.path(), *backend).is_ok();
            let node = open(&os(), dir.path(), *backend).expect("a restart after a crash at any step");
            let entries = assert_consistent(&node);
            assert!(matches!(entries, 0 | 4 | 8 | 12), "{entries} entries after {calls} calls");
            seen.insert(entries);
            let left = checkpoints(dir.path());
            assert!(left.iter().all(|name| !name.ends_with(".tmp")), "{left:?} after a restart");
            drop(node);
            run(&os(), dir.path(), *backend).expect("the next life works");
            assert_eq!(checkpoints(dir.path()).len(), 2, "older ones are removed sooner or later");
            if whole {
                break;
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 4, 8, 12], "crashes hit every checkpoint");
    }
}

#[test]
fn an_unfinished_checkpoint_is_not_used() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().expect("temp dir");
        let node = open(&os(), dir.path(), *backend).expect("open");
        apply(&node, 0).expect("apply");
        let pending =
            node.store.begin_checkpoint(&node.queues, record(0)).expect("begin").expect("something new");
        // The apply thread goes on meanwhile; none of this may get into the checkpoint.
        apply(&node, 1).expect("apply");
        pending.finish(&node.store, &node.queues).expect("finish");
        apply(&node, 2).expect("apply");
        let unfinished = node.store.begin_checkpoint(&node.queues, record(2)).expect("begin");
        drop(unfinished);
        drop(node);
        let node = open(&os(), dir.path(), *backend).expect("reopen");
        assert_eq!(assert_consistent(&node), 1);
    }
}

#[test]
fn files_of_a_removed_topic_stay_for_the_older_checkpoint() {
    let dir = tempfile::tempdir().expect("temp dir");
    let node = open(&os(), dir.path(), Backend::Memory).expect("open");
    let folder = dir.path().join("consumequeue/1-1");
    let checkpoint = |index| {
        let mut batch = WriteBatch::new();
        batch.set_applied(EntryId::new(1, index));
        batch.delete(0, b"queue");
        node.store.state().write(&batch).expect("write");
        node.store.checkpoint(&node.queues, record(index)).expect("checkpoint");
    };
    apply(&node, 0).expect("apply");
    node.store.checkpoint(&node.queues, record(0)).expect("the older one");
    node.queues.remove(1, 1).expect("remove");
    checkpoint(1);
    assert!(folder.exists(), "cp-0 still names the queue");
    checkpoint(2);
    assert!(!folder.exists(), "both kept checkpoints know of the removal");
}

#[test]
fn a_queue_that_the_newest_checkpoint_does_not_name_goes_with_the_next_one() {
    let dir = tempfile::tempdir().expect("temp dir");
    let folder = dir.path().join("consumequeue/1-1");
    let node = open(&os(), dir.path(), Backend::Memory).expect("open");
    apply(&node, 0).expect("apply");
    node.store.checkpoint(&node.queues, record(0)).expect("a checkpoint that names it");
    let mut batch = WriteBatch::new();
    batch.delete(0, b"queue");
    batch.set_applied(EntryId::new(1, 1));
    node.store.state().write(&batch).expect("write");
    node.queues.remove(1, 1).expect("remove");
    node.store.checkpoint(&node.queues, record(1)).expect("checkpoint");
    drop(node);
    let node = open(&os(), dir.path(), Backend::Memory).expect("reopen");
    assert!(folder.exists(), "the older checkpoint needs it");
    let mut batch = WriteBatch::new();
    batch.set_applied(EntryId::new(1, 2));
    node.store.state().write(&batch).expect("write");
    node.store.checkpoint(&node.queues, record(2)).expect("checkpoint");
    assert!(!folder.exists());
}

fn newest_file(dir: &Path, part: &str) -> PathBuf {
    dir.join("state").join(checkpoints(dir).pop().expect("a checkpoint")).join(part)
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::remove_file(path).expect("remove");
    OsFileSystem
        .open(path, OpenMode::CreateNew)
        .and_then(|file| file.write_at(&[std::io::IoSlice::new(&bytes)], 0))
        .expect("write back");
}

/// The newest checkpoint damaged: the older one. Both damaged: an error, never an empty start.
#[test]
fn a_damaged_checkpoint_is_passed_over_and_never_started_empty() {
    for (backend, part) in [
        (Backend::Memory, "record"),
        (Backend::Memory, "files"),
        (Backend::Memory, "state/state"),
        (Backend::Rocks, "record"),
        (Backend::Rocks, "files"),
        (Backend::Rocks, "state/CURRENT"),
    ] {
        if !BACKENDS.contains(&backend) {
            continue;
        }
        for remove in [false, true] {
            let dir = tempfile::tempdir().expect("temp dir");
            run(&os(), dir.path(), backend).expect("run");
            for name in checkpoints(dir.path()).into_iter().rev() {
                let path = dir.path().join("state").join(name).join(part);
                if remove {
                    std::fs::remove_file(&path).expect("remove");
                } else {
                    flip(&path);
                }
                let opened = open(&os(), dir.path(), backend);
                if checkpoints(dir.path())
                    .last()
                    .is_some_and(|newest| path.starts_with(dir.path().join("state").join(newest)))
                {
                    let node = opened.expect("the older one is used");
                    assert_eq!(assert_consistent(&node), 8, "the state of the older checkpoint");
                } else {
                    let error = opened.expect_err("damage is not started with");
                    assert!(matches!(error, StoreError::StateDamaged { .. }), "{error}");
                    assert!(error.to_string().contains(part), "names the file: {error}");
                }
            }
        }
    }
}

#[test]
fn what_was_passed_over_is_made_again() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().expect("temp dir");
        run(&os(), dir.path(), *backend).expect("run");
        flip(&newest_file(dir.path(), "files"));
        let node = open(&os(), dir.path(), *backend).expect("the older one is used");
        for index in 8..12 {
            apply(&node, index).expect("apply again");
        }
        node.store.checkpoint(&node.queues, record(11)).expect("in the place of the damaged one");
        drop(node);
        let node = open(&os(), dir.path(), *backend).expect("open");
        assert_eq!(assert_consistent(&node), 12);
    }
}

#[test]
fn a_pinned_checkpoint_stays_with_all_its_files() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().expect("temp dir");
        let node = open(&os(), dir.path(), *backend).expect("open");
        assert!(node.store.pin().is_none(), "there is none yet");
        apply(&node, 0).expect("apply");
        node.store.checkpoint(&node.queues, record(0)).expect("checkpoint");
        let pin = node.store.pin().expect("the first one");
        for index in 1..6 {
            apply(&node, index).expect("apply");
            node.store.checkpoint(&node.queues, record(index)).expect("checkpoint");
        }
        assert_eq!(pin.applied, EntryId::new(1, 0));
        assert_eq!(node.store.oldest_kept(), Some(pin.applied), "the log above it stays");
        for file in &pin.files {
            let bytes = std::fs::read(dir.path().join(&file.path)).expect("held");
            assert!(bytes.len() as u64 >= file.len, "{file:?}");
            if let Some(crc) = file.crc {
                assert_eq!((bytes.len() as u64, crc32c::crc32c(&bytes)), (file.len, crc), "{file:?}");
            }
        }
        let queue =
            pin.files.iter().find(|file| file.path.starts_with("consumequeue")).expect("a queue file");
        assert_eq!(queue.len, 20, "one unit as of the pinned checkpoint");
        drop(pin);
        apply(&node, 6).expect("apply");
        node.store.checkpoint(&node.queues, record(6)).expect("checkpoint");
        assert_eq!(node.store.oldest_kept(), Some(EntryId::new(1, 5)));
        assert_eq!(checkpoints(dir.path()).len(), 2);
    }
}

#[test]
fn a_raised_minimum_is_that_of_the_checkpoint_after_a_restart() {
    let dir = tempfile::tempdir().expect("temp dir");
    let node = open(&os(), dir.path(), Backend::Memory).expect("open");
    for index in 0..10 {
        apply(&node, index).expect("apply");
    }
    node.queues.drop_below(LogOffset(4)).expect("drop");
    assert_eq!(node.queues.range(QUEUE), (QueueOffset(4), QueueOffset(10)));
    node.store.checkpoint(&node.queues, record(9)).expect("checkpoint");
    node.queues.drop_below(LogOffset(7)).expect("not in the checkpoint");
    drop(node);
    let store = StateStore::open(os(), &dir.path().join("state"), FAMILIES, Backend::Memory).expect("state");
    let queues = QueueTable::open(os(), &dir.path().join("consumequeue")).expect("queues");
    queues.cut_to(&BTreeMap::from([(QUEUE, QueueOffset(10))]), &store.queue_ranges()).expect("cut");
    assert_eq!(queues.range(QUEUE), (QueueOffset(4), QueueOffset(10)));
    let below = queues.read(QUEUE, QueueOffset(3), 1).expect_err("gone for readers");
    assert!(matches!(below, StoreError::BelowMinimum { minimum: QueueOffset(4), .. }), "{below}");
    queues.drop_below(LogOffset(1_000)).expect("everything");
    assert_eq!(queues.range(QUEUE), (QueueOffset(10), QueueOffset(10)), "its positions are not given again");
}
