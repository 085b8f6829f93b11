//! Every file call fails once: the caller is told, nothing is tried again, and after a restart what was confirmed is there.

mod support;

use std::sync::Arc;

use mq_store::fs::{CrashingFs, Event, Failure, RecordingFs};
use mq_store::{EntryId, LogIndex, VoteRecord};
use support::model::{Issued, Model, Op};
use support::{entry, open};

/// A bit of everything: rolls, votes, a truncation over a roll, an overwrite, a purge.
fn script() -> Vec<Op> {
    let vote = |term| Op::Vote(VoteRecord { term, node: 2, committed: true });
    let some =
        |term, from: u64, count, len| Op::Append((from..from + count).map(|i| entry(term, i, len)).collect());
    vec![
        vote(1),
        some(1, 0, 3, 100),
        some(1, 3, 6, 900),
        vote(2),
        Op::Truncate(Some(2)),
        some(2, 3, 2, 20),
        some(2, 5, 4, 1500),
        Op::Purge(EntryId::new(1, 1)),
        vote(3),
        some(2, 9, 1, 10),
    ]
}

#[test]
fn each_failing_call_is_told_and_costs_nothing_that_was_confirmed() {
    let calls = {
        let fs = CrashingFs::new();
        fs.fail(Failure::Once(u64::MAX));
        run(&fs, None).expect("nothing fails");
        fs.calls()
    };
    assert!(calls > 40, "{calls} calls are too few for this script");
    for failure in (0..calls).flat_map(|call| [Failure::Once(call), Failure::LostSync(call)]) {
        let fs = CrashingFs::new();
        fs.fail(failure);
        let (certain, pending) = run(&fs, Some(failure)).unwrap_or_else(|why| panic!("{failure:?}: {why}"));
        for seed in 0..6 {
            let what = format!("{failure:?}, seed {seed}");
            let after = fs.fork().kill();
            let after = if seed == 0 { after } else { after.power_cut(seed) };
            let found = content(&after, &what);
            let outcomes = certain.outcomes(&pending);
            assert!(
                outcomes.contains(&found),
                "{what}: found {}\nconfirmed {}",
                found.short(),
                certain.short()
            );
            // Whatever was found counts as flushed from then on.
            assert_eq!(
                content(&after.power_cut(seed), &what).short(),
                found.short(),
                "{what}: power cut after it"
            );
        }
    }
}

fn content(fs: &CrashingFs, what: &str) -> Model {
    let open = open(Arc::new(fs.clone())).unwrap_or_else(|e| panic!("{what}: {e}"));
    Model::of(&open.log, &open.files).expect("reads")
}

/// Runs the script; what was confirmed and what was not.
fn run(fs: &CrashingFs, fails: Option<Failure>) -> Result<(Model, Vec<Op>), String> {
    let recording = RecordingFs::new(Arc::new(fs.clone()));
    let journal = recording.journal();
    let opened = match open(Arc::new(recording)) {
        Ok(opened) => opened,
        Err(why) if fails.is_some() && why.to_string().contains("made to fail") => {
            return Ok((Model::default(), Vec::new()));
        }
        Err(why) => return Err(why.to_string()),
    };
    let log = opened.log;
    let mut issued = Issued::default();
    for op in script() {
        issued.issue(&log, op);
        while !issued.settled() {
            std::thread::yield_now();
        }
    }
    let mark = log.watermark();
    log.stop();
    let failed = log.failed().is_some();
    let (confirmed, pending) = issued.outcome()?;
    tried_again(&journal.events())?;
    if failed {
        if fails.is_none() {
            return Err("it failed without a reason".into());
        }
        if mark.wait(LogIndex(1_000)).is_ok() {
            return Err("a waiter was told of entries that never came".into());
        }
    } else if !pending.is_empty() {
        return Err("calls failed, the log did not".into());
    }
    let mut certain = Model::default();
    for op in &confirmed {
        certain.apply(op);
    }
    Ok((certain, pending))
}

/// After a failed call of the log nothing is called any more; after one of the index files of sealed segments, which a thread
/// of their own writes, none of these.
fn tried_again(events: &[Event]) -> Result<(), String> {
    let of_index = |op: &mq_store::fs::Op| format!("{op:?}").contains("sparse");
    for (at, event) in events.iter().enumerate() {
        let Event::End(number, false) = event else { continue };
        let failed = events.iter().find_map(|event| match event {
            Event::Begin(begun, op) if begun == number => Some(op),
            _ => None,
        });
        let index = failed.is_some_and(of_index);
        let later = events[at..].iter().find_map(|event| match event {
            Event::Begin(_, op) if of_index(op) == index => Some(op),
            _ => None,
        });
        if let Some(later) = later {
            return Err(format!("{later:?} after the failed {failed:?}"));
        }
    }
    Ok(())
}
