//! Any mix of append, roll, truncate, purge and vote, then kills, reopens and power cuts, also inside of recovery:
//! nothing confirmed is lost, votes never go back, what was truncated never comes back.

mod support;

use std::sync::Arc;

use mq_store::fs::{CrashingFs, Failure};
use mq_store::{EntryId, VoteRecord};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::model::{Issued, Model, Op};
use support::{Open, Seed, entry, open, seeds};

/// One history from a seed.
struct History {
    dice: StdRng,
    fs: CrashingFs,
    certain: Model,
    pending: Vec<Op>,
    /// Put the bug "reported before synced" in.
    bug: bool,
}

impl History {
    fn new(seed: u64, bug: bool) -> Self {
        Self {
            dice: StdRng::seed_from_u64(seed),
            fs: CrashingFs::new(),
            certain: Model::default(),
            pending: Vec::new(),
            bug,
        }
    }

    fn run(mut self) -> Result<(), String> {
        for _ in 0..self.dice.random_range(1..4) {
            let open = self.recover()?;
            self.work(open)?;
            match self.dice.random_range(0..3) {
                0 => self.fs = self.fs.kill(),
                1 => self.cut(),
                _ => {
                    // What a killed process left counts as flushed once it was recovered.
                    self.fs = self.fs.kill();
                    drop(self.recover()?);
                    self.cut();
                }
            }
        }
        self.recover().map(|_| ())
    }

    fn cut(&mut self) {
        self.fs = self.fs.power_cut(self.dice.random());
    }

    /// Opens the log, after crashes inside of recovery, and compares.
    fn recover(&mut self) -> Result<Open, String> {
        while self.dice.random_range(0..4) == 0 {
            self.fs.fail(Failure::ForEver(self.dice.random_range(0..25)));
            let opened = open(Arc::new(self.fs.clone()));
            if let Err(why) = opened
                && !why.to_string().contains("made to fail")
            {
                return Err(format!("recovery before a crash: {why}"));
            }
            if self.dice.random() {
                self.cut();
            } else {
                self.fs = self.fs.kill();
            }
        }
        let open = open(Arc::new(self.fs.clone())).map_err(|e| format!("recovery: {e}"))?;
        let found = Model::of(&open.log, &open.files).map_err(|e| format!("reading: {e}"))?;
        let outcomes = self.certain.outcomes(&self.pending);
        if !outcomes.contains(&found) {
            return Err(format!(
                "found {}\nconfirmed {}\npending {:?}",
                found.short(),
                self.certain.short(),
                outcomes.iter().map(Model::short).collect::<Vec<_>>()
            ));
        }
        let flushed = open.log.watermark().flushed();
        if flushed != found.last() {
            return Err(format!("flushed {flushed:?}, the log ends at {:?}", found.last()));
        }
        (self.certain, self.pending) = (found, Vec::new());
        Ok(open)
    }

    /// Uses the open log until the process dies at some call, or is stopped.
    fn work(&mut self, open: Open) -> Result<(), String> {
        let Open { log, .. } = open;
        if self.bug {
            log.inject_report_before_sync();
        }
        let mut issued = Issued::default();
        let mut live = self.certain.clone();
        let count = self.dice.random_range(1..12);
        let dies_at = self.dice.random_range(0..count * 2);
        for number in 0..count {
            if number == dies_at {
                self.fs.fail(Failure::ForEver(self.dice.random_range(0..8)));
            }
            let op = self.op(&live);
            live.apply(&op);
            issued.issue(&log, op);
            if self.dice.random() {
                while !issued.settled() {
                    std::thread::yield_now();
                }
            }
        }
        log.stop();
        drop(log);
        let (confirmed, pending) = issued.outcome()?;
        for op in &confirmed {
            self.certain.apply(op);
        }
        self.pending = pending;
        Ok(())
    }

    fn op(&mut self, live: &Model) -> Op {
        let dice = &mut self.dice;
        let last = live.last().unwrap_or_default();
        let next = live.last().map_or(0, |l| l.index.0 + 1);
        match dice.random_range(0..10) {
            0 => {
                let vote = live.vote.map_or(1, |v| v.term + dice.random_range(1..3));
                Op::Vote(VoteRecord { term: vote, node: dice.random_range(1..4), committed: dice.random() })
            }
            1 | 2 if !live.entries.is_empty() => {
                let below = live.entries[dice.random_range(0..live.entries.len())].0.index.0;
                Op::Truncate(below.checked_sub(1).or(live.purged.map(|p| p.index.0)))
            }
            3 if dice.random_range(0..4) == 0 => {
                let beyond = EntryId::new(last.term.0 + 1, next + 3);
                let held = live.entries.first().map(|(id, _)| *id);
                Op::Purge(held.filter(|_| dice.random_range(0..3) > 0).unwrap_or(beyond))
            }
            _ => {
                let mut term = last.term.0.max(1);
                let entries = (0..dice.random_range(1..5))
                    .map(|at| {
                        term += u64::from(dice.random_range(0..5u8) == 0);
                        let len = match dice.random_range(0..8) {
                            0 => 0,
                            1..4 => dice.random_range(0..60),
                            4..7 => dice.random_range(0..600),
                            _ => dice.random_range(1500..1976),
                        };
                        entry(term + dice.random_range(0..2), next + at, len)
                    })
                    .collect();
                Op::Append(entries)
            }
        }
    }
}

#[test]
fn nothing_confirmed_is_lost_and_nothing_truncated_comes_back() {
    for seed in seeds(1_000) {
        let _seed = Seed(seed, "--test crash");
        if let Err(why) = History::new(seed, false).run() {
            panic!("{why}");
        }
    }
}

#[test]
fn the_bug_of_reporting_before_the_sync_is_found() {
    let found = (0..300).find(|seed| History::new(*seed, true).run().is_err());
    assert!(
        found.is_some(),
        "300 histories with the bug in, and none lost anything: the test proves nothing"
    );
}
