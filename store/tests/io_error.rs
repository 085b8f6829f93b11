//! Every file call fails once: the caller is told, nothing is tried again, and after a restart what was confirmed is there.

mod support;

use std::sync::Arc;

use mq_store::fs::{CrashingFs, Failure};
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
    let opened = match open(Arc::new(fs.clone())) {
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
    let calls = fs.calls();
    let mark = log.watermark();
    log.stop();
    let failed = log.failed().is_some();
    let (confirmed, pending) = issued.outcome()?;
    if failed {
        let Some(Failure::Once(at) | Failure::LostSync(at)) = fails else {
            return Err("it failed without a reason".into());
        };
        let limit = at + 1;
        if calls != limit || fs.calls() != limit {
            return Err(format!("{} calls after the failure", fs.calls() - limit));
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
