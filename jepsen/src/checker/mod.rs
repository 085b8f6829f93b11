//! Pure functions from a history to findings: no clock, no randomness, no input or output.
//!
//! A finding has a stable name, says in words what was promised and broken, and names the records involved.

pub mod availability;
pub mod coverage;
pub mod lease;
pub mod log;
pub mod monitor;
pub mod order;
pub mod queue;
pub mod responses;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::history::record::{Call as Values, Delivery, Process, Receive};
use crate::history::{Call, History, HistoryError, Outcome};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name: `lost`, `phantom`, `resurrected`, …
    pub name: &'static str,
    /// What happened, in words.
    pub text: String,
    /// Indices of the records that show it.
    pub records: Vec<u64>,
}

impl Finding {
    fn new(name: &'static str, text: impl Into<String>, records: impl Into<Vec<u64>>) -> Self {
        Self { name, text: text.into(), records: records.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (records {:?})", self.name, self.text, self.records)
    }
}

/// What a run ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every promise held, coverage reached, recovery reached.
    Valid,
    /// At least one promise broken.
    Invalid,
    /// Nothing is broken, but not enough happened to say so.
    Unknown,
}

/// Everything that the checkers have to say.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The judgement.
    pub verdict: Verdict,
    /// Broken promises.
    pub findings: Vec<Finding>,
    /// What was not covered; makes a run without findings `unknown`.
    pub missing: Vec<String>,
    /// Counts per function and outcome.
    pub counts: BTreeMap<String, u64>,
    /// Longest pauses, faults, leader changes: for people.
    pub notes: Vec<String>,
}

/// Workloads that can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    Queue,
    Log,
}

impl Workload {
    /// A history of an unknown workload is never called valid: nobody looked at it.
    fn of(history: &History) -> Result<Self, HistoryError> {
        match history.header.workload.as_str() {
            "queue" => Ok(Self::Queue),
            "log" => Ok(Self::Log),
            other => {
                Err(HistoryError::Line { line: 1, problem: format!("no checker for the workload `{other}`") })
            }
        }
    }

    /// Its main functions.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Queue => &["send", "receive", "ack"],
            Self::Log => &["send", "pull", "bounds"],
        }
    }
}

/// Judges a whole history.
pub fn check(history: &History) -> Result<Report, HistoryError> {
    let workload = Workload::of(history)?;
    let calls = history.calls()?;
    let mut notes = availability::notes(&history.records, &calls, workload.functions());
    let mut missing = coverage::missing(history, &calls, workload.functions());
    let mut findings = match workload {
        Workload::Queue => {
            let deliveries = deliveries(&calls);
            let drained = coverage::drained(history);
            if !drained {
                missing.push("the final drain did not come to its end: losses cannot be excluded".into());
            }
            notes.extend(queue::notes(&calls, &deliveries));
            let mut findings = queue::check(&calls, &deliveries, &history.header.groups, drained);
            findings.extend(lease::check(&calls, &deliveries));
            findings.extend(order::check(&calls, &deliveries));
            findings
        }
        Workload::Log => {
            missing.extend(log::missing(history, &calls));
            notes.extend(log::notes(&calls));
            log::check(&calls)
        }
    };
    findings.extend(monitor::check(&history.records));
    findings.extend(responses::check(&calls));
    let verdict = match (findings.is_empty(), missing.is_empty()) {
        (false, _) => Verdict::Invalid,
        (true, true) => Verdict::Valid,
        (true, false) => Verdict::Unknown,
    };
    let counts = counts(&calls);
    Ok(Report { verdict, findings, missing, counts, notes })
}

/// Calls per function and outcome, `send.ok` and so on.
fn counts(calls: &[Call]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for call in calls {
        let outcome = match call.outcome {
            Outcome::Ok => "ok",
            Outcome::Fail => "fail",
            Outcome::Unknown => "info",
        };
        *counts.entry(format!("{}.{outcome}", call.values.function())).or_insert(0) += 1;
    }
    counts
}

/// One message handed to one group, with the call that brought it.
#[derive(Debug, Clone, Copy)]
pub struct Delivered<'a> {
    /// The receive.
    pub call: &'a Call,
    /// Its arguments.
    pub receive: &'a Receive,
    /// The message.
    pub message: &'a Delivery,
}

impl Delivered<'_> {
    /// When the answer was there.
    pub fn end(&self) -> u64 {
        self.call.end.unwrap_or(u64::MAX)
    }

    fn key(&self) -> (&str, &str) {
        (&self.receive.group, &self.message.mid)
    }
}

/// All deliveries of OK receives, in the order of the calls' begins.
fn deliveries(calls: &[Call]) -> Vec<Delivered<'_>> {
    calls
        .iter()
        .filter(|call| call.outcome == Outcome::Ok)
        .filter_map(|call| match &call.values {
            Values::Receive(receive) => Some((call, receive)),
            _ => None,
        })
        .flat_map(|(call, receive)| {
            receive.messages.iter().map(move |message| Delivered { call, receive, message })
        })
        .collect()
}

/// Deliveries by (group, message), each list sorted by the end of the delivery.
fn by_message<'a>(deliveries: &[Delivered<'a>]) -> BTreeMap<(&'a str, &'a str), Vec<Delivered<'a>>> {
    let mut map: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for delivered in deliveries {
        let key = (delivered.receive.group.as_str(), delivered.message.mid.as_str());
        map.entry(key).or_default().push(*delivered);
    }
    for list in map.values_mut() {
        list.sort_by_key(Delivered::end);
    }
    map
}

fn is_role(process: Process) -> bool {
    matches!(process, Process::Role(_))
}

#[cfg(test)]
pub(crate) mod testing;
