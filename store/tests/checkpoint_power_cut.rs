//! Checkpoints and queues when the power goes, at any call and with any part of what was unsynced lost; and the log
//! that does not belong to a checkpoint.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mq_store::fs::{CrashingFs, Failure};
use mq_store::{
    Backend, CheckpointRecord, EntryId, FileSystem, LogOffset, QueueId, QueueOffset, QueueTable, Result,
    StateStore, Unit, VoteRecord, WriteBatch,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Seed, append, entry, open_with, seeds};

const FAMILIES: &[&str] = &["next", "data"];

fn group(dir: &str) -> PathBuf {
    Path::new(support::GROUP).join(dir)
}

/// Topics come and go: entry `index` belongs to this queue.
fn queue_of(index: u64) -> QueueId {
    QueueId::new((index % 3) as u32, (index / 40) as u32, 0)
}

struct Node {
    store: StateStore,
    queues: QueueTable,
}

fn next_of(node: &StateStore) -> Result<BTreeMap<QueueId, QueueOffset>> {
    let mut next = BTreeMap::new();
    node.state().scan(0, &[], None, &mut |key, value| {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
        let id = QueueId::new(number(&key[..4]), number(&key[4..]), 0);
        next.insert(id, QueueOffset(u64::from_be_bytes(value.try_into().expect("8 bytes"))));
        true
    })?;
    Ok(next)
}

fn open(fs: &CrashingFs) -> Result<Node> {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let store = StateStore::open(fs.clone(), &group("state"), FAMILIES, Backend::Memory)?;
    let queues = QueueTable::open(fs, &group("consumequeue"))?;
    queues.cut(&next_of(&store)?)?;
    Ok(Node { store, queues })
}

fn key(id: QueueId) -> Vec<u8> {
    [id.topic_id.to_be_bytes(), id.incarnation.to_be_bytes()].concat()
}

fn apply(node: &Node, index: u64) -> Result<()> {
    let id = queue_of(index);
    let next = next_of(&node.store)?.get(&id).copied().unwrap_or_default();
    let mut batch = WriteBatch::new();
    node.queues.append(id, next, Unit { offset: LogOffset(index), size: 1, tag_hash: 7 })?;
    batch.put(0, &key(id), &(next.0 + 1).to_be_bytes());
    batch.put(1, &index.to_be_bytes(), b"");
    if id.incarnation > 0 {
        // The life before this one ended.
        let before = QueueId { incarnation: id.incarnation - 1, ..id };
        batch.delete(0, &key(before));
        node.queues.remove(before.topic_id, before.incarnation)?;
    }
    batch.set_applied(EntryId::new(1, index));
    node.store.state().write(&batch)?;
    node.queues.publish()
}

/// State and queues show exactly the entries up to one; how many.
fn check(node: &Node) -> u64 {
    let entries = node.store.applied().expect("applied").map_or(0, |id| id.index.0 + 1);
    let mut expected: BTreeMap<QueueId, Vec<u64>> = BTreeMap::new();
    for index in 0..entries {
        let id = queue_of(index);
        expected.entry(id).or_default().push(index);
        if id.incarnation > 0 {
            expected.remove(&QueueId { incarnation: id.incarnation - 1, ..id });
        }
    }
    assert_eq!(node.queues.queues(), expected.keys().copied().collect::<Vec<_>>());
    for (id, indexes) in expected {
        let mut found = Vec::new();
        node.queues.for_each_unit(id, &mut |_, unit| found.push(unit.offset.0)).expect("units");
        assert_eq!(found, indexes, "queue {id}");
    }
    entries
}

fn record() -> CheckpointRecord {
    CheckpointRecord { vote: None, log_end: LogOffset(0), chain: 0 }
}

/// Applies on from what is there; what was confirmed by a checkpoint so far is kept in `confirmed`.
fn live(fs: &CrashingFs, dice: &mut StdRng, confirmed: &mut u64) -> Result<()> {
    let node = open(fs)?;
    let mut index = check(&node);
    assert!(index >= *confirmed, "{index} entries are left of {confirmed} that a checkpoint held");
    for _ in 0..dice.random_range(1..8) {
        for _ in 0..dice.random_range(1..20) {
            apply(&node, index)?;
            index += 1;
        }
        node.store.checkpoint(&node.queues, record())?;
        *confirmed = index;
    }
    Ok(())
}

#[test]
fn a_confirmed_checkpoint_survives_power_cuts_at_any_call() {
    let mut hit = 0;
    for seed in seeds(300) {
        let _seed = Seed(seed, "--test checkpoint_power_cut");
        let mut dice = StdRng::seed_from_u64(seed);
        let (mut fs, mut confirmed) = (CrashingFs::new(), 0);
        for _ in 0..dice.random_range(1..6) {
            fs.fail(Failure::ForEver(dice.random_range(0..200)));
            hit += u32::from(live(&fs, &mut dice, &mut confirmed).is_err());
            fs = if dice.random_bool(0.7) { fs.power_cut(dice.random()) } else { fs.kill() };
        }
        let node = open(&fs).expect("opens after any crash");
        assert!(check(&node) >= confirmed);
    }
    assert!(hit > 100 || seeds(300).len() == 1, "only {hit} lives ended in the middle of something");
}

#[test]
fn a_log_that_lost_something_is_refused() {
    let fs: Arc<dyn FileSystem> = Arc::new(CrashingFs::new());
    let opened =
        open_with(fs.clone(), Path::new(support::GROUP), support::config(), None).expect("open the log");
    append(&opened.log, (0..4).map(|index| entry(1, index, 50)).collect()).expect("append");
    let last = opened.log.read(mq_store::LogIndex(3), mq_store::LogIndex(4), 1).expect("read").remove(0);
    let vote = |term| Some(VoteRecord { term, node: 1, committed: true });
    let made = |name: &str, applied, chain| {
        let store = StateStore::open(fs.clone(), &group(name), FAMILIES, Backend::Memory).expect("open");
        let mut batch = WriteBatch::new();
        batch.set_applied(applied);
        store.state().write(&batch).expect("write");
        let record = CheckpointRecord { vote: vote(5), log_end: opened.log.end(), chain };
        store.checkpoint(None, record).expect("checkpoint");
        store
    };
    let good = made("good", EntryId::new(1, 3), last.head_crc);
    good.check(&opened.log, vote(5)).expect("the log it was made with");
    append(&opened.log, vec![entry(6, 4, 50)]).expect("append");
    good.check(&opened.log, vote(6)).expect("a longer log and a newer vote");
    for (store, vote, what) in [
        (&good, vote(4), "an older vote"),
        (&good, None, "no vote"),
        (&made("chain", EntryId::new(1, 3), !last.head_crc), vote(5), "another entry there"),
        (&made("term", EntryId::new(2, 3), last.head_crc), vote(5), "an entry of another term"),
        (&made("end", EntryId::new(6, 5), last.head_crc), vote(5), "a log that ends before it"),
    ] {
        let refused = store.check(&opened.log, vote).expect_err(what);
        assert!(refused.to_string().contains("record"), "{what}: {refused}");
    }
}
