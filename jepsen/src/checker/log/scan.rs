//! The final scans: every queue from its min to its max, through each node as leader.

use std::collections::{BTreeMap, BTreeSet};

use super::{Answer, Sent};
use crate::checker::Finding;

/// All that one scan of one queue saw.
struct Scan<'a> {
    /// When its first pull began.
    start: u64,
    record: u64,
    min: u64,
    /// End of what it read, and the max offset of its last answer.
    next: u64,
    max: u64,
    mids: BTreeSet<&'a str>,
}

impl Scan<'_> {
    fn complete(&self) -> bool {
        self.next >= self.max
    }
}

fn scans<'a>(answers: &[Answer<'a>]) -> BTreeMap<(&'a str, u32), Scan<'a>> {
    let mut scans: BTreeMap<(&str, u32), Scan<'_>> = BTreeMap::new();
    for answer in answers {
        let Some(node) = answer.pull.scan.as_deref() else { continue };
        let scan = scans.entry((node, answer.pull.queue)).or_insert(Scan {
            start: answer.call.start,
            record: answer.call.invoked,
            min: answer.pulled.min,
            next: 0,
            max: 0,
            mids: BTreeSet::new(),
        });
        // What retention takes away during the scan is no loss.
        scan.min = scan.min.max(answer.pulled.min);
        scan.next = scan.next.max(answer.next());
        scan.max = answer.pulled.max;
        scan.mids.extend(answer.seen().map(|(_, seen)| seen.mid.as_str()));
    }
    scans
}

/// One finding per message, naming the first leader that does not have it.
pub(super) fn lost(answers: &[Answer<'_>], sends: &[Sent<'_>]) -> Vec<Finding> {
    let scans = scans(answers);
    let mut findings = Vec::new();
    for sent in sends {
        let Some((Some(queue), offset)) = sent.told else { continue };
        let lacking = scans.iter().find(|((_, of), scan)| {
            let reached = scan.complete() || offset < scan.next;
            let due = sent.call.end.is_some_and(|end| end < scan.start) && offset >= scan.min;
            *of == queue && due && reached && !scan.mids.contains(sent.mid)
        });
        if let Some(((node, _), scan)) = lacking {
            let text =
                format!("{} was confirmed at queue {queue} offset {offset} and is not on {node}", sent.mid);
            findings.push(Finding::new("lost", text, [sent.call.invoked, scan.record]));
        }
    }
    findings
}

/// Every queue that holds a confirmed send must be read to its end through every node of the list.
pub(super) fn missing(answers: &[Answer<'_>], sends: &[Sent<'_>], nodes: &[String]) -> Vec<String> {
    let scans = scans(answers);
    let queues: BTreeSet<u32> = sends.iter().filter_map(|sent| sent.told?.0).collect();
    let mut missing = Vec::new();
    if nodes.is_empty() {
        missing.push("no node was to be scanned: losses cannot be excluded".to_owned());
    }
    for node in nodes {
        for queue in &queues {
            match scans.get(&(node.as_str(), *queue)) {
                None => missing.push(format!("queue {queue} was not scanned through {node}")),
                Some(scan) if !scan.complete() => {
                    let (next, max) = (scan.next, scan.max);
                    missing
                        .push(format!("the scan of queue {queue} through {node} ended at {next} of {max}"));
                }
                Some(_) => {}
            }
        }
    }
    // A send that was confirmed without its queue is in no scan's account.
    let nowhere = sends.iter().filter(|sent| matches!(sent.told, Some((None, _)))).count();
    if nowhere > 0 {
        missing.push(format!("{nowhere} confirmed sends do not say in which queue"));
    }
    missing
}
