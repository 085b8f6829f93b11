//! What members give each other of their logs, and what they do with it: runs of frames, summaries, staging, repair.

mod support;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mq_store::commit_log::{Covered, SegmentWriter, check_frames, repair};
use mq_store::fs::{CrashingFs, FileSystem};
use mq_store::{CommitLog, DamagedRange, EntryId, FrameRun, LogIndex, LogOffset, PlacedEntry, StoreError};
use support::{CHAIN_START, GROUP, Open, append, config, entry, open, open_with, read_all, segment, wait};

const ENTRIES: u64 = 60;

/// A log of several segments, written in batches of `batch` entries.
fn filled(fs: &CrashingFs, batch: u64) -> Open {
    let open = open(Arc::new(fs.clone())).expect("opens");
    for from in (0..ENTRIES).step_by(batch as usize) {
        let upto = (from + batch).min(ENTRIES);
        append(&open.log, (from..upto).map(|at| entry(1, at, 100 + at as usize)).collect()).expect("appends");
    }
    open
}

fn runs(log: &CommitLog, max_bytes: usize) -> Vec<FrameRun> {
    let mut all: Vec<FrameRun> = Vec::new();
    let mut from = log.physical_start();
    while from < log.end() {
        let run = log.read_frames(from, max_bytes).expect("reads");
        from = run.next;
        all.push(run);
    }
    all
}

fn purge(log: &CommitLog, id: EntryId) {
    wait(|done| {
        log.purge(id, done);
        Ok(())
    })
    .expect("purges");
}

#[test]
fn runs_and_digests_are_equal_on_replicas_that_wrote_in_other_batches() {
    let (one, other) = (filled(&CrashingFs::new(), 1), filled(&CrashingFs::new(), 7));
    let upto = LogIndex(ENTRIES - 1);
    let sums = one.log.segment_summaries(upto).expect("reads");
    assert_eq!(sums, other.log.segment_summaries(upto).expect("reads"));
    assert!(sums.len() > 2);
    assert_eq!(sums[0].prev_crc, CHAIN_START);
    for pair in sums.windows(2) {
        assert_eq!((pair[0].chain, pair[0].last.index.0 + 1), (pair[1].prev_crc, pair[1].first.index.0));
    }
    assert_eq!(sums.last().map(|s| (s.end, s.chain)), Some((one.log.end(), one.log.chain_at_end())));
    let part = one.log.segment_summaries(LogIndex(3)).expect("reads");
    assert_eq!((part.len(), part[0].last), (1, EntryId::new(1, 3)));
    for max in [1, 700, 1 << 20] {
        let (mine, theirs) = (runs(&one.log, max), runs(&other.log, max));
        assert_eq!(mine, theirs);
        let (mut chain, mut seen) = (CHAIN_START, Vec::new());
        for run in &mine {
            let frames = check_frames(&run.bytes, run.start, chain).expect("fits");
            chain = frames.last().expect("at least one").head_crc;
            seen.extend(frames);
        }
        assert_eq!(seen, read_all(&one.log).expect("reads"));
    }
    let end = one.log.end();
    assert!(matches!(one.log.read_frames(end, 1), Err(StoreError::Limit { .. })));
}

#[test]
fn any_flipped_bit_of_a_run_is_noticed() {
    let Open { log, .. } = filled(&CrashingFs::new(), 5);
    let run = log.read_frames(LogOffset(0), 400).expect("reads");
    // The node-local field says nothing about the content.
    let local = |at: usize| {
        check_frames(&run.bytes, run.start, CHAIN_START)
            .expect("whole")
            .iter()
            .any(|f| (28..32).contains(&(at - (f.offset.0 as usize).min(at))))
    };
    for at in (0..run.bytes.len()).filter(|at| !local(*at)) {
        let mut bytes = run.bytes.to_vec();
        bytes[at] ^= 4;
        let refused = check_frames(&Bytes::from(bytes), run.start, CHAIN_START);
        assert!(refused.is_err(), "byte {at}");
    }
}

#[test]
fn staged_segments_open_as_the_same_log_and_staging_goes_on_after_a_cut() {
    let Open { log, .. } = filled(&CrashingFs::new(), 3);
    let target = CrashingFs::new();
    let files = mq_store::GroupFiles::open(Arc::new(target.clone()), Path::new(GROUP)).expect("opens");
    drop(files);
    mq_store::fs::create_dir_durably(&target, &Path::new(GROUP).join("commitlog")).expect("creates");
    let sums = log.segment_summaries(LogIndex(ENTRIES - 1)).expect("reads");
    for sum in &sums {
        let path = segment(sum.base.0);
        let mut from = sum.base;
        for cut in [true, false] {
            let mut writer = SegmentWriter::open(&target, &path, sum.base, sum.prev_crc).expect("opens");
            assert_eq!(writer.end(), from);
            while from < sum.end {
                let run = log.read_frames(from, 600).expect("reads");
                writer.write(&run.bytes).expect("writes");
                from = run.next;
                if cut {
                    break;
                }
            }
            writer.sync().expect("syncs");
            if !cut {
                assert_eq!(
                    (writer.end(), writer.chain(), writer.last()),
                    (sum.end, sum.chain, Some(sum.last))
                );
            }
        }
        let mut writer = SegmentWriter::open(&target, &path, sum.base, sum.prev_crc).expect("opens");
        let stray = log.read_frames(LogOffset(0), 600).expect("reads");
        assert!(writer.write(&stray.bytes).is_err(), "frames of another place");
    }
    let again = open(Arc::new(target.kill())).expect("opens");
    assert_eq!(read_all(&again.log).expect("reads"), read_all(&log).expect("reads"));
}

/// Opens with a checkpoint at the newest entry, so that bodies are looked at only when they are read.
fn open_covered(fs: &CrashingFs) -> Result<Open, StoreError> {
    open_with(Arc::new(fs.clone()), Path::new(GROUP), config(), Some(EntryId::new(1, ENTRIES - 1)))
}

fn donor_bytes(log: &CommitLog, range: &DamagedRange) -> Bytes {
    let mut bytes = Vec::new();
    let mut from = range.offset;
    while from < range.end() {
        let run = log.read_frames(from, 1).expect("reads");
        if run.start >= range.end() {
            break;
        }
        bytes.extend_from_slice(&run.bytes);
        from = run.next;
    }
    Bytes::from(bytes)
}

#[test]
fn a_read_notes_damage_durably_and_tells_and_frames_of_a_peer_repair_it_while_open() {
    let donor = filled(&CrashingFs::new(), 1).log;
    let fs = CrashingFs::new();
    filled(&fs, 3).log.stop();
    let all = read_all(&donor).expect("reads");
    fs.flip_bit(&segment(0), all[2].offset.0 + 90, 1);
    let Open { log, files, .. } = open_covered(&fs.kill()).expect("opens");
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    log.on_damage(Box::new(move |range| tell.lock().push(*range)));
    for _ in 0..2 {
        let refused = log.read(LogIndex(2), LogIndex(3), 1).map(|_| ());
        assert!(
            matches!(refused, Err(StoreError::Damaged { from, to, .. }) if (from, to) == (all[2].offset, all[3].offset)),
            "{refused:?}"
        );
    }
    assert!(log.read_frames(all[2].offset, 1).is_err() && log.segment_summaries(LogIndex(5)).is_err());
    let noted = log.damage();
    assert_eq!((noted.len(), told.lock().clone()), (1, noted.clone()));
    assert_eq!(files.meta().expect("has one").damage, noted);
    let good = donor_bytes(&donor, &noted[0]);
    let mut bad = good.to_vec();
    bad[80] ^= 1;
    let wrong = [
        Bytes::from(bad),
        Bytes::new(),
        donor_bytes(&donor, &DamagedRange { offset: LogOffset(0), ..noted[0] }),
    ];
    for bytes in wrong {
        repair(&files, &noted[0], &bytes).expect_err("does not fit");
    }
    repair(&files, &noted[0], &good).expect("fits");
    assert!(log.damage().is_empty());
    assert_eq!(read_all(&log).expect("reads"), all);
    drop((log, files));
    let again = open(Arc::new(fs.kill().power_cut(7))).expect("opens");
    assert_eq!(read_all(&again.log).expect("reads"), all);
}

#[test]
fn damage_that_recovery_finds_is_repaired_before_the_log_opens() {
    let donor = filled(&CrashingFs::new(), 1).log;
    let all = read_all(&donor).expect("reads");
    let rolled = all.iter().position(|e| e.offset.0 >= 4096).expect("it rolled");
    type Break = Box<dyn Fn(&CrashingFs)>;
    let flip = |at: usize, byte: u64| -> Break {
        let offset = all[at].offset.0;
        Box::new(move |fs| fs.flip_bit(&segment(offset / 4096 * 4096), offset % 4096 + byte, 2))
    };
    let cases: Vec<(&str, Break)> = vec![
        ("a body", flip(4, 80)),
        ("a header", flip(4, 20)),
        ("the first frame of all", flip(0, 9)),
        ("the last frame of a segment", flip(rolled - 1, 30)),
        ("the first frame of a segment", flip(rolled, 75)),
        ("a missing segment", Box::new(|fs| fs.remove_file(&segment(4096)).expect("removes"))),
        ("the oldest segment missing", Box::new(|fs| fs.remove_file(&segment(0)).expect("removes"))),
    ];
    for (what, damage) in cases {
        let fs = CrashingFs::new();
        filled(&fs, 1).log.stop();
        damage(&fs);
        let fs = fs.kill();
        let Err(StoreError::Damaged { from, to, chain_before, chain_after, .. }) =
            open(Arc::new(fs.clone())).map(|_| ())
        else {
            panic!("{what}: not noticed");
        };
        let range = DamagedRange { offset: from, len: to.0 - from.0, chain_before, chain_after };
        let files = mq_store::GroupFiles::open(Arc::new(fs.clone()), Path::new(GROUP)).expect("opens");
        repair(&files, &range, &donor_bytes(&donor, &range)).unwrap_or_else(|e| panic!("{what}: {e}"));
        drop(files);
        let again = open(Arc::new(fs.kill().power_cut(3))).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(read_all(&again.log).expect("reads"), all, "{what}");
    }
}

#[test]
fn the_oldest_segments_go_only_below_the_purged_mark_and_stay_away() {
    let fs = CrashingFs::new();
    let Open { log, .. } = filled(&fs, 4);
    let all = read_all(&log).expect("reads");
    log.drop_below(log.end()).expect("nothing is purged");
    assert_eq!(log.physical_start(), LogOffset(0));
    let purged = all.iter().rposition(|e| e.offset.0 < 9000).expect("far enough");
    purge(&log, all[purged].entry.id());
    log.drop_below(LogOffset(5000)).expect("drops");
    assert_eq!(log.physical_start(), LogOffset(4096));
    log.drop_below(log.end()).expect("drops");
    assert_eq!(log.physical_start(), LogOffset(8192));
    assert!(!fs.exists(&segment(4096)).expect("looks") && fs.exists(&segment(8192)).expect("looks"));
    let refused = log.read_item(LogOffset(72 + 16)).map(|_| ());
    assert!(matches!(refused, Err(StoreError::Limit { .. })), "{refused:?}");
    assert_eq!(read_all(&log).expect("reads"), all[purged + 1..]);
    append(&log, vec![entry(2, ENTRIES, 50)]).expect("goes on");
    log.stop();
    let again = open(Arc::new(fs.kill().power_cut(5))).expect("opens");
    assert_eq!(again.log.physical_start(), LogOffset(8192));
    assert_eq!(read_all(&again.log).expect("reads")[..all.len() - purged - 1], all[purged + 1..]);
    assert_eq!(again.log.last(), Some(EntryId::new(2, ENTRIES)));
    let sums = again.log.segment_summaries(LogIndex(ENTRIES)).expect("reads");
    assert_eq!(sums[0].base, LogOffset(8192));
}

#[test]
fn a_crash_at_any_call_of_a_drop_leaves_the_log_whole() {
    for (at, seed) in (0..12).flat_map(|at| (0..4).map(move |seed| (at, seed))) {
        let fs = CrashingFs::new();
        let Open { log, .. } = filled(&fs, 4);
        let all = read_all(&log).expect("reads");
        purge(&log, all[40].entry.id());
        fs.fail(mq_store::fs::Failure::ForEver(at));
        let dropped = log.drop_below(log.end());
        log.stop();
        drop(log);
        let again = open(Arc::new(fs.power_cut(seed))).unwrap_or_else(|e| panic!("call {at}: {e}"));
        assert_eq!(read_all(&again.log).expect("reads"), all[41..], "call {at}");
        if dropped.is_ok() {
            assert!(again.log.physical_start() > LogOffset(0), "call {at}");
        }
    }
}

/// Makes a log like the donor's, breaks its newest records by `damage` (which gets the last segment's path and where in it
/// the entry lies that is `back` before the end).
fn broken(all: &[PlacedEntry], back: usize, damage: impl Fn(&dyn mq_store::fs::File, u64)) -> CrashingFs {
    let fs = CrashingFs::new();
    filled(&fs, 1).log.stop();
    let fs = fs.kill();
    let at = all[all.len() - 1 - back].offset.0;
    let path = segment(at / 4096 * 4096);
    let file = fs.open(&path, mq_store::fs::OpenMode::ReadWrite).expect("opens");
    damage(file.as_ref(), at % 4096);
    fs
}

/// RB-29: a record of which a part is gone is cut when nothing covers it, and fetched again when a checkpoint does; it is never
/// served in part. RB-28, of the log: everything confirmed is there after it.
#[test]
fn the_newest_record_without_its_last_bytes_is_cut_or_fetched_again_and_never_served() {
    let donor = filled(&CrashingFs::new(), 1).log;
    let all = read_all(&donor).expect("reads");
    let newest = all.last().expect("has entries");
    let len = 72 + newest.entry.body.len() as u64;
    let fs = broken(&all, 0, |file, at| {
        file.write_at(&[std::io::IoSlice::new(&[0; 16])], at + len - 16).expect("writes");
    });
    let cut = open(Arc::new(fs.fork())).expect("cuts");
    assert_eq!(read_all(&cut.log).expect("reads"), all[..all.len() - 1]);
    let Open { log, files, .. } = open_covered(&fs).expect("bodies are checked when they are read");
    let index = newest.entry.index;
    let refused = log.read(index, LogIndex(index.0 + 1), 1).map(|_| ());
    assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    for range in log.damage() {
        repair(&files, &range, &donor_bytes(&donor, &range)).expect("fits");
    }
    assert_eq!(read_all(&log).expect("reads"), all);
}

#[test]
fn a_log_cut_below_its_checkpoint_is_filled_up_to_where_the_checkpoint_says_it_ends() {
    let donor = filled(&CrashingFs::new(), 1).log;
    let all = read_all(&donor).expect("reads");
    let end = (donor.end(), donor.chain_at_end());
    let covered = Some(Covered { last: EntryId::new(1, ENTRIES - 1), end: Some(end) });
    let last = all.last().expect("has entries").offset.0;
    let inside = all.iter().filter(|e| e.offset.0 / 4096 == last / 4096).count();
    for back in 0..inside {
        for byte in [0, 40, 72] {
            let fs = broken(&all, back, |file, at| file.set_len(at + byte).expect("cuts"));
            let open = || {
                let files =
                    mq_store::GroupFiles::open(Arc::new(fs.clone()), Path::new(GROUP)).expect("opens");
                let files = Arc::new(files);
                (Arc::clone(&files), CommitLog::open_covered(files, config(), covered))
            };
            let (files, refused) = open();
            let Err(StoreError::Damaged { from, to, chain_before, chain_after, .. }) = refused else {
                panic!("{back} {byte}: {refused:?}");
            };
            assert_eq!((to, chain_after), end);
            let range = DamagedRange { offset: from, len: to.0 - from.0, chain_before, chain_after };
            repair(&files, &range, &donor_bytes(&donor, &range)).expect("fits");
            let (_, opened) = open();
            assert_eq!(read_all(&opened.expect("opens").0).expect("reads"), all, "{back} {byte}");
        }
    }
}
