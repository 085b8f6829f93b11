//! Repeated sends: native producers (P14) and send keys (P15).

use mq_protocol::cluster::{MessageResult, ProducerCommand, item_result::Code};
use mq_protocol::command;

use super::*;
use crate::state::{PRODUCER_AGE_MS, PRODUCER_WINDOW, REPEAT_AGE_MS};

fn send(bench: &mut Bench, origin: Origin) -> Result<MessageResult, Code> {
    let result = bench.one(message(1, 1, 0, "", origin));
    match result.code() {
        Code::Ok => Ok(result.message.expect("a place")),
        code => Err(code),
    }
}

fn stored(bench: &mut Bench, origin: Origin) -> MessageResult {
    let place = send(bench, origin).expect("stored");
    assert!(!place.repeat, "{origin:?} is no repeat");
    place
}

fn repeat_of(bench: &mut Bench, origin: Origin, first: MessageResult) {
    let units = bench.effects.units.len();
    let place = send(bench, origin).expect("answered");
    assert_eq!(place, MessageResult { repeat: true, ..first }, "the first one's place");
    assert_eq!(bench.effects.units.len(), units, "nothing is stored");
}

#[test]
fn retry_out_of_order_is_stored_and_its_own_retry_is_a_repeat() {
    // RB-141: 4 and 5 outstanding, the first try of 4 was lost.
    let mut bench = Bench::with_topic_and_group();
    let five = stored(&mut bench, native(7, 1, 4, 5));
    let four = stored(&mut bench, native(7, 1, 4, 4));
    assert!(four.queue_offset > five.queue_offset);
    repeat_of(&mut bench, native(7, 1, 4, 4), four);
    repeat_of(&mut bench, native(7, 1, 4, 5), five);
    bench.restart();
    repeat_of(&mut bench, native(7, 1, 4, 4), four);
    stored(&mut bench, native(7, 1, 6, 6));
    assert_eq!(send(&mut bench, native(7, 1, 6, 5)), Err(Code::BelowFloor));
    bench.restart();
    assert_eq!(send(&mut bench, native(7, 1, 0, 5)), Err(Code::BelowFloor), "the floor never falls");
}

#[test]
fn producers_do_not_see_each_other() {
    let mut bench = Bench::with_topic_and_group();
    let first = stored(&mut bench, native(7, 1, 0, 0));
    stored(&mut bench, native(8, 1, 0, 0));
    repeat_of(&mut bench, native(7, 1, 0, 0), first);
    assert_eq!(send(&mut bench, native(0, 1, 0, 0)), Err(Code::Invalid), "id 0 is nobody");
}

#[test]
fn repeat_inside_one_frame_is_recognised() {
    let mut bench = Bench::with_topic_and_group();
    for origin in [native(7, 1, 0, 0), Origin::SendKey([3; 16])] {
        let item = message(1, 1, 0, "", origin);
        let results = bench.frame(&[item.clone(), item]);
        let [first, second] = [&results[0], &results[1]].map(|result| result.message.expect("a place"));
        assert_eq!(second, MessageResult { repeat: true, ..first });
    }
}

#[test]
fn window_above_the_floor_is_bounded() {
    let mut bench = Bench::with_topic_and_group();
    stored(&mut bench, native(7, 1, 10, 10 + PRODUCER_WINDOW - 1));
    assert_eq!(send(&mut bench, native(7, 1, 10, 10 + PRODUCER_WINDOW)), Err(Code::SequenceTooFar));
    assert_eq!(send(&mut bench, native(7, 1, 10, u64::MAX)), Err(Code::SequenceTooFar));
    stored(&mut bench, native(7, 1, 11, 10 + PRODUCER_WINDOW));
}

#[test]
fn higher_epoch_takes_over_and_clears_the_results() {
    let mut bench = Bench::with_topic_and_group();
    let first = stored(&mut bench, native(7, 1, 0, 0));
    let open = |epoch| item(command::PRODUCER, &ProducerCommand { producer_id: 7, epoch });
    assert_eq!(bench.one(open(1)).code(), Code::Ok, "the present one");
    repeat_of(&mut bench, native(7, 1, 0, 0), first);
    assert_eq!(bench.one(open(2)).code(), Code::Ok);
    bench.restart();
    assert_eq!(send(&mut bench, native(7, 1, 0, 1)), Err(Code::OlderEpoch));
    assert_eq!(bench.one(open(1)).code(), Code::OlderEpoch);
    let second = stored(&mut bench, native(7, 2, 0, 0));
    assert_ne!(second.queue_offset, first.queue_offset);
    // A message may open an epoch, too.
    stored(&mut bench, native(7, 3, 0, 0));
    assert_eq!(send(&mut bench, native(7, 2, 0, 0)), Err(Code::OlderEpoch));
}

#[test]
fn results_below_the_floor_leave_the_store() {
    let mut bench = Bench::with_topic_and_group();
    let items: Vec<_> = (0..4).map(|sequence| message(1, 1, 0, "", native(7, 1, 0, sequence))).collect();
    bench.frame(&items);
    stored(&mut bench, native(7, 1, 3, 4));
    let kept = |bench: &Bench| dump(&*bench.state).iter().filter(|(family, ..)| *family == 6).count();
    assert_eq!(kept(&bench), 2, "the first frame still holds 3");
    stored(&mut bench, native(7, 1, 5, 5));
    assert_eq!(kept(&bench), 1);
    // A floor that rises inside a frame drops what the frame itself stored.
    bench.frame(&[message(1, 1, 0, "", native(7, 1, 5, 6)), message(1, 1, 0, "", native(7, 1, 8, 8))]);
    bench.restart();
    assert_eq!(send(&mut bench, native(7, 1, 0, 6)), Err(Code::BelowFloor));
}

#[test]
fn unused_producers_are_forgotten_the_oldest_first() {
    let mut bench = Bench::with_topic_and_group();
    let known = |bench: &Bench| -> Vec<u64> {
        let all = dump(&*bench.state).into_iter().filter(|(family, ..)| *family == 5);
        all.map(|(_, key, _)| u64::from_be_bytes(key.try_into().expect("8 bytes"))).collect()
    };
    for id in [5, 9, 2] {
        stored(&mut bench, native(id, 1, 0, 0));
    }
    repeat_of_any(&mut bench, 5);
    stored(&mut bench, native(4, 1, 0, 0));
    assert_eq!(known(&bench), [2, 4, 5], "9 was used longest ago; three are kept here");
    bench.restart();
    bench.lease += PRODUCER_AGE_MS;
    stored(&mut bench, native(4, 1, 0, 1));
    assert_eq!(known(&bench), [4], "24 hours of lease time");
    let results = dump(&*bench.state).iter().filter(|(family, ..)| *family == 6).count();
    assert_eq!(results, 1, "results go with their producer");
}

fn repeat_of_any(bench: &mut Bench, id: u64) {
    assert!(send(bench, native(id, 1, 0, 0)).expect("answered").repeat);
}

#[test]
fn retry_of_an_unchanged_client_is_stored_once() {
    // RB-139
    let mut bench = Bench::with_topic_and_group();
    let key = Origin::SendKey([1; 16]);
    let first = stored(&mut bench, key);
    stored(&mut bench, Origin::Anonymous);
    repeat_of(&mut bench, key, first);
    bench.restart();
    repeat_of(&mut bench, key, first);
}

#[test]
fn keys_that_only_begin_alike_are_both_stored() {
    // RB-140
    let mut bench = Bench::with_topic_and_group();
    let (one, mut other) = ([9; 16], [9; 16]);
    other[15] = 8;
    stored(&mut bench, Origin::SendKey(one));
    let second = stored(&mut bench, Origin::SendKey(other));
    repeat_of(&mut bench, Origin::SendKey(other), second);
    stored(&mut bench, Origin::Anonymous);
    stored(&mut bench, Origin::Anonymous);
}

#[test]
fn send_is_remembered_for_two_minutes_of_lease_time() {
    let mut bench = Bench::with_topic_and_group();
    let key = Origin::SendKey([1; 16]);
    let first = stored(&mut bench, key);
    let at = bench.lease;
    bench.lease = at + REPEAT_AGE_MS - 1;
    repeat_of(&mut bench, key, first);
    stored(&mut bench, key);
    assert_eq!(dump(&*bench.state).iter().filter(|(family, ..)| *family == 7).count(), 1);
}

#[test]
fn last_sends_are_remembered_up_to_their_number() {
    let mut bench = Bench::with_topic_and_group();
    let key = |number: u8| {
        let mut key = [0; 16];
        key[0] = number;
        Origin::SendKey(key)
    };
    let places: Vec<_> = (0..11).map(|number| stored(&mut bench, key(number))).collect();
    bench.restart();
    for number in 1..11 {
        repeat_of(&mut bench, key(number), places[usize::from(number)]);
    }
    stored(&mut bench, key(0));
    assert_eq!(dump(&*bench.state).iter().filter(|(family, ..)| *family == 7).count(), 10);
}

#[test]
fn only_stored_sends_are_remembered() {
    let mut bench = Bench::with_topic_and_group();
    let key = Origin::SendKey([1; 16]);
    assert_eq!(bench.one(message(1, 1, 9, "", key)).code(), Code::UnknownTopic);
    stored(&mut bench, key);
    assert_eq!(bench.one(message(1, 1, 9, "", native(7, 1, 0, 0))).code(), Code::UnknownTopic);
    stored(&mut bench, native(7, 1, 0, 0));
}

#[test]
fn other_topics_keep_their_sends_when_one_is_deleted() {
    let mut bench = Bench::with_topic_and_group();
    bench.one(put_topic("u", Some(1)));
    let (here, there) = (Origin::SendKey([1; 16]), Origin::SendKey([2; 16]));
    let results = bench.frame(&[message(1, 1, 0, "", here), message(2, 1, 0, "", there)]);
    let kept = results[1].message.expect("stored");
    bench.one(delete_topic("t"));
    for restarted in [false, true] {
        if restarted {
            bench.restart();
        }
        let again = bench.one(message(2, 1, 0, "", there)).message.expect("answered");
        assert_eq!(again, MessageResult { repeat: true, ..kept }, "restarted: {restarted}");
    }
}
