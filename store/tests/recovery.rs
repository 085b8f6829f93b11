//! Torn tail or damage: what recovery cuts, and what it refuses to touch.

mod support;

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use mq_store::fs::{CrashingFs, File, FileSystem, OpenMode};
use mq_store::{CommitLogConfig, EntryId, Intent, LogOffset, PlacedEntry, StoreError};
use support::{GROUP, Open, append, config, entry, open, open_with, read_all, segment, truncate};

/// Bodies without padding, so that every byte of the log has a meaning.
const BODY: usize = 104;
const FRAME: u64 = 72 + BODY as u64;

/// Batches of three entries each, all synced.
fn written(batches: u64) -> (CrashingFs, Vec<PlacedEntry>) {
    let fs = CrashingFs::new();
    let Open { log, .. } = open(Arc::new(fs.clone())).expect("opens");
    for batch in 0..batches {
        append(&log, (0..3).map(|at| entry(1, batch * 3 + at, BODY)).collect()).expect("appends");
    }
    let all = read_all(&log).expect("reads");
    log.stop();
    (fs.kill(), all)
}

fn file(fs: &CrashingFs, path: &Path) -> Arc<dyn File> {
    fs.open(path, OpenMode::ReadWrite).expect("the file is there")
}

fn bytes(fs: &CrashingFs, path: &Path) -> Vec<u8> {
    let file = file(fs, path);
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

fn zero(fs: &CrashingFs, path: &Path, from: u64, to: u64) {
    let zeros = vec![0; (to - from) as usize];
    file(fs, path).write_at(&[IoSlice::new(&zeros)], from).expect("writes");
}

fn reopen(fs: &CrashingFs) -> Result<Open, StoreError> {
    open(Arc::new(fs.clone()))
}

/// The log opens with the first `kept` entries, goes on, and opens again.
fn goes_on_after(fs: &CrashingFs, all: &[PlacedEntry], kept: usize, what: &str) {
    let Open { log, report, .. } = reopen(fs).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(read_all(&log).expect("reads"), all[..kept], "{what}");
    assert_eq!(report.frames, kept as u64, "{what}");
    append(&log, vec![entry(9, kept as u64, 5)]).expect("goes on");
    log.stop();
    let again = fs.kill().power_cut(1);
    let Open { log, report, .. } = reopen(&again).unwrap_or_else(|e| panic!("{what}, again: {e}"));
    assert_eq!(log.last(), Some(EntryId::new(9, kept as u64)), "{what}");
    assert_eq!(report.torn_bytes, 0, "{what}: the torn tail was zeroed the first time");
}

fn is_damage(fs: &CrashingFs, what: &str) {
    let refused = reopen(fs).map(|open| open.log.last());
    assert!(
        matches!(refused, Err(StoreError::Corrupt { .. } | StoreError::Damaged { .. })),
        "{what}: {refused:?}"
    );
}

#[test]
fn a_last_batch_cut_at_any_byte_is_cut_to_whole_frames() {
    let (fs, all) = written(3);
    let path = segment(0);
    let start = all[6].offset.0;
    let end = start + 3 * FRAME;
    for at in start..end {
        let whole = 6 + ((at - start) / FRAME) as usize;
        let short = fs.fork();
        file(&short, &path).set_len(at).expect("cuts");
        goes_on_after(&short, &all, whole, &format!("file cut to {at} bytes"));
        let zeroed = fs.fork();
        zero(&zeroed, &path, at, end);
        goes_on_after(&zeroed, &all, whole, &format!("zeros from {at}"));
    }
}

#[test]
fn a_lost_sector_in_the_last_batch_cuts_what_is_behind_it_too() {
    let (fs, all) = written(3);
    let start = all[6].offset.0;
    for sector in start / 512 + 1..=(start + 3 * FRAME - 1) / 512 {
        let lost = fs.fork();
        zero(&lost, &segment(0), sector * 512, (sector + 1) * 512);
        let whole = 6 + ((sector * 512 - start) / FRAME) as usize;
        goes_on_after(&lost, &all, whole, &format!("sector {sector} lost"));
    }
}

#[test]
fn a_flipped_bit_before_the_last_batch_is_damage_and_nothing_is_touched() {
    let (fs, all) = written(3);
    let path = segment(0);
    for bit in 0..all[6].offset.0 * 8 {
        let flipped = fs.fork();
        flipped.flip_bit(&path, bit / 8, (bit % 8) as u8);
        let before = bytes(&flipped, &path);
        is_damage(&flipped, &format!("bit {bit}"));
        assert_eq!(bytes(&flipped.kill(), &path), before, "bit {bit}: the file was changed");
    }
}

#[test]
fn damage_names_file_offset_expected_and_found() {
    let (fs, all) = written(3);
    fs.flip_bit(&segment(0), all[2].offset.0 + 80, 3);
    match reopen(&fs).map(|_| ()) {
        Err(StoreError::Damaged { path, from, to, chain_before, chain_after, expected, found }) => {
            assert_eq!((path, from, to), (segment(0), all[2].offset, all[3].offset));
            assert_eq!((chain_before, chain_after), (all[1].head_crc, all[2].head_crc));
            assert!(expected.contains(&format!("body_crc {:08x}", all[2].entry.body_crc)), "{expected}");
            assert!(found.contains("a later batch at"), "{found}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_is_a_torn_tail_unless_a_checkpoint_covers_it() {
    let (fs, all) = written(3);
    for (at, whole) in [(6, 6), (7, 7), (8, 8)] {
        for byte in [2, 30, 100] {
            let flipped = fs.fork();
            flipped.flip_bit(&segment(0), all[at].offset.0 + byte, 1);
            let covered = flipped.fork();
            goes_on_after(&flipped, &all, whole, &format!("byte {byte} of entry {at}"));
            if byte < 72 {
                let id = Some(all[at].entry.id());
                let refused = open_with(Arc::new(covered), Path::new(GROUP), config(), id).map(|_| ());
                assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
            }
        }
    }
}

#[test]
fn a_later_segment_makes_any_failure_before_it_damage() {
    let (fs, all) = written(12);
    let rolled = all.iter().position(|e| e.offset.0 >= 4096).expect("it rolled");
    let last_of_first = rolled - 1;
    let flipped = fs.fork();
    flipped.flip_bit(&segment(0), all[last_of_first].offset.0 + 90, 0);
    is_damage(&flipped, "last frame of the first segment");
    let missing = fs.fork();
    missing.remove_file(&segment(0)).expect("removes");
    is_damage(&missing, "the oldest segment is missing");
    let hole = written(24).0;
    hole.remove_file(&segment(4096)).expect("removes");
    is_damage(&hole, "a segment in the middle is missing");
}

#[test]
fn segments_without_a_whole_first_frame_are_removed() {
    let (fs, all) = written(3);
    let empty = fs.fork();
    empty.open(&segment(4096), OpenMode::CreateNew).expect("creates");
    goes_on_after(&empty, &all, 9, "an empty next segment");
    // The first batch of the next segment, its first frame lost: not confirmed, so it goes.
    let (fs, all) = written(12);
    let rolled = all.iter().position(|e| e.offset.0 >= 4096).expect("it rolled");
    let batch_end = rolled.next_multiple_of(3);
    let torn = fs.fork();
    let path = segment(4096);
    file(&torn, &path).set_len((batch_end - rolled) as u64 * FRAME).expect("cuts");
    zero(&torn, &path, 0, 8);
    let Open { log, .. } = reopen(&torn).expect("opens");
    assert_eq!(log.last(), Some(all[rolled - 1].entry.id()));
    assert!(!torn.exists(&path).expect("looks"));
    // With a later batch behind it, it was confirmed.
    let damaged = fs.fork();
    zero(&damaged, &path, 0, 8);
    is_damage(&damaged, "first frame of a segment with later batches");
}

#[test]
fn a_log_that_ends_below_its_checkpoint_is_damage() {
    let (fs, all) = written(2);
    let above = Some(EntryId::new(1, 6));
    let refused = open_with(Arc::new(fs.clone()), Path::new(GROUP), config(), above).map(|_| ());
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    let at = Some(all[5].entry.id());
    open_with(Arc::new(fs.clone()), Path::new(GROUP), config(), at).expect("opens");
    fs.remove_file(&segment(0)).expect("removes");
    let refused = open_with(Arc::new(fs), Path::new(GROUP), config(), at).map(|_| ());
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
}

#[test]
fn bodies_below_the_checkpoint_are_checked_when_they_are_read() {
    let (fs, all) = written(3);
    fs.flip_bit(&segment(0), all[1].offset.0 + 90, 0);
    let at = Some(all[8].entry.id());
    let Open { log, .. } = open_with(Arc::new(fs), Path::new(GROUP), config(), at).expect("opens");
    let index = |at: usize| all[at].entry.index;
    assert_eq!(log.read(index(0), index(1), 1).expect("reads"), all[..1]);
    let refused = log.read(index(1), index(2), 1);
    assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
}

#[test]
fn an_open_truncation_is_finished_and_an_old_note_of_one_is_only_cleared() {
    let (fs, all) = written(12);
    let (cut, first) = (all[4].offset, all[4].offset);
    let intent =
        |head_crc| Some(Intent::Truncate { cut, first, old_end: LogOffset(12 * 3 * FRAME), head_crc });
    for (head_crc, kept) in [(all[4].head_crc, 4), (all[4].head_crc ^ 1, 36)] {
        let fs = fs.fork();
        let files = mq_store::GroupFiles::open(Arc::new(fs.clone()), Path::new(GROUP)).expect("opens");
        files.update_meta(|meta| meta.intent = intent(head_crc)).expect("saves");
        drop(files);
        let Open { log, files, report } = reopen(&fs).expect("opens");
        assert!(report.finished_truncation);
        assert_eq!(files.meta().and_then(|m| m.intent), None);
        assert_eq!(read_all(&log).expect("reads"), all[..kept]);
    }
}

#[test]
fn a_file_that_is_no_segment_is_left_alone() {
    let (fs, all) = written(2);
    let stranger = Path::new(GROUP).join("commitlog").join("notes.txt");
    fs.open(&stranger, OpenMode::CreateNew).expect("creates");
    goes_on_after(&fs, &all, 6, "a stranger in the folder");
    assert!(fs.kill().exists(&stranger).expect("looks"));
}

#[test]
fn recovery_reads_a_large_log_through_its_window() {
    let fs = CrashingFs::new();
    let large = CommitLogConfig {
        segment_size: 4 << 20,
        frame_limit: 1 << 20,
        write_batch_bytes: 8 << 20,
        ..CommitLogConfig { chain_start: support::CHAIN_START, ..CommitLogConfig::default() }
    };
    let open = |fs: &CrashingFs, checkpoint| {
        open_with(Arc::new(fs.clone()), Path::new(GROUP), large.clone(), checkpoint).expect("opens")
    };
    let Open { log, .. } = open(&fs, None);
    let sizes = [10, 300_000, 900_000, 0, 262_144 - 72, 500_000, 7, 1_000_000, 100];
    let entries = sizes.iter().enumerate().map(|(at, len)| entry(1, at as u64, *len)).collect();
    append(&log, entries).expect("appends");
    append(&log, (9..2000).map(|at| entry(1, at, 1000)).collect()).expect("appends");
    truncate(&log, Some(1900)).expect("truncates");
    let before = read_all(&log).expect("reads");
    log.stop();
    for checkpoint in [None, Some(EntryId::new(1, 1500))] {
        let fs = fs.fork();
        let again = open(&fs, checkpoint);
        assert_eq!(again.report.frames, 1901);
        assert!(read_all(&again.log).expect("reads") == before);
    }
}
