//! What is told comes after what makes it durable: read from a journal of all file calls.

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use mq_store::fs::{CrashingFs, Event, FileSystem, Journal, Op, RecordingFs};
use mq_store::{CommitLog, FlushCallback, LogIndex, VoteRecord};
use support::{GROUP, Open, append, entry, open, segment, truncate};

/// A finished call: begin and end as places in the journal.
#[derive(Debug)]
struct Call {
    op: Op,
    begin: usize,
    end: usize,
}

struct Calls {
    calls: Vec<Call>,
    events: Vec<Event>,
}

impl Calls {
    fn of(journal: &Journal) -> Self {
        let events = journal.events();
        let calls = events
            .iter()
            .enumerate()
            .filter_map(|(begin, event)| {
                let Event::Begin(number, op) = event else { return None };
                let end = events.iter().position(|e| *e == Event::End(*number, true))?;
                Some(Call { op: op.clone(), begin, end })
            })
            .collect();
        Self { calls, events }
    }

    fn mark(&self, what: &str) -> usize {
        let at = self.events.iter().position(|e| *e == Event::Mark(what.into()));
        at.unwrap_or_else(|| panic!("no mark {what}"))
    }

    /// True if a call of `op` lies wholly between the two places.
    fn between(&self, op: &Op, from: usize, to: usize) -> bool {
        self.calls.iter().any(|c| c.op == *op && c.begin > from && c.end < to)
    }

    /// The last write into `path` that covers `[offset, offset + len)` and ended before `to`.
    fn write(&self, path: &Path, offset: u64, len: u64, to: usize) -> Option<&Call> {
        self.calls.iter().rev().find(|c| {
            let Op::Write { path: written, offset: at, len: count } = &c.op else { return false };
            c.end < to && written == path && *at <= offset && offset + len <= at + count
        })
    }

    /// The rule of everything that is told: written, then synced by a sync that began after the write ended, then told.
    fn durable(&self, path: &Path, offset: u64, len: u64, told: usize) -> Result<(), String> {
        let what = format!("{} [{offset}, +{len})", path.display());
        let write =
            self.write(path, offset, len, told).ok_or(format!("{what}: told before it was written"))?;
        if self.between(&Op::Sync(path.into()), write.end, told) {
            return Ok(());
        }
        Err(format!("{what}: told without a sync after the write"))
    }
}

fn recorded() -> (Open, Journal) {
    let fs = RecordingFs::new(Arc::new(CrashingFs::new()));
    let journal = fs.journal();
    (open(Arc::new(fs)).expect("opens"), journal)
}

fn told(journal: &Journal, what: String) -> FlushCallback {
    let journal = journal.clone();
    Box::new(move |result| {
        result.expect("nothing fails here");
        journal.mark(what);
    })
}

/// Appends many entries from two threads' worth of calls, and checks each one's callback.
fn appends(log: &CommitLog, journal: &Journal) -> Result<(), String> {
    for index in 0..60 {
        let some = vec![entry(1, 2 * index, 200), entry(1, 2 * index + 1, 30)];
        log.append(some, told(journal, format!("append {index}"))).expect("appends");
        if index % 7 == 0 {
            log.watermark().wait(LogIndex(2 * index + 1)).expect("is flushed");
        }
    }
    log.stop();
    let calls = Calls::of(journal);
    for placed in support::read_all(log).expect("reads") {
        let base = placed.offset.0 / 4096 * 4096;
        let at = calls.mark(&format!("append {}", placed.entry.index.0 / 2));
        let len = 72 + placed.entry.body.len() as u64;
        calls.durable(&segment(base), placed.offset.0 - base, len, at)?;
    }
    Ok(())
}

#[test]
fn an_append_is_told_after_a_sync_that_began_after_its_write() {
    let (Open { log, .. }, journal) = recorded();
    appends(&log, &journal).expect("each is durable when it is told");
}

#[test]
fn the_bug_of_telling_before_the_sync_is_found() {
    let (Open { log, .. }, journal) = recorded();
    log.inject_report_before_sync();
    let found = appends(&log, &journal);
    assert!(found.as_ref().is_err_and(|why| why.contains("told without a sync")), "{found:?}");
}

#[test]
fn a_segment_exists_durably_before_its_first_frame_and_the_one_before_is_synced() {
    let (Open { log, .. }, journal) = recorded();
    append(&log, (0..40).map(|i| entry(1, i, 300)).collect()).expect("appends");
    log.stop();
    let calls = Calls::of(&journal);
    let folder: PathBuf = Path::new(GROUP).join("commitlog");
    let mut checked = 0;
    for (base, before) in [(0, None), (4096, Some(0)), (8192, Some(4096))] {
        let path = segment(base);
        let is_write = |c: &&Call, p: &Path| matches!(&c.op, Op::Write { path, .. } if path == p);
        let first = calls.calls.iter().find(|c| is_write(c, &path)).expect("it was written").begin;
        let created =
            calls.calls.iter().find(|c| c.op == Op::Create(path.clone())).expect("it was created").end;
        assert!(calls.between(&Op::Sync(path.clone()), created, first), "file of {base}");
        assert!(calls.between(&Op::SyncDir(folder.clone()), created, first), "folder of {base}");
        if let Some(before) = before {
            let path = segment(before);
            let last = calls.calls.iter().rev().find(|c| is_write(c, &path)).expect("it was written").end;
            assert!(calls.between(&Op::Sync(path), last, first), "{before} is synced before {base} begins");
        }
        checked += 1;
    }
    assert_eq!(checked, 3);
}

/// Holds the writer in the callback of the first append until it is told to go on.
fn hold_the_writer(log: &CommitLog) -> mpsc::Sender<()> {
    let (go_on, held) = mpsc::channel::<()>();
    let (there, is_there) = mpsc::channel();
    let first = Box::new(move |_| {
        there.send(()).expect("the test listens");
        let _ = held.recv();
    });
    log.append(vec![entry(1, 0, 8)], first).expect("appends");
    is_there.recv().expect("the writer comes");
    go_on
}

#[test]
fn what_is_queued_meanwhile_is_readable_and_goes_to_the_disk_together() {
    let (Open { log, .. }, journal) = recorded();
    let go_on = hold_the_writer(&log);
    journal.mark("held");
    for index in 1..=20 {
        log.append(vec![entry(1, index, 100)], told(&journal, format!("{index}"))).expect("appends");
    }
    assert_eq!(log.unflushed_bytes(), 20 * 176);
    assert!(log.oldest_unflushed().is_some());
    assert_eq!(log.watermark().flushed().map(|id| id.index), Some(LogIndex(0)));
    // Far more than the ring's limit, but none of it is on the disk yet.
    let all = support::read_all(&log).expect("reads");
    assert_eq!(all.len(), 21);
    journal.mark("going on");
    go_on.send(()).expect("the writer waits");
    log.watermark().wait(LogIndex(20)).expect("is flushed");
    log.stop();
    assert_eq!((log.unflushed_bytes(), log.oldest_unflushed()), (0, None));
    let calls = Calls::of(&journal);
    let (from, to) = (calls.mark("held"), calls.mark("20"));
    let inside: Vec<&Op> =
        calls.calls.iter().filter(|c| c.begin > from && c.end < to).map(|c| &c.op).collect();
    let write = Op::Write { path: segment(0), offset: all[1].offset.0, len: 20 * 176 };
    assert_eq!(inside, [&write, &Op::Sync(segment(0))], "one write and one sync for 20 appends");
    assert_eq!(support::read_all(&log).expect("reads"), all);
}

#[test]
fn no_write_spans_two_segments_or_exceeds_the_batch_limit() {
    let (Open { log, .. }, journal) = recorded();
    append(&log, (0..100).map(|i| entry(1, i, 250)).collect()).expect("appends");
    log.stop();
    for call in Calls::of(&journal).calls {
        if let Op::Write { path, offset, len } = call.op
            && path.starts_with(Path::new(GROUP).join("commitlog"))
        {
            assert!(offset + len <= 4096, "{}: [{offset}, +{len})", path.display());
        }
    }
}

#[test]
fn a_vote_is_told_when_slot_a_is_synced_and_slot_b_is_synced_before_the_next_change() {
    let (Open { log, .. }, journal) = recorded();
    for term in 1..4 {
        let vote = VoteRecord { term, node: 1, committed: false };
        log.save_vote(vote, told(&journal, format!("vote {term}")));
    }
    append(&log, vec![entry(3, 0, 10)]).expect("appends");
    log.stop();
    let calls = Calls::of(&journal);
    let path = Path::new(GROUP).join("raft").join("vote");
    let writes: Vec<&Call> = calls
        .calls
        .iter()
        .filter(|c| matches!(&c.op, Op::Write { path: p, len: 4096, .. } if *p == path))
        .collect();
    assert_eq!(writes.len(), 6, "two slots for each of three votes");
    let first_frame = calls
        .calls
        .iter()
        .find(|c| matches!(&c.op, Op::Write { path, .. } if *path == segment(0)))
        .expect("the entry was written");
    for (at, term) in (1..4).enumerate() {
        let (a, b) = (writes[2 * at], writes[2 * at + 1]);
        assert!(
            matches!(a.op, Op::Write { offset: 0, .. }) && matches!(b.op, Op::Write { offset: 4096, .. })
        );
        let mark = calls.mark(&format!("vote {term}"));
        assert!(
            calls.between(&Op::Sync(path.clone()), a.end, mark),
            "vote {term} is told before slot A is synced"
        );
        assert!(calls.between(&Op::Sync(path.clone()), a.end, b.begin));
        let next = writes.get(2 * at + 2).map_or(first_frame.begin, |c| c.begin);
        assert!(calls.between(&Op::Sync(path.clone()), b.end, next), "slot B of vote {term}");
    }
    assert!(first_frame.begin > calls.mark("vote 3"), "an entry of a term comes after its vote");
}

#[test]
fn a_truncation_is_told_after_intent_unlink_zeros_and_clearing_are_durable() {
    let (Open { log, .. }, journal) = recorded();
    append(&log, (0..40).map(|i| entry(1, i, 300)).collect()).expect("appends");
    journal.mark("before");
    truncate(&log, Some(5)).expect("truncates");
    journal.mark("truncated");
    log.stop();
    let calls = Calls::of(&journal);
    let (from, to) = (calls.mark("before"), calls.mark("truncated"));
    let inside: Vec<&Call> = calls.calls.iter().filter(|c| c.begin > from && c.end < to).collect();
    let meta = Path::new(GROUP).join("raft").join("meta");
    let folder = Path::new(GROUP).join("commitlog");
    let of = |op: fn(&Op) -> bool| inside.iter().filter(move |c| op(&c.op)).copied().collect::<Vec<_>>();
    let removed = of(|op| matches!(op, Op::Remove(_)));
    assert!(removed.len() >= 3);
    assert!(
        removed.windows(2).all(|pair| match (&pair[0].op, &pair[1].op) {
            (Op::Remove(a), Op::Remove(b)) => a > b,
            _ => false,
        }),
        "the newest goes first"
    );
    let zeroed: Vec<&&Call> =
        inside.iter().filter(|c| matches!(&c.op, Op::Write { path, .. } if *path == segment(0))).collect();
    let notes: Vec<&&Call> =
        inside.iter().filter(|c| matches!(&c.op, Op::Write { path, .. } if *path == meta)).collect();
    assert_eq!((zeroed.len(), notes.len()), (1, 4), "both slots for the intent, both for clearing it");
    let sync = Op::Sync(meta.clone());
    assert!(
        calls.between(&sync, notes[1].end, removed[0].begin),
        "the intent is durable in both slots first"
    );
    let last_removed = removed[removed.len() - 1].end;
    assert!(calls.between(&Op::SyncDir(folder), last_removed, zeroed[0].begin));
    assert!(
        calls.between(&Op::Sync(segment(0)), zeroed[0].end, notes[2].begin),
        "zeros are synced before it is cleared"
    );
    assert!(calls.between(&sync, notes[3].end, to), "told when it is cleared in both slots");
}

#[test]
fn what_recovery_accepted_is_synced_before_the_log_is_used() {
    let disk = CrashingFs::new();
    let Open { log, .. } = open(Arc::new(disk.clone())).expect("opens");
    append(&log, (0..40).map(|i| entry(1, i, 300)).collect()).expect("appends");
    log.stop();
    let fs = RecordingFs::new(Arc::new(disk.kill()));
    let journal = fs.journal();
    let Open { log, .. } = open(Arc::new(fs.clone())).expect("opens");
    journal.mark("open");
    let calls = Calls::of(&journal);
    let open = calls.mark("open");
    let raft = Path::new(GROUP).join("raft");
    let folder = Path::new(GROUP).join("commitlog");
    let segments = fs.read_dir(&folder).expect("lists");
    assert!(segments.len() > 3);
    for path in segments.iter().map(|name| folder.join(name)).chain([raft.join("vote"), raft.join("meta")]) {
        assert!(calls.between(&Op::Sync(path.clone()), 0, open), "{}", path.display());
    }
    for dir in [folder, raft, Path::new(GROUP).to_path_buf(), Path::new("/data").to_path_buf()] {
        assert!(
            calls.calls.iter().any(|c| c.op == Op::SyncDir(dir.clone()) && c.end < open),
            "{}",
            dir.display()
        );
    }
    drop(log);
}
