//! The checkers of the log workload against a simulated log that keeps every promise, with unknown outcomes, lagging
//! replicas and retention: never accused. Then one event is changed: the finding that belongs to it must appear.

use mq_jepsen::checker::{Finding, check};
use mq_jepsen::generator::stream;
use mq_jepsen::history::History;
use mq_jepsen::history::record::{
    Bounds, Call, Cause, Header, Kind, Place, Process, Pull, Pulled, Range, Record, SCHEMA, Seen, Send,
};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

const MS: u64 = 1_000_000;
const QUEUES: u32 = 2;
const NODES: [&str; 3] = ["b1", "b2", "b3"];
const SEEDS: u64 = 100;

/// A correct log. Every call takes effect at one instant between its begin and its end.
struct Simulation {
    random: ChaCha8Rng,
    now: u64,
    process: u64,
    queues: [Vec<Seen>; QUEUES as usize],
    min: [u64; QUEUES as usize],
    /// Next offset that each replica has dispatched, per queue; never falls.
    replicas: [[u64; QUEUES as usize]; 3],
    /// Process and position of the long pull sequences, one per queue.
    readers: [(u64, u64); QUEUES as usize],
    records: Vec<Record>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            random: stream(seed, "log-simulation"),
            now: 1_000 * MS,
            process: 100,
            queues: [Vec::new(), Vec::new()],
            min: [0; QUEUES as usize],
            replicas: [[0; QUEUES as usize]; 3],
            readers: [(1, 0), (2, 0)],
            records: Vec::new(),
        }
    }

    /// `wide`: the call may overlap others; sequences of one process may not.
    fn call(&mut self, process: Option<u64>, begin: Call, ty: Kind, end: Call) {
        let process = process.unwrap_or_else(|| {
            self.process += 1;
            self.process
        });
        let width = if process < 100 { MS / 4 } else { 200 * MS };
        let p = Process::Worker(process);
        let err = (ty != Kind::Ok).then(|| Cause {
            code: if ty == Kind::Fail { "50002".into() } else { "deadline".into() },
            msg: String::new(),
        });
        let (before, after) = (self.random.random_range(1..width), self.random.random_range(1..width));
        let record = |t, ty, call, err| Record { i: 0, t, w: 0, p, ty, call, n: vec![], err };
        self.records.push(record(self.now - before, Kind::Invoke, begin, None));
        self.records.push(record(self.now + after, ty, end, err));
    }

    fn send(&mut self) {
        let mid = format!("m{}", self.process);
        let queue = self.random.random_range(0..QUEUES);
        let begin = Call::Send(Send { mid: mid.clone(), place: None });
        let dice = self.random.random_range(0..100);
        let list = &mut self.queues[queue as usize];
        let offset = list.len() as u64;
        if dice < 87 {
            list.push(Seen { offset, mid: mid.clone(), store_time: self.now / MS, intact: true });
        }
        match dice {
            0..80 => {
                let place = Some(Place { queue: Some(queue), offset });
                self.call(None, begin, Kind::Ok, Call::Send(Send { mid, place }));
            }
            80..92 => self.call(None, begin.clone(), Kind::Info, begin),
            _ => self.call(None, begin.clone(), Kind::Fail, begin),
        }
    }

    fn answer(&self, queue: u32, from: u64, end: u64) -> Pulled {
        let (min, list) = (self.min[queue as usize], &self.queues[queue as usize]);
        let begin = from.max(min).min(end);
        let records = &list[begin as usize..end.min(begin + 7) as usize];
        Pulled { min, max: end, records: records.to_vec() }
    }

    fn end(&self, queue: u32) -> u64 {
        self.queues[queue as usize].len() as u64
    }

    /// The long sequence of a queue goes on, through the leader.
    fn follow(&mut self, queue: u32) {
        let (process, from) = self.readers[queue as usize];
        let answer = self.answer(queue, from, self.end(queue));
        let next = answer.records.last().map_or(from.max(answer.min), |seen| seen.offset + 1);
        self.readers[queue as usize].1 = next;
        let pull = |answer| Call::Pull(Pull { queue, from, replica: None, seek: false, scan: None, answer });
        self.call(Some(process), pull(None), Kind::Ok, pull(Some(answer)));
    }

    /// A replica answers with what it has, which may be old.
    fn peek(&mut self) {
        let (node, queue) = (self.random.random_range(0..3), self.random.random_range(0..QUEUES));
        let known = self.replicas[node][queue as usize].max(self.min[queue as usize]);
        let end = self.random.random_range(known..=self.end(queue));
        self.replicas[node][queue as usize] = end;
        let from = self.random.random_range(0..=end);
        let replica = Some(NODES[node].to_owned());
        let answer = self.answer(queue, from, end);
        let pull = |answer| {
            Call::Pull(Pull { queue, from, replica: replica.clone(), seek: true, scan: None, answer })
        };
        self.call(None, pull(None), Kind::Ok, pull(Some(answer)));
    }

    fn bounds(&mut self) {
        let queue = self.random.random_range(0..QUEUES);
        let range = Range { min: self.min[queue as usize], max: self.end(queue) };
        let bounds = |range| Call::Bounds(Bounds { queue, replica: None, range });
        if self.random.random_bool(0.1) {
            return self.call(None, bounds(None), Kind::Fail, bounds(None));
        }
        self.call(None, bounds(None), Kind::Ok, bounds(Some(range)));
    }

    fn scan(&mut self) {
        for (number, node) in (10..).zip(NODES) {
            for queue in 0..QUEUES {
                let (mut from, mut seek) = (0, true);
                loop {
                    self.now += MS;
                    let answer = self.answer(queue, from, self.end(queue));
                    let next = answer.records.last().map_or(from.max(answer.min), |seen| seen.offset + 1);
                    let scan = Some(node.to_owned());
                    let pull = |answer| {
                        Call::Pull(Pull { queue, from, replica: None, seek, scan: scan.clone(), answer })
                    };
                    self.call(Some(number), pull(None), Kind::Ok, pull(Some(answer)));
                    (from, seek) = (next, false);
                    if next >= self.end(queue) {
                        break;
                    }
                }
            }
        }
    }

    fn run(mut self, seed: u64) -> History {
        for _ in 0..300 {
            self.now += self.random.random_range(1..60) * MS;
            match self.random.random_range(0..10) {
                0..5 => self.send(),
                5..7 => {
                    let queue = self.random.random_range(0..QUEUES);
                    self.follow(queue);
                }
                7..9 => self.peek(),
                _ => self.bounds(),
            }
            // Retention of a queue, below what the readers have.
            if self.random.random_bool(0.01) {
                let queue = self.random.random_range(0..QUEUES) as usize;
                self.min[queue] = self.min[queue].max(self.readers[queue].1 / 2);
            }
        }
        self.now += 1_000 * MS;
        self.scan();
        self.records.sort_by_key(|record| record.t);
        history(seed, self.records)
    }
}

fn history(seed: u64, mut records: Vec<Record>) -> History {
    for (i, record) in (0..).zip(&mut records) {
        record.i = i;
    }
    let header = Header {
        schema: SCHEMA,
        run: "simulated".into(),
        seed,
        workload: "log".into(),
        faults: vec![],
        topology: "simulated".into(),
        groups: vec![],
        scanners: NODES.map(str::to_owned).to_vec(),
        planned_sends: 0,
        build: String::new(),
        command: String::new(),
    };
    History { header, records, footer: None }
}

fn simulated(seed: u64) -> History {
    Simulation::new(seed).run(seed)
}

fn findings(history: &History) -> Vec<Finding> {
    check(history).expect("the simulation keeps the rules of histories").findings
}

/// Changes the history of every seed by `change` (false = nothing to change there) and expects the finding.
fn mutated(expected: &str, change: impl Fn(&mut History) -> bool) {
    let mut changed = 0;
    for seed in 0..SEEDS {
        let mut history = simulated(seed);
        if !change(&mut history) {
            continue;
        }
        changed += 1;
        let names: Vec<_> = findings(&history).into_iter().map(|finding| finding.name).collect();
        assert!(names.contains(&expected), "seed {seed}: {expected} is not among {names:?}");
    }
    assert!(changed > SEEDS / 2, "only {changed} of {SEEDS} histories offered something to change");
}

fn pulls(history: &mut History) -> impl Iterator<Item = (&mut u64, &mut Pull)> {
    history.records.iter_mut().filter(|record| record.ty == Kind::Ok).filter_map(|record| {
        match &mut record.call {
            Call::Pull(pull) => Some((&mut record.t, pull)),
            _ => None,
        }
    })
}

fn answers(history: &mut History) -> impl Iterator<Item = (u32, Option<String>, &mut Pulled)> {
    pulls(history).filter_map(|(_, pull)| {
        let (queue, scan) = (pull.queue, pull.scan.clone());
        pull.answer.as_mut().map(|answer| (queue, scan, answer))
    })
}

/// A confirmed message in the middle of the scan through b1: (queue, offset, mid).
fn victim(history: &mut History) -> Option<(u32, u64, String)> {
    let confirmed: Vec<String> = history
        .records
        .iter()
        .filter(|record| record.ty == Kind::Ok)
        .filter_map(|record| match &record.call {
            Call::Send(send) => Some(send.mid.clone()),
            _ => None,
        })
        .collect();
    let mut scanned: Vec<(u32, u64, String)> = Vec::new();
    for (queue, scan, answer) in answers(history) {
        if scan.as_deref() == Some("b1") {
            scanned.extend(answer.records.iter().map(|seen| (queue, seen.offset, seen.mid.clone())));
        }
    }
    scanned.retain(|(_, _, mid)| confirmed.contains(mid));
    (scanned.len() > 4).then(|| scanned.swap_remove(scanned.len() / 2))
}

/// Changes every sighting of one confirmed message.
fn everywhere(history: &mut History, change: impl Fn(&mut Seen)) -> bool {
    let Some((_, _, mid)) = victim(history) else { return false };
    for (_, _, answer) in answers(history) {
        answer.records.iter_mut().filter(|seen| seen.mid == mid).for_each(&change);
    }
    true
}

#[test]
fn a_correct_log_with_unknown_outcomes_is_never_accused() {
    for seed in 0..SEEDS {
        let report = check(&simulated(seed)).expect("keeps the rules");
        assert!(report.findings.is_empty(), "seed {seed}: {:?}", report.findings);
        let scans: Vec<_> = report.missing.iter().filter(|line| line.contains("scan")).collect();
        assert!(scans.is_empty(), "seed {seed}: {scans:?}");
    }
}

#[test]
fn a_queue_that_one_leader_has_without_its_last_confirmed_message_is_lost() {
    mutated("lost", |history| {
        let sends: Vec<(u32, u64, String)> = history
            .records
            .iter()
            .filter(|record| record.ty == Kind::Ok)
            .filter_map(|record| match &record.call {
                Call::Send(Send { mid, place: Some(place) }) => {
                    Some((place.queue?, place.offset, mid.clone()))
                }
                _ => None,
            })
            .collect();
        let Some((queue, cut, _)) = sends.into_iter().max() else { return false };
        for (of, scan, answer) in answers(history) {
            if of == queue && scan.as_deref() == Some("b2") {
                answer.records.retain(|seen| seen.offset < cut);
                answer.max = cut;
            }
        }
        true
    });
}

#[test]
fn a_confirmed_message_replaced_by_another_is_lost_and_its_place_diverges() {
    for expected in ["lost", "divergence"] {
        mutated(expected, |history| {
            let Some((_, _, mid)) = victim(history) else { return false };
            for (_, scan, answer) in answers(history) {
                if scan.as_deref() == Some("b3") {
                    answer.records.iter_mut().filter(|seen| seen.mid == mid).for_each(|seen| {
                        seen.mid = "m-other".into();
                    });
                }
            }
            true
        });
    }
}

#[test]
fn one_replica_with_another_store_time_diverges() {
    mutated("divergence", |history| {
        let Some((_, _, mid)) = victim(history) else { return false };
        for (_, scan, answer) in answers(history) {
            if scan.as_deref() == Some("b3") {
                answer
                    .records
                    .iter_mut()
                    .filter(|seen| seen.mid == mid)
                    .for_each(|seen| seen.store_time += 1);
            }
        }
        true
    });
}

#[test]
fn a_message_told_at_another_place_is_a_duplicate_offset() {
    mutated("duplicate-offset", |history| {
        let Some((_, _, victim)) = victim(history) else { return false };
        for record in &mut history.records {
            if let Call::Send(Send { mid, place: Some(place) }) = &mut record.call
                && *mid == victim
            {
                place.offset += 1_000;
            }
        }
        true
    });
}

#[test]
fn what_was_never_sent_is_a_phantom() {
    mutated("phantom", |history| everywhere(history, |seen| seen.mid = "m-from-nowhere".into()));
}

#[test]
fn a_broken_body_is_corrupt() {
    mutated("corrupt", |history| everywhere(history, |seen| seen.intact = false));
}

#[test]
fn a_message_whose_send_failed_is_an_aborted_read() {
    mutated("aborted-read", |history| {
        let Some((_, _, victim)) = victim(history) else { return false };
        for record in &mut history.records {
            if matches!(&record.call, Call::Send(send) if send.mid == victim) && record.ty == Kind::Ok {
                record.ty = Kind::Fail;
                record.err = Some(Cause { code: "50002".into(), msg: String::new() });
            }
        }
        true
    });
}

#[test]
fn a_falling_store_time_is_found() {
    mutated("store-time", |history| {
        let Some((queue, offset, _)) = victim(history) else { return false };
        // The first record that anybody saw has nothing before it: there any time is legal.
        let before = answers(history)
            .any(|(of, _, answer)| of == queue && answer.records.iter().any(|seen| seen.offset < offset));
        before && everywhere(history, |seen| seen.store_time = 1)
    });
}

#[test]
fn an_answer_that_skips_a_record_has_a_hole() {
    mutated("hole", |history| {
        let long = answers(history).find(|(_, _, answer)| answer.records.len() > 2);
        long.map(|(_, _, answer)| answer.records.remove(1)).is_some()
    });
}

#[test]
fn a_pull_that_begins_behind_its_place_has_a_hole() {
    mutated("hole", |history| {
        let mut followed = pulls(history).filter(|(_, pull)| !pull.seek && pull.scan.is_none());
        let Some((_, pull)) =
            followed.find(|(_, pull)| pull.answer.as_ref().is_some_and(|answer| answer.records.len() > 1))
        else {
            return false;
        };
        pull.answer.as_mut().is_some_and(|answer| !answer.records.remove(0).mid.is_empty())
    });
}

#[test]
fn an_empty_answer_in_the_middle_of_a_queue_is_a_hole() {
    mutated("hole", |history| {
        let filled = answers(history).find(|(_, _, answer)| !answer.records.is_empty());
        filled.map(|(_, _, answer)| answer.records.clear()).is_some()
    });
}

#[test]
fn a_pull_sequence_that_jumps_back_is_out_of_order() {
    mutated("order", |history| {
        let mut followed = pulls(history).filter(|(_, pull)| !pull.seek && pull.scan.is_none());
        let Some(answer) = followed.find_map(|(_, pull)| {
            let from = pull.from;
            pull.answer
                .as_mut()
                .filter(|a| from > a.min && a.records.first().is_some_and(|s| s.offset == from))
        }) else {
            return false;
        };
        answer.records[0].offset -= 1;
        true
    });
}

#[test]
fn a_later_send_at_a_smaller_offset_is_out_of_order() {
    mutated("order", |history| {
        // Two confirmed sends of queue 0, far apart in time, change places for everybody.
        let sends: Vec<(u64, u64, String)> = history
            .records
            .iter()
            .filter(|record| record.ty == Kind::Ok)
            .filter_map(|record| match &record.call {
                Call::Send(Send { mid, place: Some(Place { queue: Some(0), offset }) }) => {
                    Some((record.t, *offset, mid.clone()))
                }
                _ => None,
            })
            .collect();
        let (Some(first), Some(last)) = (sends.iter().min(), sends.iter().max()) else { return false };
        if first.0 + 1_000 * MS > last.0 {
            return false;
        }
        let swap = |mid: &mut String| {
            if *mid == first.2 {
                mid.clone_from(&last.2);
            } else if *mid == last.2 {
                mid.clone_from(&first.2);
            }
        };
        for record in &mut history.records {
            match &mut record.call {
                Call::Send(Send { mid, place: Some(place) }) if *mid == first.2 => {
                    debug_assert_eq!(place.offset, first.1);
                    place.offset = last.1;
                }
                Call::Send(Send { mid, place: Some(place) }) if *mid == last.2 => place.offset = first.1,
                Call::Pull(Pull { answer: Some(answer), .. }) => {
                    answer.records.iter_mut().for_each(|seen| swap(&mut seen.mid));
                }
                _ => {}
            }
        }
        true
    });
}

#[test]
fn a_max_offset_below_a_confirmed_send_is_stale() {
    mutated("stale-read", |history| {
        let last =
            history.records.iter_mut().rev().filter(|record| record.ty == Kind::Ok).find_map(|record| {
                match &mut record.call {
                    Call::Bounds(Bounds { range: Some(range), .. }) if range.max > 5 => Some(range),
                    _ => None,
                }
            });
        last.map(|range| range.max = 0).is_some()
    });
}

#[test]
fn a_scan_that_is_missing_or_ends_early_is_no_pass() {
    let mut history = simulated(1);
    history.records.retain(
        |record| !matches!(&record.call, Call::Pull(pull) if pull.scan.as_deref() == Some("b3") && pull.queue == 1),
    );
    let history = self::history(1, history.records);
    let missing = check(&history).expect("keeps the rules").missing;
    assert!(missing.iter().any(|line| line.contains("queue 1 was not scanned through b3")), "{missing:?}");

    let mut history = simulated(1);
    let last = pulls(&mut history).filter(|(_, pull)| pull.scan.is_some()).last();
    last.and_then(|(_, pull)| pull.answer.as_mut()).expect("the scan ended").max += 5;
    let missing = check(&history).expect("keeps the rules").missing;
    assert!(missing.iter().any(|line| line.contains("through b3 ended at")), "{missing:?}");
}

#[test]
fn a_history_of_an_unknown_workload_is_refused() {
    let mut history = simulated(1);
    history.header.workload = "lgo".into();
    assert!(check(&history).expect_err("nobody can judge it").to_string().contains("`lgo`"));
}
