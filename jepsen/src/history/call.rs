//! Calls put together from their two records, and the rules that a history must keep before it is judged.

use std::collections::{BTreeMap, BTreeSet};

use super::file::HistoryError;
use super::record::{self, Cause, Kind, Process, Record};

/// What the caller knows about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Ok,
    /// It certainly did not.
    Fail,
    /// Unknown; also when the file ends before its end.
    Unknown,
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Who.
    pub process: u64,
    /// Index of the begin.
    pub invoked: u64,
    /// Time of the begin.
    pub start: u64,
    /// Time of the end; `None` when it never ended.
    pub end: Option<u64>,
    /// What is known.
    pub outcome: Outcome,
    /// Values: those of the end when there is one.
    pub values: record::Call,
    /// Why it is not OK.
    pub cause: Option<Cause>,
}

impl Call {
    /// True when this call ended before the other began.
    pub fn ended_before(&self, other: &Call) -> bool {
        self.end.is_some_and(|end| end < other.start)
    }
}

/// Checks the rules of a history and pairs begins with ends. Calls come in the order of their begins.
pub fn calls(records: &[Record]) -> Result<Vec<Call>, HistoryError> {
    let mut found: Vec<Call> = Vec::new();
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let mut retired: BTreeSet<u64> = BTreeSet::new();
    let mut time = 0;
    for (at, record) in (0u64..).zip(records) {
        if record.i != at {
            return Err(HistoryError::rule(at, format!("index {} where {at} was expected", record.i)));
        }
        if record.t < time {
            return Err(HistoryError::rule(at, format!("time falls from {time} to {}", record.t)));
        }
        time = record.t;
        let Process::Worker(process) = record.p else {
            if record.ty != Kind::Info {
                return Err(HistoryError::rule(at, "a role may only write info records"));
            }
            continue;
        };
        if retired.contains(&process) {
            return Err(HistoryError::rule(
                at,
                format!("process {process} goes on after an unknown outcome"),
            ));
        }
        if record.ty == Kind::Invoke {
            if open.insert(process, found.len()).is_some() {
                return Err(HistoryError::rule(at, format!("process {process} has two open calls")));
            }
            found.push(begun(process, record));
            continue;
        }
        let Some(call) = open.remove(&process).map(|at| &mut found[at]) else {
            return Err(HistoryError::rule(
                at,
                format!("process {process} ends a call that it did not begin"),
            ));
        };
        if call.values.function() != record.call.function() {
            let problem = format!("{} ends a {}", record.call.function(), call.values.function());
            return Err(HistoryError::rule(at, problem));
        }
        call.end = Some(record.t);
        call.values = record.call.clone();
        call.cause = record.err.clone();
        call.outcome = match record.ty {
            Kind::Ok => Outcome::Ok,
            Kind::Fail => Outcome::Fail,
            Kind::Info | Kind::Invoke => {
                retired.insert(process);
                Outcome::Unknown
            }
        };
    }
    Ok(found)
}

fn begun(process: u64, record: &Record) -> Call {
    Call {
        process,
        invoked: record.i,
        start: record.t,
        end: None,
        outcome: Outcome::Unknown,
        values: record.call.clone(),
        cause: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::Send;

    fn record(i: u64, t: u64, p: u64, ty: Kind) -> Record {
        let call = record::Call::Send(Send { mid: format!("r-{p}-0"), place: None });
        Record { i, t, w: 0, p: Process::Worker(p), ty, call, n: vec![], err: None }
    }

    fn broken(records: &[Record]) -> String {
        calls(records).expect_err("the history breaks a rule").to_string()
    }

    #[test]
    fn pairs_calls_and_keeps_open_ones_unknown() {
        let records =
            [record(0, 5, 1, Kind::Invoke), record(1, 6, 2, Kind::Invoke), record(2, 9, 1, Kind::Ok)];
        let calls = calls(&records).expect("keeps all rules");
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].outcome, calls[0].end), (Outcome::Ok, Some(9)));
        assert_eq!((calls[1].outcome, calls[1].end), (Outcome::Unknown, None));
    }

    #[test]
    fn a_process_number_is_never_used_after_info() {
        let records =
            [record(0, 1, 1, Kind::Invoke), record(1, 2, 1, Kind::Info), record(2, 3, 1, Kind::Invoke)];
        assert!(broken(&records).contains("goes on after an unknown outcome"));
    }

    #[test]
    fn each_rule_is_checked() {
        assert!(broken(&[record(1, 1, 1, Kind::Invoke)]).contains("index 1 where 0"));
        assert!(broken(&[record(0, 4, 1, Kind::Invoke), record(1, 3, 1, Kind::Ok)]).contains("time falls"));
        assert!(broken(&[record(0, 1, 1, Kind::Ok)]).contains("did not begin"));
        let twice = [record(0, 1, 1, Kind::Invoke), record(1, 2, 1, Kind::Invoke)];
        assert!(broken(&twice).contains("two open calls"));
    }
}
