//! The CommitLog through its interface, on real files.

mod support;

use std::sync::Arc;

use bytes::Bytes;
use mq_store::{
    BodyBuilder, CommitLog, CommitLogConfig, DataLock, EncodedItem, EntryId, FrameKind, GroupMeta, LogEntry,
    LogIndex, LogOffset, OsFileSystem, StoreError, VoteRecord, items,
};
use support::{Open, append, config, entry, open_with, read_all, truncate, wait};

fn reopen(dir: &tempfile::TempDir) -> Open {
    open_with(Arc::new(OsFileSystem), dir.path(), config(), None).expect("the log opens")
}

fn new_log() -> (tempfile::TempDir, Open) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let open = reopen(&dir);
    (dir, open)
}

fn fill(log: &CommitLog, term: u64, indexes: std::ops::Range<u64>) {
    for index in indexes {
        append(log, vec![entry(term, index, 100 + index as usize * 13)]).expect("appends");
    }
}

#[test]
fn appended_entries_are_readable_at_once_and_after_a_restart_at_the_same_place() {
    let (dir, Open { log, .. }) = new_log();
    fill(&log, 1, 0..30);
    let before = read_all(&log).expect("reads");
    assert_eq!(before.len(), 30);
    for pair in before.windows(2) {
        assert_eq!(pair[1].prev_crc, pair[0].head_crc);
    }
    let last_byte = |e: &mq_store::PlacedEntry| e.offset.0 + 71 + e.entry.body.len() as u64;
    assert!(before.iter().all(|e| e.offset.0 / 4096 == last_byte(e) / 4096), "no frame spans segments");
    assert!(log.end().0 > 2 * 4096, "it rolled");
    let (end, chain) = (log.end(), log.chain_at_end());
    drop(log);
    let again = reopen(&dir);
    assert_eq!(read_all(&again.log).expect("reads"), before);
    assert_eq!((again.log.end(), again.log.chain_at_end()), (end, chain));
    assert_eq!(again.report.last, Some(EntryId::new(1, 29)));
    assert_eq!(again.log.watermark().flushed(), Some(EntryId::new(1, 29)));
    fill(&again.log, 2, 30..33);
    assert_eq!(again.log.last(), Some(EntryId::new(2, 32)));
}

#[test]
fn places_do_not_depend_on_how_entries_came() {
    let (_a, one) = new_log();
    let (_b, many) = new_log();
    fill(&one.log, 1, 0..30);
    let all = (0..30).map(|i| entry(1, i, 100 + i as usize * 13)).collect();
    append(&many.log, all).expect("appends");
    assert_eq!(read_all(&one.log).expect("reads"), read_all(&many.log).expect("reads"));
}

#[test]
fn a_follower_that_differs_appends_nothing() {
    let (_dir, Open { log, .. }) = new_log();
    fill(&log, 1, 0..2);
    let (end, chain) = (log.end(), log.chain_at_end());
    let mut wrong = entry(1, 3, 10);
    wrong.expected_head_crc = Some(7);
    let refused = log.append(vec![entry(1, 2, 10), wrong], Box::new(|_| panic!("told of a refused append")));
    assert!(
        matches!(refused, Err(StoreError::Divergence { index: LogIndex(3), expected: 7, .. })),
        "{refused:?}"
    );
    assert_eq!((log.end(), log.chain_at_end(), log.last()), (end, chain, Some(EntryId::new(1, 1))));
    let placed = {
        let (_other_dir, other) = new_log();
        fill(&other.log, 1, 0..2);
        append(&other.log, vec![entry(1, 2, 10)]).expect("appends");
        other.log.read(LogIndex(2), LogIndex(3), 1).expect("reads").remove(0)
    };
    let mut right = entry(1, 2, 10);
    right.expected_head_crc = Some(placed.head_crc);
    append(&log, vec![right]).expect("the same log has the same chain");
}

#[test]
fn what_does_not_follow_or_is_too_large_is_refused() {
    let (_dir, Open { log, .. }) = new_log();
    fill(&log, 1, 0..3);
    let gap = log.append(vec![entry(1, 4, 1)], Box::new(|_| ()));
    assert!(matches!(gap, Err(StoreError::NotNext { expected: LogIndex(3), found: LogIndex(4) })), "{gap:?}");
    let large = log.append(vec![entry(1, 3, 2048 - 72 + 1)], Box::new(|_| ()));
    assert!(matches!(large, Err(StoreError::Limit { value: 2056, limit: 2048, .. })), "{large:?}");
    append(&log, vec![entry(1, 3, 2048 - 72)]).expect("exactly the limit");
    let above = log.read(LogIndex(4), LogIndex(5), 1);
    assert!(matches!(above, Err(StoreError::Missing { end: LogIndex(4), .. })), "{above:?}");
}

#[test]
fn truncation_takes_entries_away_for_good() {
    for keep in [None, Some(0), Some(4), Some(12), Some(18), Some(19), Some(50)] {
        let (dir, Open { log, .. }) = new_log();
        fill(&log, 3, 0..20);
        let before = read_all(&log).expect("reads");
        truncate(&log, keep).expect("truncates");
        let kept = keep.map_or(0, |k| (k as usize + 1).min(20));
        assert_eq!(log.watermark().flushed(), before[..kept].last().map(|e| e.entry.id()));
        assert_eq!(read_all(&log).expect("reads"), before[..kept]);
        drop(log);
        let again = reopen(&dir);
        assert_eq!(read_all(&again.log).expect("reads"), before[..kept], "after keeping {keep:?}");
        // Shorter, of a lower term than what was cut.
        append(&again.log, vec![entry(2, kept as u64, 3)]).expect("appends");
        drop(again);
        let last = reopen(&dir);
        assert_eq!(last.log.last(), Some(EntryId::new(2, kept as u64)));
        assert_eq!(last.report.frames, kept as u64 + 1);
    }
}

#[test]
fn truncation_of_what_is_still_queued_keeps_the_order() {
    let (dir, Open { log, .. }) = new_log();
    let (told, order) = std::sync::mpsc::channel();
    let note = |what: &'static str| {
        let told = told.clone();
        Box::new(move |result: Result<(), StoreError>| {
            result.expect("succeeds");
            told.send(what).expect("the test listens");
        })
    };
    log.append((0..20).map(|i| entry(5, i, 300)).collect(), note("append")).expect("appends");
    log.truncate_after(Some(LogIndex(6)), note("truncate"));
    assert!(log.watermark().flushed().is_none_or(|f| f.index.0 <= 6));
    log.append(vec![entry(4, 7, 10), entry(4, 8, 10)], note("append again")).expect("appends");
    log.save_vote(VoteRecord { term: 6, node: 1, committed: false }, note("vote"));
    log.watermark().wait(LogIndex(8)).expect("is flushed");
    drop(log);
    drop(told);
    assert_eq!(order.iter().collect::<Vec<_>>(), ["append", "truncate", "append again", "vote"]);
    let again = reopen(&dir);
    assert_eq!(again.log.last(), Some(EntryId::new(4, 8)));
    assert_eq!(again.log.entry_id(LogIndex(6)), Some(EntryId::new(5, 6)));
    assert_eq!(again.files.vote(), Some(VoteRecord { term: 6, node: 1, committed: false }));
}

#[test]
fn a_truncation_below_the_checkpoint_is_refused() {
    let (dir, Open { log, .. }) = new_log();
    fill(&log, 1, 0..10);
    drop(log);
    let open =
        open_with(Arc::new(OsFileSystem), dir.path(), config(), Some(EntryId::new(1, 6))).expect("opens");
    let refused = truncate(&open.log, Some(5));
    assert!(matches!(refused, Err(StoreError::Limit { .. })), "{refused:?}");
    assert_eq!(open.log.last(), Some(EntryId::new(1, 9)));
    truncate(&open.log, Some(6)).expect("keeps what the checkpoint covers");
}

#[test]
fn purged_entries_are_gone_from_the_log_and_their_bytes_stay() {
    let (dir, Open { log, .. }) = new_log();
    let mut body = BodyBuilder::new();
    body.push(&EncodedItem::new(1, 0, 1, &[b"kept"]));
    append(&log, vec![items_entry(1, 0, body)]).expect("appends");
    fill(&log, 1, 1..10);
    let purge = |log: &CommitLog, id| {
        wait(|done| {
            log.purge(id, done);
            Ok(())
        })
        .expect("purges");
    };
    purge(&log, EntryId::new(1, 4));
    assert_eq!((log.first(), log.purged()), (Some(EntryId::new(1, 5)), Some(EntryId::new(1, 4))));
    assert!(matches!(
        log.read(LogIndex(4), LogIndex(9), 1),
        Err(StoreError::Missing { first: LogIndex(5), .. })
    ));
    drop(log);
    let Open { log, .. } = reopen(&dir);
    assert_eq!((log.first(), log.purged()), (Some(EntryId::new(1, 5)), Some(EntryId::new(1, 4))));
    assert_eq!(&log.read_item(LogOffset(72 + 16)).expect("reads").body[..], b"kept");
    truncate(&log, None).expect("keeps what is purged");
    assert_eq!((log.first(), log.last()), (None, None));
    // Above the end: the log goes on behind it, at the present place.
    let end = log.end();
    purge(&log, EntryId::new(2, 20));
    assert_eq!((log.last(), log.watermark().flushed()), (None, Some(EntryId::new(2, 20))));
    append(&log, vec![entry(2, 21, 40), entry(2, 22, 40)]).expect("appends");
    drop(log);
    let Open { log, .. } = reopen(&dir);
    assert_eq!((log.first(), log.last()), (Some(EntryId::new(2, 21)), Some(EntryId::new(2, 22))));
    assert_eq!(log.read(LogIndex(21), LogIndex(22), 1).expect("reads")[0].offset, end);
    truncate(&log, Some(20)).expect("truncates");
    assert_eq!((log.last(), log.end()), (None, end));
}

#[test]
fn a_log_may_begin_at_any_index() {
    let (dir, Open { log, .. }) = new_log();
    fill(&log, 1, 2..5);
    drop(log);
    let again = reopen(&dir);
    assert_eq!((again.log.first(), again.log.last()), (Some(EntryId::new(1, 2)), Some(EntryId::new(1, 4))));
}

fn items_entry(term: u64, index: u64, body: BodyBuilder) -> mq_store::AppendEntry {
    let frame = body.finish();
    let mut entry = LogEntry::new(FrameKind::Items, EntryId::new(term, index), frame.body);
    assert_eq!(entry.body_crc, frame.crc);
    (entry.count, entry.store_time, entry.lease_time) = (frame.count, 77, 88);
    mq_store::AppendEntry { entry, expected_head_crc: None }
}

#[test]
fn an_item_is_found_by_its_place_hot_and_cold() {
    let (dir, Open { log, .. }) = new_log();
    let bodies: Vec<Vec<u8>> = (0..4u8).map(|i| vec![i + 1; 100 * usize::from(i) + 1]).collect();
    let mut body = BodyBuilder::new();
    for (kind, bytes) in bodies.iter().enumerate() {
        body.push(&EncodedItem::new(kind as u8, 9, 3, &[bytes]));
    }
    append(&log, vec![entry(1, 0, 50), items_entry(1, 1, body)]).expect("appends");
    let placed = log.read(LogIndex(1), LogIndex(2), 1).expect("reads").remove(0);
    let views: Vec<_> = items(&placed.entry.body).collect::<Result<_, _>>().expect("whole");
    let check = |log: &CommitLog, hot: bool| {
        for (view, bytes) in views.iter().zip(&bodies) {
            let at = LogOffset(placed.offset.0 + u64::from(view.position) + 16);
            let item = log.read_item(at).expect("reads");
            assert_eq!((&item.body[..], item.kind, item.flags, item.version), (&bytes[..], view.kind, 9, 3));
            assert_eq!((item.frame_offset, item.term.0, item.index.0), (placed.offset, 1, 1));
            assert_eq!((item.store_time, item.lease_time), (77, 88));
            assert_eq!(log.read_item_hot(at), hot.then_some(item));
        }
    };
    check(&log, true);
    fill(&log, 1, 2..12);
    check(&log, false);
    let end = log.end();
    assert!(matches!(log.read_item(end), Err(StoreError::Limit { .. })));
    let inside = LogOffset(placed.offset.0 + u64::from(views[3].position) + 24);
    assert!(matches!(log.read_item(inside), Err(StoreError::Corrupt { .. })), "no item begins there");
    drop(log);
    check(&reopen(&dir).log, false);
}

#[test]
fn a_log_of_another_group_or_shape_is_refused() {
    let (dir, Open { log, .. }) = new_log();
    fill(&log, 1, 0..3);
    drop(log);
    let shapes = [
        CommitLogConfig { segment_size: 8192, ..config() },
        CommitLogConfig { frame_limit: 1024, ..config() },
        CommitLogConfig { chain_start: 1, ..config() },
    ];
    for shape in shapes {
        let refused = open_with(Arc::new(OsFileSystem), dir.path(), shape, None).map(|_| ());
        assert!(matches!(refused, Err(StoreError::Identity { .. })), "{refused:?}");
    }
    let impossible = CommitLogConfig { frame_limit: 8192, ..config() };
    let refused = open_with(Arc::new(OsFileSystem), dir.path(), impossible, None).map(|_| ());
    assert!(matches!(refused, Err(StoreError::Limit { .. })), "{refused:?}");
    assert_eq!(reopen(&dir).log.last(), Some(EntryId::new(1, 2)));
}

#[test]
fn meta_survives_and_one_process_has_the_folder() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let lock = DataLock::acquire(&OsFileSystem, dir.path()).expect("locks");
    assert!(matches!(DataLock::acquire(&OsFileSystem, dir.path()), Err(StoreError::Locked { .. })));
    drop(lock);
    DataLock::acquire(&OsFileSystem, dir.path()).expect("free again");
    let meta = GroupMeta { group: "g".into(), segment_size: 4096, frame_limit: 2048, ..GroupMeta::default() };
    let files = mq_store::GroupFiles::open(Arc::new(OsFileSystem), dir.path()).expect("opens");
    assert_eq!((files.meta(), files.vote()), (None, None));
    files.save_meta(&meta).expect("saves");
    let long = GroupMeta { members: vec!["m".repeat(5000)], ..meta.clone() };
    assert!(matches!(files.save_meta(&long), Err(StoreError::Limit { .. })));
    drop(files);
    let files = mq_store::GroupFiles::open(Arc::new(OsFileSystem), dir.path()).expect("opens");
    assert_eq!(files.meta(), Some(meta));
}

#[test]
fn a_stopped_log_refuses_and_wakes_who_waits() {
    let (_dir, Open { log, .. }) = new_log();
    fill(&log, 1, 0..2);
    let mark = log.watermark();
    let waiter = std::thread::spawn(move || mark.wait(LogIndex(9)));
    log.stop();
    assert!(matches!(waiter.join().expect("ends"), Err(StoreError::Stopped)));
    assert!(matches!(append(&log, vec![entry(1, 2, 1)]), Err(StoreError::Stopped)));
    assert!(matches!(truncate(&log, None), Err(StoreError::Stopped)));
    assert_eq!(read_all(&log).expect("reading goes on").len(), 2);
    assert_eq!((log.unflushed_bytes(), log.oldest_unflushed(), log.failed().is_none()), (0, None, true));
}

#[test]
fn empty_bodies_and_blank_frames_are_entries_too() {
    let (dir, Open { log, .. }) = new_log();
    let blank = LogEntry::new(FrameKind::Blank, EntryId::new(1, 0), Bytes::new());
    append(&log, vec![mq_store::AppendEntry { entry: blank.clone(), expected_head_crc: None }])
        .expect("appends");
    drop(log);
    let again = reopen(&dir);
    assert_eq!(read_all(&again.log).expect("reads")[0].entry, blank);
    assert_eq!(again.log.end(), LogOffset(72));
}
