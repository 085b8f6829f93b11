//! Real time: what ended before something else began lies before it, and is seen by it.

use std::collections::BTreeMap;

use super::{Place, Sent, answers};
use crate::checker::Finding;
use crate::history::record::Call as Values;
use crate::history::{Call, Outcome};

/// A send and the place that is known for it, by the answer or by a pull.
struct Placed<'a> {
    call: &'a Call,
    mid: &'a str,
    offset: u64,
    confirmed: bool,
}

/// Per queue, walk the sends by begin and keep the largest offset among those *confirmed* before. A send of unknown
/// outcome that was stored counts as a later one, never as an earlier one: it may have been stored at any time.
pub(super) fn sends(sends: &[Sent<'_>], places: &BTreeMap<&str, Place>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (queue, list) in by_queue(sends, places) {
        let mut ended: Vec<&Placed<'_>> = list.iter().filter(|sent| sent.confirmed).collect();
        ended.sort_by_key(|sent| sent.call.end);
        let mut ended = ended.into_iter().peekable();
        let mut largest: Option<&Placed<'_>> = None;
        for sent in &list {
            while let Some(before) = ended.next_if(|before| before.call.ended_before(sent.call)) {
                if largest.is_none_or(|most| before.offset > most.offset) {
                    largest = Some(before);
                }
            }
            if let Some(most) = largest.filter(|most| sent.offset < most.offset) {
                let text = format!(
                    "queue {queue}: {} got offset {}, but {}, confirmed before it began, has {}",
                    sent.mid, sent.offset, most.mid, most.offset
                );
                findings.push(Finding::new("order", text, [most.call.invoked, sent.call.invoked]));
            }
        }
    }
    findings
}

fn by_queue<'a>(sends: &[Sent<'a>], places: &BTreeMap<&str, Place>) -> BTreeMap<u32, Vec<Placed<'a>>> {
    let mut queues: BTreeMap<u32, Vec<Placed<'a>>> = BTreeMap::new();
    for sent in sends {
        let known = places.get(sent.mid);
        let place = match sent.told {
            Some((queue, offset)) => queue.or(known.map(|place| place.0)).map(|queue| (queue, offset)),
            None => known.copied(),
        };
        if let Some((queue, offset)) = place {
            let confirmed = sent.told.is_some();
            queues.entry(queue).or_default().push(Placed {
                call: sent.call,
                mid: sent.mid,
                offset,
                confirmed,
            });
        }
    }
    queues
}

/// The least that a read of a queue's end must show, with the record that proves it.
struct Floor<'a> {
    call: &'a Call,
    queue: u32,
    end: u64,
}

/// The leader's max offset is above every send confirmed before the question, and never falls. Final scans are
/// left to `scan`: what they lack is lost.
pub(super) fn bounds(calls: &[Call], sends: &[Sent<'_>]) -> Vec<Finding> {
    let reads = reads(calls);
    let told = sends.iter().filter_map(|sent| match sent.told {
        Some((Some(queue), offset)) => Some(Floor { call: sent.call, queue, end: offset.saturating_add(1) }),
        _ => None,
    });
    let seen = reads.iter().map(|read| Floor { ..*read });
    let mut floors: Vec<Floor<'_>> = told.chain(seen).collect();
    floors.sort_by_key(|floor| floor.call.end);
    let mut floors = floors.into_iter().peekable();
    let mut highest: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut findings = Vec::new();
    for read in &reads {
        while let Some(floor) = floors.next_if(|floor| floor.call.ended_before(read.call)) {
            let most = highest.entry(floor.queue).or_default();
            if floor.end > most.0 {
                *most = (floor.end, floor.call.invoked);
            }
        }
        let (least, record) = highest.get(&read.queue).copied().unwrap_or_default();
        if read.end < least {
            let text = format!("queue {}: max offset {} after {least} was known", read.queue, read.end);
            findings.push(Finding::new("stale-read", text, [record, read.call.invoked]));
        }
    }
    findings
}

/// Reads of the end through the leader, in the order of their begins.
fn reads(calls: &[Call]) -> Vec<Floor<'_>> {
    let pulls = answers(calls);
    let pulls = pulls.iter().filter(|answer| answer.pull.replica.is_none() && answer.pull.scan.is_none());
    let mut reads: Vec<Floor<'_>> = pulls
        .map(|answer| Floor { call: answer.call, queue: answer.pull.queue, end: answer.pulled.max })
        .collect();
    for call in calls.iter().filter(|call| call.outcome == Outcome::Ok) {
        if let Values::Bounds(bounds) = &call.values
            && bounds.replica.is_none()
            && let Some(range) = bounds.range
        {
            reads.push(Floor { call, queue: bounds.queue, end: range.max });
        }
    }
    reads.sort_by_key(|read| read.call.start);
    reads
}
