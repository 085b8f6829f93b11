//! The log workload: what senders were told, what pulls and final scans saw, on the leader and on every replica.
//!
//! | finding | promise | in |
//! |---|---|---|
//! | `divergence` | a place (queue, offset) names one message with one store time, for everybody and for ever | `places` |
//! | `duplicate-offset` | a message lies at one place, the one that its sender was told | `places` |
//! | `phantom`, `aborted-read`, `corrupt` | nothing is visible that was not sent, or was refused, or is not what was sent | `places` |
//! | `store-time` | store times never fall within a queue | `places` |
//! | `hole` | offsets are dense, within an answer and from one pull to the next; an answer lies between its min and max | `sequence` |
//! | `order` | a pull sequence does not jump back; sends ordered in real time get offsets in that order | `sequence`, `order` |
//! | `stale-read` | the leader's max offset is above every send confirmed before, and never falls | `order` |
//! | `lost` | a scan through a leader shows every send that was confirmed before the scan began | `scan` |
//!
//! Equal digests are the matter of `monitor`.

mod order;
mod places;
mod scan;
mod sequence;

use super::Finding;
use crate::history::record::{Call as Values, Pull, Pulled, Seen};
use crate::history::{Call, History, Outcome};

/// (queue, offset)
type Place = (u32, u64);

/// An answered pull.
#[derive(Debug, Clone, Copy)]
struct Answer<'a> {
    call: &'a Call,
    pull: &'a Pull,
    pulled: &'a Pulled,
}

impl<'a> Answer<'a> {
    fn seen(self) -> impl Iterator<Item = (Place, &'a Seen)> {
        self.pulled.records.iter().map(move |seen| ((self.pull.queue, seen.offset), seen))
    }

    /// Where the next pull of the sequence begins.
    fn next(self) -> u64 {
        self.pulled.records.last().map_or_else(|| self.begin(), |last| last.offset.saturating_add(1))
    }

    /// Where this one had to begin: what retention took away is skipped.
    fn begin(self) -> u64 {
        self.pull.from.max(self.pulled.min)
    }
}

/// A send that was not certainly refused.
#[derive(Debug, Clone, Copy)]
struct Sent<'a> {
    call: &'a Call,
    mid: &'a str,
    /// What the sender was told, when it was told OK.
    told: Option<(Option<u32>, u64)>,
}

/// All findings of the log workload, without those that are the same for every workload.
pub fn check(calls: &[Call]) -> Vec<Finding> {
    let (answers, sends) = (answers(calls), sends(calls));
    let (places, mut findings) = places::check(calls, &answers, &sends);
    findings.extend(sequence::check(&answers));
    findings.extend(order::sends(&sends, &places));
    findings.extend(order::bounds(calls, &sends));
    findings.extend(scan::lost(&answers, &sends));
    findings
}

/// What the final scans did not reach, in words.
pub fn missing(history: &History, calls: &[Call]) -> Vec<String> {
    scan::missing(&answers(calls), &sends(calls), &history.header.scanners)
}

/// Counts for people.
pub fn notes(calls: &[Call]) -> Vec<String> {
    let answers = answers(calls);
    let local = answers.iter().filter(|answer| answer.pull.replica.is_some());
    let behind = local.clone().filter(|answer| answer.pulled.records.is_empty()).count();
    let unknown: Vec<_> = sends(calls).into_iter().filter(|sent| sent.told.is_none()).collect();
    let seen: std::collections::BTreeSet<&str> =
        answers.iter().flat_map(|answer| answer.seen()).map(|(_, seen)| seen.mid.as_str()).collect();
    let stored = unknown.iter().filter(|sent| seen.contains(sent.mid)).count();
    vec![
        format!("sends with unknown outcome: {}, of these stored: {stored}", unknown.len()),
        format!("pulls from replicas: {}, of these empty: {behind}", local.count()),
    ]
}

fn answers(calls: &[Call]) -> Vec<Answer<'_>> {
    calls
        .iter()
        .filter(|call| call.outcome == Outcome::Ok)
        .filter_map(|call| match &call.values {
            Values::Pull(pull) => pull.answer.as_ref().map(|pulled| Answer { call, pull, pulled }),
            _ => None,
        })
        .collect()
}

fn sends(calls: &[Call]) -> Vec<Sent<'_>> {
    calls
        .iter()
        .filter(|call| call.outcome != Outcome::Fail)
        .filter_map(|call| match &call.values {
            Values::Send(send) => {
                let place = send.place.filter(|_| call.outcome == Outcome::Ok);
                Some(Sent { call, mid: &send.mid, told: place.map(|place| (place.queue, place.offset)) })
            }
            _ => None,
        })
        .collect()
}

fn shown((queue, offset): Place) -> String {
    format!("queue {queue} offset {offset}")
}
