//! Total queue: what was confirmed comes out for every group, and nothing else does.
//!
//! | finding | promise |
//! |---|---|
//! | `lost` | every confirmed send is delivered to each group |
//! | `phantom` | nothing is delivered that was never sent |
//! | `aborted-read` | nothing is delivered whose send certainly failed |
//! | `corrupt` | a delivered body is what was sent |
//! | `resurrected` | no delivery begins after an OK ack of that message and group ended |

use std::collections::{BTreeMap, BTreeSet};

use super::{Delivered, Finding};
use crate::history::record::Call as Values;
use crate::history::{Call, Outcome};

/// One finding per broken promise and message. `drained`: the run read everything back, so absence means loss.
pub fn check(calls: &[Call], deliveries: &[Delivered<'_>], groups: &[String], drained: bool) -> Vec<Finding> {
    let sends = sends(calls);
    let mut findings = strangers(&sends, deliveries);
    if drained {
        findings.extend(groups.iter().flat_map(|group| lost(&sends, deliveries, group)));
    }
    findings.extend(resurrected(calls, deliveries));
    findings
}

fn sends(calls: &[Call]) -> BTreeMap<&str, &Call> {
    calls
        .iter()
        .filter_map(|call| match &call.values {
            Values::Send(send) => Some((send.mid.as_str(), call)),
            _ => None,
        })
        .collect()
}

fn strangers(sends: &BTreeMap<&str, &Call>, deliveries: &[Delivered<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told = BTreeSet::new();
    for delivered in deliveries {
        let mid = delivered.message.mid.as_str();
        let at = delivered.call.invoked;
        let found = if !delivered.message.intact {
            Some(Finding::new("corrupt", format!("the body of {mid} is not what was sent"), [at]))
        } else {
            match sends.get(mid) {
                None => Some(Finding::new("phantom", format!("{mid} was delivered, but never sent"), [at])),
                Some(send) if send.start > delivered.end() => {
                    let text = format!("{mid} was delivered before its send began");
                    Some(Finding::new("phantom", text, [send.invoked, at]))
                }
                Some(send) if send.outcome == Outcome::Fail => {
                    let text = format!("{mid} was delivered, but its send had certainly failed");
                    Some(Finding::new("aborted-read", text, [send.invoked, at]))
                }
                Some(_) => None,
            }
        };
        if let Some(finding) = found
            && told.insert((finding.name, mid))
        {
            findings.push(finding);
        }
    }
    findings
}

fn lost(sends: &BTreeMap<&str, &Call>, deliveries: &[Delivered<'_>], group: &str) -> Vec<Finding> {
    let seen: BTreeSet<&str> =
        deliveries.iter().filter(|d| d.receive.group == group).map(|d| d.message.mid.as_str()).collect();
    let confirmed: Vec<_> = sends.iter().filter(|(_, send)| send.outcome == Outcome::Ok).collect();
    let last_seen = confirmed.iter().filter(|(mid, _)| seen.contains(**mid)).map(|(_, send)| send.end).max();
    let first_seen = confirmed.iter().filter(|(mid, _)| seen.contains(**mid)).map(|(_, send)| send.end).min();
    confirmed
        .iter()
        .filter(|(mid, _)| !seen.contains(**mid))
        .map(|(mid, send)| {
            let place = if first_seen.is_none_or(|first| send.end < first) {
                "before everything that was"
            } else if last_seen.is_some_and(|last| send.end > last) {
                "after everything that was"
            } else {
                "among others that were"
            };
            let text = format!("{mid} was confirmed and never delivered to {group} (sent {place} delivered)");
            Finding::new("lost", text, [send.invoked])
        })
        .collect()
}

fn resurrected(calls: &[Call], deliveries: &[Delivered<'_>]) -> Vec<Finding> {
    let mut settled: BTreeMap<(&str, &str), &Call> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.outcome == Outcome::Ok) {
        if let Values::Ack(ack) = &call.values {
            let first = settled.entry((&ack.group, &ack.mid)).or_insert(call);
            if call.end < first.end {
                *first = call;
            }
        }
    }
    let mut findings = Vec::new();
    for delivered in deliveries {
        let (group, mid) = delivered.key();
        if let Some(ack) = settled.get(&(group, mid))
            && ack.ended_before(delivered.call)
        {
            let text = format!("{mid} was delivered to {group} again after its ack was answered OK");
            findings.push(Finding::new("resurrected", text, [ack.invoked, delivered.call.invoked]));
        }
    }
    findings
}

/// Counts for people: unknown sends that appeared, deliveries that were not the first.
pub fn notes(calls: &[Call], deliveries: &[Delivered<'_>]) -> Vec<String> {
    let seen: BTreeSet<&str> = deliveries.iter().map(|d| d.message.mid.as_str()).collect();
    let unknown: Vec<_> = sends(calls).into_iter().filter(|(_, s)| s.outcome == Outcome::Unknown).collect();
    let appeared = unknown.iter().filter(|(mid, _)| seen.contains(mid)).count();
    let mut first = BTreeSet::new();
    let again = deliveries.iter().filter(|d| !first.insert(d.key())).count();
    vec![
        format!("sends with unknown outcome: {}, of these stored: {appeared}", unknown.len()),
        format!("deliveries: {}, of these repeated: {again}", deliveries.len()),
    ]
}

#[cfg(test)]
mod tests {
    use crate::checker::testing::{Script, names};

    #[test]
    fn sent_delivered_and_settled_is_valid() {
        let mut script = Script::new(&["g", "h"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).acked("g", "a").delivered("h", "a", 0, 0, 1);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn a_confirmed_send_missing_in_one_group_is_lost() {
        let mut script = Script::new(&["g", "h"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1);
        assert_eq!(names(&script), ["lost"]);
        assert!(script.findings()[0].text.contains("never delivered to h"));
    }

    #[test]
    fn losses_say_where_they_lie() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).sent("b", 0, 1).sent("c", 0, 2).delivered("g", "b", 0, 1, 1);
        let texts: Vec<_> = script.findings().into_iter().map(|finding| finding.text).collect();
        assert!(texts[0].contains("before everything"), "{texts:?}");
        assert!(texts[1].contains("after everything"), "{texts:?}");
    }

    #[test]
    fn without_a_drain_nothing_is_called_lost() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).not_drained();
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn an_unknown_send_may_appear_late_or_never() {
        let mut script = Script::new(&["g"]);
        script.send_unknown("a").send_unknown("b").delivered("g", "a", 0, 0, 1);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn a_failed_send_must_not_appear() {
        let mut script = Script::new(&["g"]);
        script.send_failed("a").delivered("g", "a", 0, 0, 1);
        assert_eq!(names(&script), ["aborted-read"]);
    }

    #[test]
    fn a_message_nobody_sent_is_a_phantom() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).delivered("g", "zzz", 0, 1, 1);
        assert_eq!(names(&script), ["phantom"]);
    }

    #[test]
    fn a_delivery_before_its_send_is_a_phantom() {
        let mut script = Script::new(&["g"]);
        script.delivered("g", "a", 0, 0, 1).sent("a", 0, 0);
        assert_eq!(names(&script), ["phantom"]);
    }

    #[test]
    fn a_broken_body_is_corrupt() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).broken_body();
        assert_eq!(names(&script), ["corrupt"]);
    }

    #[test]
    fn an_acked_message_must_not_come_again() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).acked("g", "a");
        script.pause_ms(60_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), ["resurrected"]);
    }

    #[test]
    fn an_ack_of_one_group_says_nothing_about_another() {
        let mut script = Script::new(&["g", "h"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).acked("g", "a").delivered("h", "a", 0, 0, 1);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn a_delivery_concurrent_with_the_ack_is_allowed() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).pause_ms(60_000);
        let open = script.begin_receive("g");
        script.acked("g", "a").end_receive(open, "g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn a_failed_or_unknown_ack_settles_nothing() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).ack_unknown("g", "a").ack_failed("g", "a");
        script.pause_ms(60_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }
}
