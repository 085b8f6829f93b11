//! Deliveries of one message to one group: exclusive in time, counted without gaps or repeats.
//!
//! | finding | promise |
//! |---|---|
//! | `lease-overlap` | a message is not delivered again before its invisible time has passed |
//! | `attempt` | a delivery's attempt number is one more than the deliveries before it |

use std::collections::BTreeMap;

use super::{Delivered, Finding, by_message};
use crate::history::record::Call as Values;
use crate::history::{Call, Outcome};

/// Clocks of different machines run at slightly different speeds.
const SLACK_NS: u64 = 100_000_000;

/// Conservative: only what no interleaving can explain is a finding.
pub fn check(calls: &[Call], deliveries: &[Delivered<'_>]) -> Vec<Finding> {
    let unseen = unseen_receives(calls);
    let mut findings = Vec::new();
    for ((group, mid), list) in by_message(deliveries) {
        for pair in list.windows(2) {
            findings.extend(overlap(group, mid, pair[0], pair[1]));
        }
        let unseen = unseen.get(group).map_or(&[][..], Vec::as_slice);
        findings.extend(attempts(group, mid, &list, unseen));
    }
    findings
}

/// Begins of the receives of each group that may have taken messages that nobody saw: the answer is unknown, or it
/// was cut short.
fn unseen_receives(calls: &[Call]) -> BTreeMap<&str, Vec<u64>> {
    let mut map: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for call in calls {
        if let Values::Receive(receive) = &call.values
            && (call.outcome == Outcome::Unknown || (call.outcome == Outcome::Ok && receive.cut))
        {
            map.entry(&receive.group).or_default().push(call.start);
        }
    }
    map
}

fn overlap(group: &str, mid: &str, first: Delivered<'_>, second: Delivered<'_>) -> Option<Finding> {
    let free = first.call.start.saturating_add(first.receive.invisible_ms * 1_000_000);
    if second.end().saturating_add(SLACK_NS) >= free {
        return None;
    }
    let early = (free - second.end()) / 1_000_000;
    let text =
        format!("{mid} was delivered to {group} again {early} ms before its invisible time could be over");
    Some(Finding::new("lease-overlap", text, [first.call.invoked, second.call.invoked]))
}

fn attempts(group: &str, mid: &str, list: &[Delivered<'_>], unseen: &[u64]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, delivered) in list.iter().enumerate() {
        let attempt = u64::from(delivered.message.attempt);
        let index = delivered.call.invoked;
        let earlier = list[..at].iter().filter(|d| d.call.ended_before(delivered.call));
        let least = 1 + earlier.map(|d| u64::from(d.message.attempt)).max().unwrap_or(0);
        // Anything else known of this message may have come first, and any receive nobody saw the answer of.
        let others = list.len() as u64 - 1;
        let unseen = unseen.iter().filter(|start| **start < delivered.end()).count() as u64;
        let most = 1 + others + unseen;
        if attempt < least || attempt > most {
            let text = format!("{mid} came to {group} as attempt {attempt}; possible were {least} to {most}");
            findings.push(Finding::new("attempt", text, [index]));
        }
        if let Some(same) = list[..at].iter().find(|d| d.message.attempt == delivered.message.attempt)
            && attempt >= least
        {
            let text = format!("{mid} came to {group} twice as attempt {attempt}");
            findings.push(Finding::new("attempt", text, [same.call.invoked, index]));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::checker::testing::{Script, names};

    #[test]
    fn redelivery_after_the_invisible_time_is_valid() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).pause_ms(10_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn redelivery_within_the_invisible_time_overlaps() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).pause_ms(5_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), ["lease-overlap"]);
    }

    #[test]
    fn the_invisible_time_counts_from_the_begin_of_the_call() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0);
        let open = script.begin_receive("g");
        script.pause_ms(9_000).end_receive(open, "g", "a", 0, 0, 1);
        script.pause_ms(2_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn an_attempt_that_starts_again_at_one_is_found() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).pause_ms(20_000).delivered("g", "a", 0, 0, 1);
        assert_eq!(names(&script), ["attempt"]);
    }

    #[test]
    fn a_skipped_attempt_is_found() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 3);
        assert_eq!(names(&script), ["attempt"]);
    }

    #[test]
    fn an_unknown_receive_may_have_used_an_attempt() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).receive_unknown("g").pause_ms(20_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn an_answer_cut_short_may_have_used_an_attempt() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).receive_cut("g").pause_ms(20_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn an_unknown_receive_of_another_group_explains_nothing() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).receive_unknown("h").pause_ms(20_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), ["attempt"]);
    }
}
