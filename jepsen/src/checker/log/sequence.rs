//! Pulls one after the other: nothing skipped, nothing again, nothing outside of the queue's bounds.

use std::collections::BTreeMap;

use super::Answer;
use crate::checker::Finding;

/// Checks each answer in itself, then each against the one before it of the same process and queue.
pub(super) fn check(answers: &[Answer<'_>]) -> Vec<Finding> {
    let mut next: BTreeMap<(u64, u32), (u64, u64)> = BTreeMap::new();
    let mut findings = Vec::new();
    for answer in answers {
        let key = (answer.call.process, answer.pull.queue);
        let (due, before) = match next.get(&key).filter(|_| !answer.pull.seek) {
            // What retention took away meanwhile is skipped.
            Some((due, record)) => ((*due).max(answer.pulled.min), *record),
            None => (answer.begin(), answer.call.invoked),
        };
        findings.extend(inside(answer, due, before));
        next.insert(key, (answer.next().max(due), answer.call.invoked));
    }
    findings
}

fn inside(answer: &Answer<'_>, due: u64, before: u64) -> Option<Finding> {
    let (queue, index) = (answer.pull.queue, answer.call.invoked);
    let (min, max) = (answer.pulled.min, answer.pulled.max);
    let records = if before == index { vec![index] } else { vec![before, index] };
    let mut due = due;
    for seen in &answer.pulled.records {
        if seen.offset > due {
            let text = format!("queue {queue}: offset {} came where {due} was due", seen.offset);
            return Some(Finding::new("hole", text, records));
        }
        if seen.offset < due {
            let text = format!("queue {queue}: offset {} came again where {due} was due", seen.offset);
            return Some(Finding::new("order", text, records));
        }
        if seen.offset >= max {
            let text = format!("queue {queue}: offset {due} came out of a queue of {min} to {max}");
            return Some(Finding::new("hole", text, records));
        }
        due = due.saturating_add(1);
    }
    if answer.pulled.records.is_empty() && due < max {
        let text = format!("queue {queue}: nothing came at {due} of a queue of {min} to {max}");
        return Some(Finding::new("hole", text, records));
    }
    None
}
