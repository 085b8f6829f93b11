//! Memory and RocksDB are the same ordered key-value state.
#![cfg(feature = "rocksdb")]

use std::path::Path;
use std::sync::Arc;

use mq_store::state::{RocksState, applied, membership};
use mq_store::{EntryId, FileSystem, MemoryState, OsFileSystem, State, WriteBatch};
use proptest::prelude::*;

const FAMILIES: &[&str] = &["first", "second"];

#[derive(Clone, Debug)]
enum Step {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    Write,
    Checkpoint,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff)], 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, key(), proptest::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(family, key, value)| Step::Put(family, key, value)),
        3 => (0..2_usize, key()).prop_map(|(family, key)| Step::Delete(family, key)),
        2 => Just(Step::Write),
        1 => Just(Step::Checkpoint),
    ]
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn rows(state: &dyn State, family: usize, from: &[u8], to: Option<&[u8]>, limit: usize) -> Rows {
    let mut rows = Vec::new();
    state
        .scan(family, from, to, &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            rows.len() < limit
        })
        .expect("scan");
    rows
}

fn assert_same(one: &dyn State, other: &dyn State, from: &[u8], to: &[u8]) {
    for family in 0..3 {
        let all = rows(one, family, &[], None, usize::MAX);
        assert_eq!(all, rows(other, family, &[], None, usize::MAX));
        assert_eq!(rows(one, family, from, Some(to), 3), rows(other, family, from, Some(to), 3));
        for (key, value) in all {
            assert_eq!(other.get(family, &key).expect("get"), Some(value));
        }
    }
    assert_eq!(applied(one).expect("applied"), applied(other).expect("applied"));
}

fn open(path: &Path, create: bool) -> RocksState {
    RocksState::open(Arc::new(OsFileSystem), FAMILIES, path, create).expect("open")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_rocks_show_the_same(
        steps in proptest::collection::vec(step(), 1..80),
        from in key(),
        to in key(),
    ) {
        let dir = tempfile::tempdir().expect("temp dir");
        let fs: Arc<dyn FileSystem> = Arc::new(OsFileSystem);
        let memory = MemoryState::new(fs.clone(), FAMILIES);
        let rocks = open(&dir.path().join("live"), true);
        let mut batch = WriteBatch::new();
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::Put(family, key, value) => batch.put(*family, key, value),
                Step::Delete(family, key) => batch.delete(*family, key),
                Step::Write => {
                    batch.set_applied(EntryId::new(1, number as u64));
                    memory.write(&batch).expect("write");
                    rocks.write(&batch).expect("write");
                    batch.clear();
                }
                Step::Checkpoint => {
                    let path = dir.path().join(number.to_string());
                    memory.checkpoint(&path.join("memory")).expect("checkpoint");
                    rocks.checkpoint(&path.join("rocks")).expect("checkpoint");
                    let copy = MemoryState::load(fs.clone(), FAMILIES, &path.join("memory")).expect("load");
                    assert_same(&copy, &open(&path.join("rocks"), false), &from, &to);
                }
            }
        }
        assert_same(&memory, &rocks, &from, &to);
    }
}

#[test]
fn a_checkpoint_holds_what_is_still_in_memtables_and_nothing_later() {
    let dir = tempfile::tempdir().expect("temp dir");
    let rocks = open(&dir.path().join("live"), true);
    let mut batch = WriteBatch::new();
    batch.put(0, b"key", b"value");
    batch.set_membership(b"members");
    batch.set_applied(EntryId::new(2, 9));
    rocks.write(&batch).expect("write");
    let kept = dir.path().join("kept");
    rocks.checkpoint(&kept).expect("checkpoint");
    batch.put(0, b"key", b"later");
    rocks.write(&batch).expect("write");
    drop(rocks);
    let kept = open(&kept, false);
    assert_eq!(kept.get(0, b"key").expect("get").as_deref(), Some(&b"value"[..]));
    assert_eq!(applied(&kept).expect("applied"), Some(EntryId::new(2, 9)));
    assert_eq!(membership(&kept).expect("membership").as_deref(), Some(&b"members"[..]));
}

#[test]
fn an_empty_folder_is_not_opened_as_an_existing_state() {
    let dir = tempfile::tempdir().expect("temp dir");
    RocksState::open(Arc::new(OsFileSystem), FAMILIES, dir.path(), false).expect_err("nothing there");
}
