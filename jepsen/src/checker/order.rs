//! Places and their order.
//!
//! | finding | promise |
//! |---|---|
//! | `divergence` | a place (queue, offset) names one message, for every group and for ever |
//! | `duplicate-offset` | a message that was sent once lies at one place, the one that the sender was told |
//! | `order` | a send that begins after another was confirmed gets the larger offset of a queue; the first deliveries of a queue rise |

use std::collections::BTreeMap;

use super::{Delivered, Finding};
use crate::history::record::Call as Values;
use crate::history::{Call, Outcome};

/// (queue, offset)
type Place = (u32, u64);

/// Checks places, then the order of sends per queue, then the order of first deliveries per group and queue.
pub fn check(calls: &[Call], deliveries: &[Delivered<'_>]) -> Vec<Finding> {
    let (places, mut findings) = places(deliveries);
    findings.extend(answers(calls, &places));
    findings.extend(send_order(calls, &places));
    findings.extend(delivery_order(deliveries));
    findings
}

fn places<'a>(deliveries: &[Delivered<'a>]) -> (BTreeMap<&'a str, Place>, Vec<Finding>) {
    let mut of_message: BTreeMap<&str, (Place, u64)> = BTreeMap::new();
    let mut of_place: BTreeMap<Place, (&str, u64)> = BTreeMap::new();
    let mut findings = Vec::new();
    for delivered in deliveries.iter().filter(|d| d.message.intact) {
        let mid = delivered.message.mid.as_str();
        let place = (delivered.message.queue, delivered.message.offset);
        let index = delivered.call.invoked;
        let (before, first) = *of_message.entry(mid).or_insert((place, index));
        if before != place {
            let text = format!("{mid} was delivered from {} and from {}", shown(before), shown(place));
            findings.push(Finding::new("duplicate-offset", text, [first, index]));
        }
        let (other, first) = *of_place.entry(place).or_insert((mid, index));
        if other != mid {
            let text = format!("{} held {other} and then {mid}", shown(place));
            findings.push(Finding::new("divergence", text, [first, index]));
        }
    }
    (of_message.into_iter().map(|(mid, (place, _))| (mid, place)).collect(), findings)
}

fn shown((queue, offset): Place) -> String {
    format!("queue {queue} offset {offset}")
}

/// The place told to the sender is the place it was delivered from.
fn answers(calls: &[Call], places: &BTreeMap<&str, Place>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (call, mid, told) in confirmed(calls) {
        let Some(place) = places.get(mid) else { continue };
        if told.1 != place.1 || told.0.is_some_and(|queue| queue != place.0) {
            let text =
                format!("{mid} was confirmed at offset {} and delivered from {}", told.1, shown(*place));
            findings.push(Finding::new("duplicate-offset", text, [call.invoked]));
        }
    }
    findings
}

fn confirmed(calls: &[Call]) -> impl Iterator<Item = (&Call, &str, (Option<u32>, u64))> {
    calls.iter().filter(|call| call.outcome == Outcome::Ok).filter_map(|call| match &call.values {
        Values::Send(send) => send.place.map(|place| (call, send.mid.as_str(), (place.queue, place.offset))),
        _ => None,
    })
}

/// Per queue, walk the sends by begin and keep the largest offset among those that had ended before.
fn send_order(calls: &[Call], places: &BTreeMap<&str, Place>) -> Vec<Finding> {
    let mut queues: BTreeMap<u32, Vec<(&Call, &str, u64)>> = BTreeMap::new();
    for (call, mid, told) in confirmed(calls) {
        if let Some(queue) = told.0.or_else(|| places.get(mid).map(|place| place.0)) {
            queues.entry(queue).or_default().push((call, mid, told.1));
        }
    }
    let mut findings = Vec::new();
    for (queue, sends) in queues {
        let mut ended: Vec<_> = sends.iter().collect();
        ended.sort_by_key(|(call, ..)| call.end);
        let mut ended = ended.into_iter().peekable();
        let mut largest: Option<(&Call, &str, u64)> = None;
        for (call, mid, offset) in &sends {
            while let Some(before) = ended.next_if(|(before, ..)| before.ended_before(call)) {
                if largest.is_none_or(|(_, _, most)| before.2 > most) {
                    largest = Some(*before);
                }
            }
            if let Some((before, other, most)) = largest
                && *offset <= most
            {
                let text = format!(
                    "queue {queue}: {mid} got offset {offset}, but {other}, confirmed before it began, has {most}"
                );
                findings.push(Finding::new("order", text, [before.invoked, call.invoked]));
            }
        }
    }
    findings
}

/// The same walk over first deliveries. Messages of one answer are compared in their order.
fn delivery_order(deliveries: &[Delivered<'_>]) -> Vec<Finding> {
    let mut queues: BTreeMap<(&str, u32), Vec<Delivered<'_>>> = BTreeMap::new();
    for delivered in deliveries.iter().filter(|d| d.message.attempt == 1) {
        queues.entry((&delivered.receive.group, delivered.message.queue)).or_default().push(*delivered);
    }
    let mut findings = Vec::new();
    for ((group, queue), list) in queues {
        for (earlier, later) in falling(&list) {
            let text = format!(
                "queue {queue}, {group}: offset {} was first delivered after offset {}",
                later.message.offset, earlier.message.offset
            );
            findings.push(Finding::new("order", text, [earlier.call.invoked, later.call.invoked]));
        }
    }
    findings
}

/// Pairs of which the second certainly came later and has the smaller offset; the list is in order of begins.
fn falling<'a>(list: &[Delivered<'a>]) -> Vec<(Delivered<'a>, Delivered<'a>)> {
    let mut pairs = Vec::new();
    let mut ended: Vec<_> = list.to_vec();
    ended.sort_by_key(Delivered::end);
    let mut ended = ended.into_iter().peekable();
    let mut largest: Option<Delivered<'_>> = None;
    for (at, delivered) in list.iter().enumerate() {
        while let Some(before) = ended.next_if(|before| before.call.ended_before(delivered.call)) {
            if largest.is_none_or(|most| before.message.offset > most.message.offset) {
                largest = Some(before);
            }
        }
        let before =
            at.checked_sub(1).map(|at| list[at]).filter(|d| d.call.invoked == delivered.call.invoked);
        for earlier in largest.into_iter().chain(before) {
            // The same message again as attempt 1 is a matter of attempts, not of order.
            if delivered.message.offset <= earlier.message.offset
                && delivered.message.mid != earlier.message.mid
            {
                pairs.push((earlier, *delivered));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use crate::checker::testing::{Script, names};

    #[test]
    fn rising_offsets_per_queue_are_valid() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).sent("b", 1, 0).sent("c", 0, 1);
        script.delivered("g", "a", 0, 0, 1).delivered("g", "b", 1, 0, 1).delivered("g", "c", 0, 1, 1);
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn a_later_send_with_a_smaller_offset_is_reordered() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 5).sent("b", 0, 4);
        script.delivered("g", "b", 0, 4, 1).delivered("g", "a", 0, 5, 1);
        assert_eq!(names(&script), ["order"]);
    }

    #[test]
    fn concurrent_sends_may_get_any_order() {
        let mut script = Script::new(&["g"]);
        let first = script.begin_send("a");
        script.sent("b", 0, 4).end_send(first, "a", 0, 5).sent("c", 0, 6);
        for (mid, offset) in [("b", 4), ("a", 5), ("c", 6)] {
            script.delivered("g", mid, 0, offset, 1);
        }
        assert_eq!(names(&script), [""; 0]);
    }

    #[test]
    fn the_queue_of_an_answer_without_one_comes_from_the_delivery() {
        let mut script = Script::new(&["g"]);
        script.sent_somewhere("a", 5).sent_somewhere("b", 4);
        script.delivered("g", "b", 0, 4, 1).delivered("g", "a", 0, 5, 1);
        assert_eq!(names(&script), ["order"]);
    }

    #[test]
    fn two_messages_at_one_place_diverge() {
        let mut script = Script::new(&["g", "h"]);
        script.sent("a", 0, 0).send_unknown("b").delivered("g", "a", 0, 0, 1).delivered("h", "a", 0, 0, 1);
        script.delivered("h", "b", 0, 0, 1);
        assert!(names(&script).contains(&"divergence"));
    }

    #[test]
    fn one_message_at_two_places_was_stored_twice() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 0, 1).pause_ms(20_000).delivered("g", "a", 0, 1, 2);
        assert_eq!(names(&script), ["duplicate-offset"]);
    }

    #[test]
    fn a_sender_that_was_told_another_offset_is_found() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).delivered("g", "a", 0, 7, 1);
        assert_eq!(names(&script), ["duplicate-offset"]);
    }

    #[test]
    fn first_deliveries_rise() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).sent("b", 0, 1).delivered("g", "b", 0, 1, 1).delivered("g", "a", 0, 0, 1);
        assert_eq!(names(&script), ["order"]);
    }

    #[test]
    fn redeliveries_may_come_late() {
        let mut script = Script::new(&["g"]);
        script.sent("a", 0, 0).sent("b", 0, 1).receive_unknown("g").delivered("g", "b", 0, 1, 1);
        script.pause_ms(20_000).delivered("g", "a", 0, 0, 2);
        assert_eq!(names(&script), [""; 0]);
    }
}
