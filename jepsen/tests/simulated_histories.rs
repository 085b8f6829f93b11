//! The checkers against a simulated queue that keeps every promise, with random unknown outcomes: always valid.
//! Then one event is changed: the finding that belongs to it must appear.

use std::collections::BTreeMap;

use mq_jepsen::checker::{Finding, check};
use mq_jepsen::generator::stream;
use mq_jepsen::history::History;
use mq_jepsen::history::record::{
    Ack, Call, Cause, Delivery, Header, Kind, Phase, Place, Process, Receive, Record, Role, SCHEMA, Send,
};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

const MS: u64 = 1_000_000;
const INVISIBLE_MS: u64 = 10_000;
const GROUPS: [&str; 2] = ["g", "h"];
const SEEDS: u64 = 200;

/// What a group knows of one stored message.
#[derive(Clone, Default)]
struct Progress {
    attempt: u32,
    free_at: u64,
    settled: bool,
}

struct Stored {
    mid: String,
    queue: u32,
    offset: u64,
    progress: [Progress; 2],
}

/// A correct queue. Every call takes effect at one instant between its begin and its end.
struct Simulation {
    random: ChaCha8Rng,
    now: u64,
    process: u64,
    stored: Vec<Stored>,
    next: [u64; 2],
    /// Deliveries that a consumer holds: (group, index into `stored`, attempt).
    held: Vec<(usize, usize, u32)>,
    records: Vec<Record>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let random = stream(seed, "simulation");
        let (stored, held, records) = (Vec::new(), Vec::new(), Vec::new());
        Self { random, now: 1_000 * MS, process: 0, stored, next: [0; 2], held, records }
    }

    fn call(&mut self, begin: Call, ty: Kind, end: Call, code: &str) {
        self.process += 1;
        let p = Process::Worker(self.process);
        let err = (ty != Kind::Ok).then(|| Cause { code: code.into(), msg: String::new() });
        let before = self.random.random_range(1..200) * MS;
        let after = self.random.random_range(1..200) * MS;
        let record = |t, ty, call, err| Record { i: 0, t, w: 0, p, ty, call, n: vec![], err };
        self.records.push(record(self.now - before, Kind::Invoke, begin, None));
        self.records.push(record(self.now + after, ty, end, err));
    }

    fn send(&mut self) {
        let mid = format!("m{}", self.process);
        let begin = Call::Send(Send { mid: mid.clone(), place: None });
        let dice = self.random.random_range(0..100);
        let (queue, stores) = (self.random.random_range(0..2u32), dice < 87);
        let offset = self.next[queue as usize];
        if stores {
            self.next[queue as usize] += 1;
            self.stored.push(Stored { mid: mid.clone(), queue, offset, progress: Default::default() });
        }
        match dice {
            0..80 => {
                let place = Some(Place { queue: None, offset });
                self.call(begin, Kind::Ok, Call::Send(Send { mid, place }), "");
            }
            80..92 => self.call(begin.clone(), Kind::Info, begin, "deadline"),
            _ => self.call(begin.clone(), Kind::Fail, begin, "50002"),
        }
    }

    /// Expired deliveries first, then new positions in the order of the queue.
    fn receive(&mut self, group: usize, known: bool) {
        let queue = self.random.random_range(0..2u32);
        let (now, mut messages, mut taken) = (self.now, Vec::new(), Vec::new());
        for (at, stored) in self.stored.iter_mut().enumerate() {
            let progress = &mut stored.progress[group];
            if stored.queue != queue || progress.settled || progress.free_at > now || messages.len() == 4 {
                continue;
            }
            progress.attempt += 1;
            progress.free_at = now + INVISIBLE_MS * MS;
            taken.push((group, at, progress.attempt));
            messages.push(Delivery {
                mid: stored.mid.clone(),
                queue,
                offset: stored.offset,
                attempt: progress.attempt,
                intact: true,
            });
        }
        let receive = |messages| {
            Call::Receive(Receive {
                group: GROUPS[group].into(),
                invisible_ms: INVISIBLE_MS,
                messages,
                cut: false,
            })
        };
        if known {
            self.held.extend(taken);
            self.call(receive(vec![]), Kind::Ok, receive(messages), "");
        } else {
            self.call(receive(vec![]), Kind::Info, receive(vec![]), "deadline");
        }
    }

    fn ack(&mut self, certain: bool) {
        if self.held.is_empty() {
            return;
        }
        let (group, at, attempt) = self.held.remove(self.random.random_range(0..self.held.len()));
        let now = self.now;
        let stored = &mut self.stored[at];
        let call = Call::Ack(Ack { group: GROUPS[group].into(), mid: stored.mid.clone(), attempt });
        let progress = &mut stored.progress[group];
        if !progress.settled && (progress.attempt != attempt || progress.free_at <= now) {
            return self.call(call.clone(), Kind::Fail, call, "40013");
        }
        match self.random.random_range(0..100) {
            0..8 if !certain => {
                progress.settled = true;
                self.call(call.clone(), Kind::Info, call, "deadline");
            }
            8..16 if !certain => self.call(call.clone(), Kind::Info, call, "grpc-14"),
            _ => {
                progress.settled = true;
                self.call(call.clone(), Kind::Ok, call, "");
            }
        }
    }

    fn run(mut self, seed: u64) -> History {
        for _ in 0..400 {
            self.now += self.random.random_range(1..120) * MS;
            match self.random.random_range(0..10) {
                0..4 => self.send(),
                4..7 => {
                    let (group, known) = (self.random.random_range(0..2), self.random.random_bool(0.85));
                    self.receive(group, known);
                }
                _ => self.ack(false),
            }
        }
        while self.stored.iter().any(|stored| stored.progress.iter().any(|progress| !progress.settled)) {
            self.now += INVISIBLE_MS / 20 * MS;
            for group in 0..2 {
                self.receive(group, true);
            }
            while !self.held.is_empty() {
                self.now += MS;
                self.ack(true);
            }
        }
        self.records.sort_by_key(|record| record.t);
        let t = self.records.last().map_or(0, |record| record.t);
        let call = Call::Phase(Phase { name: "drained".into() });
        let p = Process::Role(Role::Harness);
        self.records.push(Record { i: 0, t, w: 0, p, ty: Kind::Info, call, n: vec![], err: None });
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
        workload: "queue".into(),
        faults: vec![],
        topology: "simulated".into(),
        groups: GROUPS.map(str::to_owned).to_vec(),
        scanners: Vec::new(),
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
        let history = self::history(seed, history.records);
        let names: Vec<_> = findings(&history).into_iter().map(|finding| finding.name).collect();
        assert!(names.contains(&expected), "seed {seed}: {expected} is not among {names:?}");
    }
    assert!(changed > SEEDS / 2, "only {changed} of {SEEDS} histories offered something to change");
}

fn confirmed(history: &History) -> BTreeMap<String, u64> {
    let ok = history.records.iter().filter(|record| record.ty == Kind::Ok);
    ok.filter_map(|record| match &record.call {
        Call::Send(send) => Some((send.mid.clone(), record.t)),
        _ => None,
    })
    .collect()
}

fn receives(history: &mut History) -> impl Iterator<Item = (u64, &mut Receive)> {
    history.records.iter_mut().filter(|record| record.ty == Kind::Ok).filter_map(|record| {
        match &mut record.call {
            Call::Receive(receive) => Some((record.t, receive)),
            _ => None,
        }
    })
}

#[test]
fn a_correct_queue_with_unknown_outcomes_is_never_accused() {
    for seed in 0..SEEDS {
        let findings = findings(&simulated(seed));
        assert!(findings.is_empty(), "seed {seed}: {findings:?}");
    }
}

#[test]
fn a_confirmed_message_that_one_group_never_got_is_lost() {
    mutated("lost", |history| {
        let Some(victim) = confirmed(history).into_keys().next() else { return false };
        for (_, receive) in receives(history).filter(|(_, receive)| receive.group == "h") {
            receive.messages.retain(|message| message.mid != victim);
        }
        true
    });
}

#[test]
fn a_message_from_nowhere_is_a_phantom() {
    mutated("phantom", |history| {
        let Some((_, receive)) = receives(history).find(|(_, receive)| !receive.messages.is_empty()) else {
            return false;
        };
        receive.messages[0].mid = "m-from-nowhere".into();
        true
    });
}

#[test]
fn a_delivered_message_whose_send_failed_is_an_aborted_read() {
    mutated("aborted-read", |history| {
        let Some(victim) = confirmed(history).into_keys().next() else { return false };
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
fn a_redelivery_that_counts_from_one_again_is_found() {
    mutated("attempt", |history| {
        let mut first: BTreeMap<(String, String), u32> = BTreeMap::new();
        for (_, receive) in receives(history) {
            for message in &mut receive.messages {
                let key = (receive.group.clone(), message.mid.clone());
                let before = *first.entry(key).or_insert(message.attempt);
                if before < message.attempt {
                    message.attempt = before;
                    return true;
                }
            }
        }
        false
    });
}

#[test]
fn a_delivery_after_the_ack_is_a_resurrection() {
    mutated("resurrected", |history| {
        let acked = history.records.iter().filter(|record| record.ty == Kind::Ok);
        let Some((t, ack)) = acked
            .filter_map(|record| match &record.call {
                Call::Ack(ack) => Some((record.t, ack.clone())),
                _ => None,
            })
            .next()
        else {
            return false;
        };
        let later =
            receives(history).filter(|(end, receive)| *end > t + 1_000 * MS && receive.group == ack.group);
        let Some((_, receive)) = later.last() else { return false };
        receive.messages.push(Delivery { mid: ack.mid, queue: 7, offset: 0, attempt: 2, intact: true });
        true
    });
}

#[test]
fn confirmed_offsets_in_the_wrong_order_are_found() {
    mutated("order", |history| {
        // The first and the last delivered message of queue 0 change places, for the sender and for everybody else.
        let mut mids = Vec::new();
        for (_, receive) in receives(history).filter(|(_, receive)| receive.group == "g") {
            mids.extend(receive.messages.iter().filter(|m| m.queue == 0).map(|m| (m.offset, m.mid.clone())));
        }
        let ok = confirmed(history);
        mids.retain(|(_, mid)| ok.contains_key(mid));
        mids.sort();
        let (Some(first), Some(last)) = (mids.first().cloned(), mids.last().cloned()) else { return false };
        if ok[&first.1] + 1_000 * MS > ok[&last.1] {
            return false;
        }
        let swap = |mid: &str, offset: &mut u64| {
            if mid == first.1 {
                *offset = last.0;
            } else if mid == last.1 {
                *offset = first.0;
            }
        };
        for record in &mut history.records {
            match &mut record.call {
                Call::Send(Send { mid, place: Some(place) }) => swap(mid, &mut place.offset),
                Call::Receive(receive) => {
                    receive.messages.iter_mut().for_each(|message| swap(&message.mid, &mut message.offset));
                }
                _ => {}
            }
        }
        true
    });
}

#[test]
fn one_place_with_two_messages_diverges() {
    mutated("divergence", |history| {
        let mut seen: Option<Delivery> = None;
        for (_, receive) in receives(history) {
            for message in &mut receive.messages {
                match &seen {
                    None => seen = Some(message.clone()),
                    Some(other) if other.mid != message.mid && other.queue == message.queue => {
                        message.offset = other.offset;
                        return true;
                    }
                    Some(_) => {}
                }
            }
        }
        false
    });
}
