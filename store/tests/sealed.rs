//! Starts that do not read the segments which a checkpoint covers: what they trust, and what they do not.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mq_store::fs::{CrashingFs, FileSystem, OpenMode};
use mq_store::{EntryId, LogIndex, PlacedEntry, StoreError};
use support::{GROUP, Open, append, config, entry, open_with, read_all, segment, truncate};

const ENTRIES: u64 = 60;

fn sparse(base: u64) -> PathBuf {
    Path::new(GROUP).join("raft").join("sparse").join(format!("{base:020}.idx"))
}

fn reopen(fs: &CrashingFs, covered: u64) -> Result<Open, StoreError> {
    open_with(Arc::new(fs.clone()), Path::new(GROUP), config(), Some(EntryId::new(1, covered)))
}

fn filled() -> (CrashingFs, Vec<PlacedEntry>) {
    let fs = CrashingFs::new();
    let Open { log, .. } = support::open(Arc::new(fs.clone())).expect("opens");
    for at in 0..ENTRIES {
        append(&log, vec![entry(1, at, 100 + at as usize)]).expect("appends");
    }
    let all = read_all(&log).expect("reads");
    log.stop();
    drop(log);
    (fs.power_cut(1), all)
}

fn segments(all: &[PlacedEntry]) -> usize {
    all.last().map_or(0, |e| e.offset.0 / 4096 + 1) as usize
}

#[test]
fn covered_segments_are_not_read_and_the_log_is_the_same() {
    let (fs, all) = filled();
    for covered in 0..ENTRIES {
        let fs = fs.fork();
        let Open { log, report, .. } = reopen(&fs, covered).expect("opens");
        let inside = all[covered as usize].offset.0 / 4096;
        assert_eq!((report.segments, report.skipped as u64), (segments(&all), inside), "{covered}");
        assert_eq!(report.frames, ENTRIES);
        assert_eq!(read_all(&log).expect("reads"), all);
        assert_eq!(log.watermark().flushed(), Some(EntryId::new(1, ENTRIES - 1)));
        append(&log, vec![entry(2, ENTRIES, 30)]).expect("goes on");
    }
}

#[test]
fn an_index_file_that_is_missing_or_damaged_is_made_again() {
    let (fs, all) = filled();
    type Break = fn(&CrashingFs, &Path);
    let cases: [(&str, Break); 5] = [
        ("missing", |fs, path| fs.remove_file(path).expect("removes")),
        ("empty", |fs, path| fs.open(path, OpenMode::ReadWrite).and_then(|f| f.set_len(0)).expect("cuts")),
        ("flipped", |fs, path| fs.flip_bit(path, 60, 2)),
        ("of another segment", |fs, path| {
            fs.remove_file(path).expect("removes");
            fs.copy(&sparse(4096), path).expect("copies");
        }),
        ("a folder", |fs, path| {
            fs.remove_file(path).expect("removes");
            fs.create_dir_all(path).expect("creates");
        }),
    ];
    for (what, damage) in cases {
        let fs = fs.fork();
        damage(&fs, &sparse(0));
        let Open { log, report, .. } = reopen(&fs, ENTRIES - 1).expect("opens");
        assert_eq!(report.skipped, 0, "{what}: the log is read from the first segment without a file on");
        assert_eq!(read_all(&log).expect("reads"), all, "{what}");
        log.stop();
        drop(log);
        let Open { report, .. } = reopen(&fs.kill(), ENTRIES - 1).expect("opens");
        // Whether a folder of that name can be replaced is up to the file system; it does no harm.
        assert!(report.skipped > 0 || what == "a folder", "{what}");
    }
}

#[test]
fn the_file_of_what_a_truncation_took_away_is_not_believed() {
    let (fs, all) = filled();
    let rolled = all.iter().position(|e| e.offset.0 >= 4096).expect("it rolled") as u64;
    for kept in [rolled - 3, rolled - 1] {
        let fs = fs.fork();
        let Open { log, .. } = reopen(&fs, 0).expect("opens");
        let old = fs.fork();
        truncate(&log, Some(kept)).expect("truncates");
        append(&log, (kept + 1..ENTRIES).map(|at| entry(3, at, 0)).collect()).expect("appends");
        let now = read_all(&log).expect("reads");
        log.stop();
        drop(log);
        // The file that describes the segment as it was before comes back.
        let fs = fs.kill();
        let bytes = content(&old, &sparse(0));
        let file = fs.open(&sparse(0), OpenMode::Create).expect("opens");
        file.set_len(0).expect("cuts");
        file.write_at(&[std::io::IoSlice::new(&bytes)], 0).expect("writes");
        let last = Some(EntryId::new(3, ENTRIES - 1));
        let Open { log, report, .. } =
            open_with(Arc::new(fs.clone()), Path::new(GROUP), config(), last).expect("opens");
        let changed = now[kept as usize + 1].offset.0 < 4096;
        assert!(changed || kept == rolled - 1, "frames of the new leader are in the first segment");
        assert_eq!(report.skipped == 0, changed, "{kept}");
        assert_eq!(read_all(&log).expect("reads"), now);
    }
}

fn content(fs: &CrashingFs, path: &Path) -> Vec<u8> {
    let fs = fs.kill();
    let file = fs.open(path, OpenMode::Read).expect("is there");
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

#[test]
fn damage_at_the_ends_of_a_covered_segment_is_found_at_the_start_and_inside_when_it_is_read() {
    let (fs, all) = filled();
    let rolled = all.iter().position(|e| e.offset.0 >= 4096).expect("it rolled");
    for at in [0, rolled - 1, rolled] {
        let fs = fs.fork();
        fs.flip_bit(&segment(all[at].offset.0 / 4096 * 4096), all[at].offset.0 % 4096 + 33, 1);
        let refused = reopen(&fs, ENTRIES - 1).map(|_| ());
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "entry {at}: {refused:?}");
    }
    fs.flip_bit(&segment(0), all[2].offset.0 + 33, 1);
    let Open { log, .. } = reopen(&fs, ENTRIES - 1).expect("opens");
    let refused = log.read(LogIndex(2), LogIndex(3), 1).map(|_| ());
    assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    assert_eq!(log.damage().len(), 1);
}
