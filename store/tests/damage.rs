//! One flipped bit anywhere, and files cut anywhere: the log opens with everything that it held but what a torn tail may
//! take, or it does not open and names the file. What a read returns is right, or the read fails.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mq_store::fs::{CrashingFs, OpenMode};
use mq_store::{EntryId, FileSystem, LogIndex, StoreError, VoteRecord};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::model::Model;
use support::{GROUP, Open, Seed, append, config, entry, open, open_with, seeds, truncate, wait};

/// A log that was used, and what it held.
struct Used {
    fs: CrashingFs,
    held: Model,
    /// Entries before the last write batch.
    safe: usize,
}

/// Rolls, votes, and overwrites with shorter entries of lower and higher terms; every append is a write batch of its own.
fn used(dice: &mut StdRng) -> Used {
    let fs = CrashingFs::new();
    let Open { log, files, .. } = open(Arc::new(fs.clone())).expect("opens empty");
    let mut safe = 0;
    for round in 1..5_u64 {
        wait(|done| {
            log.save_vote(VoteRecord { term: round, node: 1, committed: true }, done);
            Ok(())
        })
        .expect("votes");
        for _ in 0..dice.random_range(2..6) {
            let next = log.last().map_or(0, |last| last.index.0 + 1);
            let term = log.last().map_or(1, |last| last.term.0.max(round));
            safe = usize::try_from(next).expect("few");
            let len = dice.random_range(1..1_500);
            append(&log, (0..dice.random_range(1..4)).map(|at| entry(term, next + at, len)).collect())
                .expect("appends");
        }
        if round < 4 && dice.random() {
            let last = log.last().expect("not empty").index.0;
            truncate(&log, Some(dice.random_range(last / 2..=last))).expect("truncates");
        }
    }
    let held = Model::of(&log, &files).expect("reads");
    log.stop();
    Used { fs: fs.kill(), held, safe }
}

/// Every file below `dir` with its length.
fn files(fs: &dyn FileSystem, dir: &Path, found: &mut Vec<(PathBuf, u64)>) {
    for name in fs.read_dir(dir).expect("a folder") {
        let path = dir.join(name);
        match fs.len(&path) {
            Ok(len) => found.push((path, len)),
            Err(_) => files(fs, &path, found),
        }
    }
}

fn all_files(fs: &CrashingFs) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    files(fs, Path::new(GROUP), &mut found);
    found.retain(|(_, len)| *len > 0);
    found
}

fn checkpoint(used: &Used, dice: &mut StdRng) -> Option<EntryId> {
    dice.random_bool(0.5).then(|| used.held.entries[dice.random_range(0..used.safe)].0)
}

/// A refusal has to name a file or folder of the group.
fn names_a_file(why: &StoreError) {
    assert!(why.to_string().contains(GROUP), "no file is named: {why}");
}

/// What is read is right or an error; how many entries the log holds.
fn compare(open: &Open, used: &Used, what: &str) -> usize {
    let last = open.log.last().map_or(0, |last| last.index.0 + 1);
    for index in 0..last {
        match open.log.read(LogIndex(index), LogIndex(index + 1), 1) {
            Ok(read) => {
                let (id, body) = &used.held.entries[usize::try_from(index).expect("few")];
                assert_eq!((&read[0].entry.id(), &read[0].entry.body), (id, body), "{what}: entry {index}");
            }
            Err(why) => names_a_file(&why),
        }
    }
    assert_eq!(open.files.vote(), used.held.vote, "{what}: the vote");
    usize::try_from(last).expect("few")
}

/// RB-28, RB-29 (the log's part).
#[test]
fn a_flipped_bit_anywhere_is_a_refusal_or_costs_at_most_the_last_batch() {
    let (mut refused, mut whole) = (0, 0);
    for seed in seeds(60) {
        let _seed = Seed(seed, "--test damage");
        let mut dice = StdRng::seed_from_u64(seed);
        let used = used(&mut dice);
        let all = all_files(&used.fs);
        for _ in 0..50 {
            let (path, len) = &all[dice.random_range(0..all.len())];
            let (byte, bit) = (dice.random_range(0..*len), dice.random_range(0..8));
            let what = format!("bit {bit} of byte {byte} of {}", path.display());
            let fs = used.fs.fork();
            fs.flip_bit(path, byte, bit);
            let checkpointed = checkpoint(&used, &mut dice);
            match open_with(Arc::new(fs), Path::new(GROUP), config(), checkpointed) {
                Ok(open) => {
                    let held = compare(&open, &used, &what);
                    assert!(
                        held >= used.safe,
                        "{what}: {held} entries left, {} were synced before the last batch",
                        used.safe
                    );
                    whole += 1;
                }
                Err(why) => {
                    names_a_file(&why);
                    refused += 1;
                }
            }
        }
    }
    assert!(
        seeds(60).len() == 1 || (refused > 200 && whole > 200),
        "{refused} refused, {whole} opened: one-sided"
    );
}

/// A file that is cut is an older copy of itself: never below a checkpoint, never with anything else in it.
#[test]
fn a_cut_file_is_a_refusal_or_a_younger_prefix() {
    let mut refused = 0;
    for seed in seeds(60) {
        let _seed = Seed(seed, "--test damage");
        let mut dice = StdRng::seed_from_u64(seed);
        let used = used(&mut dice);
        let mut all = all_files(&used.fs);
        all.retain(|(path, _)| path.starts_with(Path::new(GROUP).join("commitlog")));
        for _ in 0..30 {
            let (path, len) = &all[dice.random_range(0..all.len())];
            let cut = dice.random_range(0..*len);
            let what = format!("{} cut to {cut} bytes", path.display());
            let fs = used.fs.fork();
            fs.open(path, OpenMode::ReadWrite).and_then(|file| file.set_len(cut)).expect("cut");
            let checkpointed = checkpoint(&used, &mut dice);
            match open_with(Arc::new(fs), Path::new(GROUP), config(), checkpointed) {
                Ok(open) => {
                    let held = compare(&open, &used, &what) as u64;
                    let covered = checkpointed.map_or(0, |c| c.index.0 + 1);
                    assert!(held >= covered, "{what}: {held} entries left of {covered} in a checkpoint");
                }
                Err(why) => {
                    names_a_file(&why);
                    refused += 1;
                }
            }
        }
    }
    assert!(seeds(60).len() == 1 || refused > 100, "only {refused} refused");
}
