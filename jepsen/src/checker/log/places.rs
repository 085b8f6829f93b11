//! What lies where: one message and one store time per place, one place per message, nothing that was not sent.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::{Answer, Place, Sent, shown};
use crate::checker::Finding;
use crate::history::record::{Call as Values, Seen};
use crate::history::{Call, Outcome};

/// What the first witness of a place said.
struct Held<'a> {
    mid: &'a str,
    store_time: Option<u64>,
    record: u64,
}

/// Places by message, and what contradicts them.
pub(super) fn check<'a>(
    calls: &'a [Call],
    answers: &[Answer<'a>],
    sends: &[Sent<'a>],
) -> (BTreeMap<&'a str, Place>, Vec<Finding>) {
    let mut findings = strangers(calls, answers);
    let mut table = Table::default();
    // A sender is a witness of its place like any reader.
    for sent in sends {
        if let Some((Some(queue), offset)) = sent.told {
            table.add((queue, offset), sent.mid, None, sent.call.invoked);
        }
    }
    for answer in answers {
        for (place, seen) in answer.seen().filter(|(_, seen)| seen.intact) {
            table.add(place, &seen.mid, Some(seen.store_time), answer.call.invoked);
        }
    }
    findings.extend(table.store_times());
    for sent in sends {
        if let (Some((None, offset)), Some(place)) = (sent.told, table.of_message.get(sent.mid))
            && place.0.1 != offset
        {
            let text =
                format!("{} was confirmed at offset {offset} and lies at {}", sent.mid, shown(place.0));
            findings.push(Finding::new("duplicate-offset", text, [sent.call.invoked, place.1]));
        }
    }
    findings.extend(table.findings);
    (table.of_message.into_iter().map(|(mid, (place, _))| (mid, place)).collect(), findings)
}

#[derive(Default)]
struct Table<'a> {
    of_message: BTreeMap<&'a str, (Place, u64)>,
    of_place: BTreeMap<Place, Held<'a>>,
    /// (name, message) that were reported already: a wrong place is seen by every scan.
    told: BTreeSet<(&'static str, &'a str)>,
    findings: Vec<Finding>,
}

impl<'a> Table<'a> {
    fn add(&mut self, place: Place, mid: &'a str, store_time: Option<u64>, record: u64) {
        let (before, first) = *self.of_message.entry(mid).or_insert((place, record));
        if before != place {
            let text = format!("{mid} lies at {} and at {}", shown(before), shown(place));
            self.find("duplicate-offset", mid, text, [first, record]);
        }
        let held = match self.of_place.entry(place) {
            Entry::Vacant(free) => {
                free.insert(Held { mid, store_time, record });
                return;
            }
            Entry::Occupied(held) => held.into_mut(),
        };
        let (other, first, time) = (held.mid, held.record, held.store_time);
        held.store_time = time.or(store_time);
        if other != mid {
            let text = format!("{} holds {other} for one and {mid} for another", shown(place));
            self.find("divergence", mid, text, [first, record]);
        } else if let (Some(one), Some(two)) = (time, store_time)
            && one != two
        {
            let text =
                format!("{mid} at {} was stored at {one} for one and at {two} for another", shown(place));
            self.find("divergence", mid, text, [first, record]);
        }
    }

    fn find(&mut self, name: &'static str, mid: &'a str, text: String, records: [u64; 2]) {
        if self.told.insert((name, mid)) {
            self.findings.push(Finding::new(name, text, records));
        }
    }

    /// The walk goes by offset, so neighbours in the map are neighbours in the queue.
    fn store_times(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut newest: Option<(Place, u64, u64)> = None;
        for (place, held) in &self.of_place {
            let Some(time) = held.store_time else { continue };
            if let Some((before, most, record)) = newest.filter(|(before, ..)| before.0 == place.0)
                && time < most
            {
                let text =
                    format!("{} was stored at {time}, {} before it at {most}", shown(*place), shown(before));
                findings.push(Finding::new("store-time", text, [record, held.record]));
                continue;
            }
            newest = Some((*place, time, held.record));
        }
        findings
    }
}

fn strangers<'a>(calls: &'a [Call], answers: &[Answer<'a>]) -> Vec<Finding> {
    let sends: BTreeMap<&str, &Call> = calls
        .iter()
        .filter_map(|call| match &call.values {
            Values::Send(send) => Some((send.mid.as_str(), call)),
            _ => None,
        })
        .collect();
    let mut told = BTreeSet::new();
    let mut findings = Vec::new();
    for answer in answers {
        for (place, seen) in answer.seen() {
            if let Some((name, text, send)) = stranger(&sends, answer, place, seen)
                && told.insert((name, place))
            {
                let records: Vec<u64> = send.into_iter().chain([answer.call.invoked]).collect();
                findings.push(Finding::new(name, text, records));
            }
        }
    }
    findings
}

fn stranger(
    sends: &BTreeMap<&str, &Call>,
    answer: &Answer<'_>,
    place: Place,
    seen: &Seen,
) -> Option<(&'static str, String, Option<u64>)> {
    let mid = seen.mid.as_str();
    if !seen.intact {
        return Some((
            "corrupt",
            format!("the body of {mid} at {} is not what was sent", shown(place)),
            None,
        ));
    }
    let Some(send) = sends.get(mid) else {
        return Some(("phantom", format!("{mid} lies at {}, but was never sent", shown(place)), None));
    };
    if answer.call.ended_before(send) {
        let text = format!("{mid} was read from {} before its send began", shown(place));
        return Some(("phantom", text, Some(send.invoked)));
    }
    if send.outcome == Outcome::Fail {
        let text = format!("{mid} lies at {}, but its send had certainly failed", shown(place));
        return Some(("aborted-read", text, Some(send.invoked)));
    }
    None
}
