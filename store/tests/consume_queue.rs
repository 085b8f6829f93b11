//! ConsumeQueues: visibility, files, restart and removal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mq_store::consume_queue::UNITS_PER_FILE;
use mq_store::{LogOffset, OsFileSystem, QueueConfig, QueueId, QueueOffset, QueueTable, StoreError, Unit};

const QUEUE: QueueId = QueueId { topic_id: 1, incarnation: 1, queue: 0 };

fn unit(at: u64) -> Unit {
    Unit { offset: LogOffset(at * 1000), size: at as u32 + 1, tag_hash: -(at as i64) }
}

fn small() -> QueueConfig {
    QueueConfig { open_files: 2, hot_units: 10, read_units: 1000 }
}

fn open(dir: &Path) -> QueueTable {
    QueueTable::open_with(Arc::new(OsFileSystem), dir, small()).expect("open queues")
}

fn append(table: &QueueTable, id: QueueId, from: u64, to: u64) {
    for at in from..to {
        table.append(id, QueueOffset(at), unit(at)).expect("append");
    }
}

fn read(table: &QueueTable, id: QueueId, from: u64, max: usize) -> Vec<Unit> {
    table.read(id, QueueOffset(from), max).expect("read")
}

fn next(of: &[(QueueId, u64)]) -> BTreeMap<QueueId, QueueOffset> {
    of.iter().map(|(id, next)| (*id, QueueOffset(*next))).collect()
}

#[test]
fn units_are_seen_only_when_published() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    append(&table, QUEUE, 0, 5);
    assert_eq!(table.range(QUEUE), (QueueOffset(0), QueueOffset(0)));
    assert!(read(&table, QUEUE, 0, 10).is_empty(), "appended is not published");
    table.publish().expect("publish");
    append(&table, QUEUE, 5, 7);
    assert_eq!(read(&table, QUEUE, 0, 10), (0..5).map(unit).collect::<Vec<_>>());
    assert_eq!(read(&table, QUEUE, 3, 1), vec![unit(3)]);
    assert!(read(&table, QUEUE, 5, 10).is_empty(), "at the end");
    assert!(read(&table, QUEUE, 99, 10).is_empty(), "behind the end");
}

#[test]
fn a_hole_or_a_repeat_is_refused() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    append(&table, QUEUE, 0, 3);
    for wrong in [2, 4] {
        let refused = table.append(QUEUE, QueueOffset(wrong), unit(wrong));
        assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{wrong} after 2: {refused:?}");
    }
    table.publish().expect("publish");
    let refused = table.append(QUEUE, QueueOffset(4), unit(4));
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "4 after a published 2: {refused:?}");
    append(&table, QUEUE, 3, 4);
}

#[test]
fn a_queue_goes_on_in_the_next_file() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    let total = UNITS_PER_FILE + 500;
    for start in (0..total).step_by(70_000) {
        append(&table, QUEUE, start, total.min(start + 70_000));
        table.publish().expect("publish");
    }
    let around = UNITS_PER_FILE - 5;
    assert_eq!(read(&table, QUEUE, around, 10), (around..around + 10).map(unit).collect::<Vec<_>>());
    let first = dir.path().join("1-1/0/00000000000000000000");
    let second = dir.path().join("1-1/0/00000000000006000000");
    assert_eq!(std::fs::metadata(first).expect("first file").len(), 6_000_000);
    assert_eq!(std::fs::metadata(second).expect("second file").len(), 500 * 20);
    let mut seen = 0;
    table
        .for_each_unit(QUEUE, &mut |at, found| {
            assert_eq!((at.0, found), (seen, unit(seen)));
            seen += 1;
        })
        .expect("visit");
    assert_eq!(seen, total);

    drop(table);
    let table = open(dir.path());
    table.cut(&next(&[(QUEUE, UNITS_PER_FILE)])).expect("cut at the edge of a file");
    assert_eq!(table.range(QUEUE).1, QueueOffset(UNITS_PER_FILE));
    append(&table, QUEUE, UNITS_PER_FILE, UNITS_PER_FILE + 1);
    table.publish().expect("publish");
    assert_eq!(
        read(&table, QUEUE, UNITS_PER_FILE - 1, 9),
        vec![unit(UNITS_PER_FILE - 1), unit(UNITS_PER_FILE)]
    );
}

#[test]
fn hot_units_and_open_files_are_bounded_and_cold_reads_work() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    let ids: Vec<QueueId> = (0..20).map(|queue| QueueId::new(3, 1, queue)).collect();
    for round in 0..5 {
        for id in &ids {
            append(&table, *id, round, round + 1);
        }
        table.publish().expect("publish");
    }
    for id in &ids {
        assert_eq!(read(&table, *id, 0, 9), (0..5).map(unit).collect::<Vec<_>>());
    }
    let hot = ids.iter().filter(|id| table.read_hot(**id, QueueOffset(4), 1).is_some()).count();
    assert_eq!(hot, 10, "ten units are hot, the newest of the last ten queues");
    assert_eq!(table.read_hot(ids[0], QueueOffset(0), 1), None, "cold");
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("open files")
        .filter_map(|entry| std::fs::read_link(entry.expect("entry").path()).ok())
        .filter(|path| path.starts_with(dir.path()))
        .count();
    assert!(open <= 2, "{open} files open");
}

#[test]
fn restart_cuts_what_the_checkpoint_does_not_know() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (kept, newer) = (QUEUE, QueueId::new(2, 1, 3));
    let table = open(dir.path());
    append(&table, kept, 0, 8);
    append(&table, newer, 0, 4);
    table.publish().expect("publish");
    drop(table);

    let table = open(dir.path());
    table.cut(&next(&[(kept, 5), (QueueId::new(9, 1, 0), 0)])).expect("cut");
    assert_eq!(table.queues(), vec![kept]);
    assert_eq!(read(&table, kept, 0, 99), (0..5).map(unit).collect::<Vec<_>>());
    // The replay goes on from there, and makes the other queue again from its first unit.
    append(&table, kept, 5, 6);
    append(&table, newer, 0, 2);
    table.publish().expect("publish");
    assert_eq!(read(&table, kept, 4, 99), vec![unit(4), unit(5)]);
    assert_eq!(read(&table, newer, 0, 99), vec![unit(0), unit(1)]);
    drop(table);

    let table = open(dir.path());
    assert_eq!(table.range(newer).1, QueueOffset(2), "nothing of the first life is left behind the second");
}

#[test]
fn a_torn_unit_at_the_end_is_cut() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    append(&table, QUEUE, 0, 3);
    table.publish().expect("publish");
    drop(table);
    let path = dir.path().join("1-1/0/00000000000000000000");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(2 * 20 + 7).expect("tear the last unit");
    let table = open(dir.path());
    table.cut(&next(&[(QUEUE, 2)])).expect("cut");
    assert_eq!(std::fs::metadata(&path).expect("file").len(), 40);
    append(&table, QUEUE, 2, 3);
    table.publish().expect("publish");
    assert_eq!(read(&table, QUEUE, 0, 9), (0..3).map(unit).collect::<Vec<_>>());
}

#[test]
fn a_queue_shorter_than_the_checkpoint_is_refused_and_untouched() {
    let dir = tempfile::tempdir().expect("temp dir");
    let other = QueueId::new(1, 1, 1);
    let table = open(dir.path());
    append(&table, QUEUE, 0, 3);
    append(&table, other, 0, 9);
    table.publish().expect("publish");
    drop(table);
    let table = open(dir.path());
    for wanted in
        [next(&[(QUEUE, 4), (other, 1)]), next(&[(QUEUE, 3), (other, 1), (QueueId::new(8, 1, 0), 1)])]
    {
        let refused = table.cut(&wanted).expect_err("a lost unit is not started without");
        assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused}");
        assert_eq!(table.range(other).1, QueueOffset(9), "nothing is cut before all is known to be there");
    }
}

#[test]
fn removed_queues_are_gone_for_readers_at_once() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    let next_life = QueueId { incarnation: 2, ..QUEUE };
    append(&table, QUEUE, 0, 3);
    append(&table, next_life, 0, 1);
    table.publish().expect("publish");
    append(&table, QUEUE, 3, 4);
    table.remove(QUEUE.topic_id, QUEUE.incarnation).expect("remove");
    table.publish().expect("publish");
    assert!(read(&table, QUEUE, 0, 9).is_empty());
    assert_eq!(table.queues(), vec![next_life]);
    assert!(dir.path().join("1-1/0").exists(), "files stay for the checkpoints");
    table.sync().expect("sync of a removed queue's files");
}

#[test]
fn readers_beside_the_writer_see_whole_prefixes() {
    let dir = tempfile::tempdir().expect("temp dir");
    let table = open(dir.path());
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|start| {
            let (table, done) = (table.clone(), done.clone());
            std::thread::spawn(move || {
                let mut most = 0;
                while !done.load(Ordering::Acquire) {
                    let (_, max) = table.range(QUEUE);
                    let units = read(&table, QUEUE, start, 1000);
                    assert!(
                        units.len() as u64 + start >= max.0.min(1000),
                        "what was published stays readable"
                    );
                    for (place, found) in units.iter().enumerate() {
                        assert_eq!(*found, unit(start + place as u64));
                    }
                    most = most.max(units.len());
                }
                most
            })
        })
        .collect();
    for start in (0..900).step_by(3) {
        append(&table, QUEUE, start, start + 3);
        table.publish().expect("publish");
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    done.store(true, Ordering::Release);
    for reader in readers {
        assert!(reader.join().expect("no wrong unit") > 0);
    }
}
