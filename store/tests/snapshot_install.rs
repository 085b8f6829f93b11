//! A snapshot is installed whole or not at all, wherever the power goes.

mod support;

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mq_store::fs::{CrashingFs, Failure, FileSystem, OpenMode};
use mq_store::snapshot::{Install, finish_install, install};
use mq_store::{EntryId, GroupFiles, LogOffset, StoreError};
use support::{GROUP, Open, append, config, entry, open, open_with, read_all};

const SOURCE: &str = "/data/source";
const OWN: u64 = 10;
const SHIPPED: u64 = 60;
/// S; what is above it is the log's tail.
const SNAPSHOT: u64 = 40;

fn put(fs: &CrashingFs, path: &Path, bytes: &[u8]) {
    let dir = path.parent().expect("in a folder");
    mq_store::fs::create_dir_durably(fs, dir).expect("creates");
    let file = fs.open(path, OpenMode::CreateNew).expect("creates");
    file.write_at(&[IoSlice::new(bytes)], 0).expect("writes");
    file.sync_all().expect("syncs");
    fs.sync_dir(dir).expect("syncs");
}

fn content(fs: &CrashingFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

fn group(name: &str) -> PathBuf {
    Path::new(GROUP).join(name)
}

/// A group with a log of its own and, staged beside it, all but the first segment of another node's longer one.
fn staged() -> (CrashingFs, Install) {
    let fs = CrashingFs::new();
    let Open { log, .. } = open(Arc::new(fs.clone())).expect("opens");
    append(&log, (0..OWN).map(|at| entry(1, at, 104)).collect()).expect("appends");
    log.stop();
    let source = open_with(Arc::new(fs.clone()), Path::new(SOURCE), config(), None).expect("opens");
    append(&source.log, (0..SHIPPED).map(|at| entry(2, at, 104)).collect()).expect("appends");
    let all = read_all(&source.log).expect("reads");
    source.log.stop();
    let size = config().segment_size;
    let first = all.iter().position(|placed| placed.offset.0 >= size).expect("it has rolled");
    assert!(all[first].entry.index.0 < SNAPSHOT);
    for name in fs.read_dir(&Path::new(SOURCE).join("commitlog")).expect("lists").into_iter().skip(1) {
        let bytes = content(&fs, &Path::new(SOURCE).join("commitlog").join(&name));
        put(&fs, &group("commitlog.new").join(&name), &bytes);
    }
    for name in ["consumequeue", "state"] {
        put(&fs, &group(name).join("marker"), b"own");
        put(&fs, &group(&format!("{name}.new")).join("marker"), b"shipped");
    }
    let chain_start = all[first - 1].head_crc;
    let install =
        Install { snapshot: EntryId::new(2, SNAPSHOT), physical_start: LogOffset(size), chain_start };
    (fs, install)
}

/// Opens the group as a start does; true: with the snapshot. It is never half of it, and it goes on.
fn installed(fs: &CrashingFs, what: &str) -> bool {
    let files = GroupFiles::open(Arc::new(fs.clone()), Path::new(GROUP)).expect("opens");
    finish_install(&files).unwrap_or_else(|e| panic!("{what}: {e}"));
    let marker = content(fs, &group("state").join("marker"));
    assert_eq!(content(fs, &group("consumequeue").join("marker")), marker, "{what}");
    drop(files);
    let Open { log, files, .. } = open(Arc::new(fs.clone())).unwrap_or_else(|e| panic!("{what}: {e}"));
    let shipped = marker == b"shipped";
    let (first, last) = if shipped {
        (EntryId::new(2, SNAPSHOT + 1), EntryId::new(2, SHIPPED - 1))
    } else {
        assert_eq!(marker, b"own", "{what}");
        (EntryId::new(1, 0), EntryId::new(1, OWN - 1))
    };
    assert_eq!((log.first(), log.last()), (Some(first), Some(last)), "{what}");
    assert_eq!(log.purged(), shipped.then_some(EntryId::new(2, SNAPSHOT)), "{what}");
    assert_eq!(read_all(&log).expect("reads").len() as u64, last.index.0 - first.index.0 + 1, "{what}");
    append(&log, vec![entry(3, last.index.0 + 1, 5)]).expect("goes on");
    log.stop();
    let meta = files.meta().expect("has one");
    assert_eq!(meta.intent, None, "{what}");
    for name in fs.read_dir(Path::new(GROUP)).expect("lists") {
        assert!(!name.ends_with(".old"), "{what}: {name} is left");
    }
    shipped
}

/// Installs with the calls from number `at` on failing; None: it ended before.
fn install_until(fs: &CrashingFs, staged: Install, at: u64) -> Option<Result<(), StoreError>> {
    let files = GroupFiles::open(Arc::new(fs.clone()), Path::new(GROUP)).expect("opens");
    fs.fail(Failure::ForEver(at));
    let result = install(&files, staged);
    (fs.calls() > at || result.is_err()).then_some(result)
}

#[test]
fn a_crash_at_every_step_of_an_install_leaves_the_old_or_the_new_group() {
    let (fs, staged) = staged();
    let (mut old, mut new) = (0, 0);
    for at in 0.. {
        let disk = fs.fork();
        let Some(result) = install_until(&disk, staged, at) else {
            assert!(installed(&disk.kill(), "no crash"), "it was reported");
            break;
        };
        assert!(at < 1_000 && result.is_err());
        for seed in 0..8 {
            let what = format!("call {at}, seed {seed}");
            if installed(&disk.fork().power_cut(seed), &what) { new += 1 } else { old += 1 }
        }
        installed(&disk.fork().kill(), &format!("call {at}, killed"));
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

#[test]
fn a_crash_inside_the_roll_forward_is_rolled_forward_again() {
    let (fs, staged) = staged();
    let mut cases = 0;
    for at in 0.. {
        let disk = fs.fork();
        if install_until(&disk, staged, at).is_none() {
            break;
        }
        for again in 0.. {
            let disk = disk.fork().power_cut(at * 31 + again);
            let files = GroupFiles::open(Arc::new(disk.clone()), Path::new(GROUP)).expect("opens");
            let begun = files.meta().is_some_and(|meta| meta.intent.is_some());
            disk.fail(Failure::ForEver(again));
            let over = finish_install(&files).is_ok();
            drop(files);
            let what = format!("call {at}, then call {again}");
            let shipped = installed(&disk.fork().power_cut(again), &what);
            assert!(shipped || !begun, "{what}: it had begun");
            cases += 1;
            if over {
                break;
            }
        }
    }
    assert!(cases > 100, "{cases} cases");
}

#[test]
fn what_cannot_be_installed_is_refused_and_changes_nothing() {
    let (fs, staged) = staged();
    let files = |fs: &CrashingFs| GroupFiles::open(Arc::new(fs.clone()), Path::new(GROUP)).expect("opens");
    for missing in ["commitlog.new", "consumequeue.new", "state.new"] {
        let disk = fs.fork();
        disk.remove_dir_all(&group(missing)).expect("removes");
        let error = install(&files(&disk), staged).expect_err("a part is missing");
        assert!(error.to_string().contains(missing), "{error}");
        assert!(!installed(&disk.kill(), missing));
    }
    let disk = fs.fork();
    let uneven = Install { physical_start: LogOffset(8), ..staged };
    install(&files(&disk), uneven).expect_err("no segment begins there");
    assert!(!installed(&disk.kill(), "uneven"));
    install(&files(&fs), staged).expect("installs");
    for name in ["commitlog.new", "consumequeue.new", "state.new"] {
        put(&fs, &group(name).join("marker"), b"older");
    }
    let older = Install { snapshot: EntryId::new(2, SNAPSHOT - 1), ..staged };
    install(&files(&fs), older).expect_err("older than what is here");
    assert!(installed(&fs.kill(), "older"));
}
