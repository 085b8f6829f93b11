//! Deliver, ack, change of the invisible time, and clients that go away.

use mq_protocol::cluster::{ClientGoneCommand, DeliverCommand, QueueRef, Redelivery, item_result::Code};
use mq_protocol::command;

use super::*;
use crate::state::MAX_IN_FLIGHT_PER_QUEUE;
use crate::state::delivery::InFlight;
use crate::state::keys::{GroupRef, ProgressKey};

fn key() -> ProgressKey {
    ProgressKey { group: GroupRef { id: 1, incarnation: 1 }, queue: queue_id(0) }
}

fn cursor(bench: &Bench) -> u64 {
    bench.machine.deliveries.lock().progress(&key()).map_or(0, |progress| progress.cursor)
}

fn held(bench: &Bench, position: u64) -> Option<InFlight> {
    let deliveries = bench.machine.deliveries.lock();
    deliveries.progress(&key()).and_then(|progress| progress.in_flight.get(&position).cloned())
}

fn delivered(bench: &mut Bench, command: DeliverCommand) -> ItemResult {
    bench.one(item(command::DELIVER, &command))
}

fn codes(result: &ItemResult) -> Vec<Code> {
    let codes = &result.ack.as_ref().expect("an ack").codes;
    codes.iter().map(|code| Code::try_from(*code as i32).expect("a known code")).collect()
}

fn again(position: u64, attempt: u32, previous_deliver_index: u64) -> Redelivery {
    Redelivery { position, attempt, previous_deliver_index }
}

#[test]
fn deliver_takes_positions_and_passes_over_others() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(5, 0);
    let result = delivered(&mut bench, deliver(0, 4, &[1, 3], &[]));
    let answer = result.deliver.expect("accepted");
    assert_eq!((answer.taken, answer.moved, cursor(&bench)), (vec![1, 3], true, 4));
    let entry = held(&bench, 3).expect("in flight");
    assert_eq!((entry.deliver_index, entry.attempt), (result.index, 1));
    assert_eq!(entry.invisible_end, result.lease_time + 1_000);
    assert!(held(&bench, 0).is_none() && held(&bench, 2).is_none(), "passed over for good");
    bench.restart();
    assert_eq!((cursor(&bench), held(&bench, 3)), (4, Some(entry)), "survives a restart");
}

#[test]
fn what_is_no_longer_free_is_rejected_and_changes_nothing() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(5, 0);
    assert_eq!(delivered(&mut bench, deliver(0, 2, &[0, 1], &[])).code(), Code::Ok);
    let before = dump(&*bench.state);
    // The same again, one that starts too far, and one from a stale cursor.
    for (from, to, taken) in [(0, 2, vec![0, 1]), (3, 4, vec![3]), (1, 3, vec![2])] {
        let result = delivered(&mut bench, deliver(from, to, &taken, &[]));
        assert_eq!(result.code(), Code::Rejected, "{from} {to}");
    }
    assert_eq!(dump(&*bench.state), before);
}

#[test]
fn senseless_deliveries_are_invalid() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(3, 0);
    let before = dump(&*bench.state);
    let bad = [
        deliver(0, 4, &[0], &[]),
        deliver(0, 2, &[1, 0], &[]),
        deliver(0, 2, &[0, 0], &[]),
        deliver(0, 2, &[2], &[]),
        deliver(1, 2, &[0], &[]),
        deliver(2, 1, &[], &[]),
        DeliverCommand { queue: None, ..deliver(0, 1, &[0], &[]) },
    ];
    for command in bad {
        assert_eq!(delivered(&mut bench, command.clone()).code(), Code::Invalid, "{command:?}");
    }
    let elsewhere = |topic_id, incarnation, queue| DeliverCommand {
        queue: Some(QueueRef { topic_id, incarnation, queue }),
        ..deliver(0, 1, &[0], &[])
    };
    for command in [elsewhere(9, 1, 0), elsewhere(1, 2, 0), elsewhere(1, 1, 2)] {
        assert_eq!(delivered(&mut bench, command).code(), Code::UnknownTopic);
    }
    for (group_id, group_incarnation) in [(0, 1), (2, 1), (1, 2)] {
        let command = DeliverCommand { group_id, group_incarnation, ..deliver(0, 1, &[0], &[]) };
        assert_eq!(delivered(&mut bench, command).code(), Code::UnknownGroup);
    }
    assert_eq!(dump(&*bench.state), before);
}

#[test]
fn expired_delivery_comes_again_at_its_place_with_the_next_attempt() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(3, 0);
    let first = delivered(&mut bench, deliver(0, 2, &[0, 1], &[]));
    let retry = deliver(0, 0, &[], &[again(0, 2, first.index)]);
    assert_eq!(delivered(&mut bench, retry.clone()).code(), Code::Rejected, "still invisible");
    bench.lease = first.lease_time + 998;
    assert_eq!(delivered(&mut bench, retry.clone()).code(), Code::Rejected, "one ms too early");
    let second = delivered(&mut bench, retry.clone());
    assert_eq!(second.code(), Code::Ok, "at its end");
    assert_eq!(second.deliver.as_ref().expect("accepted").again, retry.again);
    assert!(!second.deliver.expect("accepted").moved);
    let entry = held(&bench, 0).expect("in flight");
    assert_eq!((entry.attempt, entry.deliver_index), (2, second.index));
    assert_eq!(delivered(&mut bench, retry).code(), Code::Rejected, "handed out once");
    assert_eq!(cursor(&bench), 2);
}

#[test]
fn retries_stand_for_themselves_and_beside_new_positions() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(4, 0);
    let first = delivered(&mut bench, deliver(0, 3, &[0, 1, 2], &[]));
    bench.lease += 2_000;
    let mixed = [
        again(0, 2, first.index),
        again(1, 3, first.index),
        again(2, 2, first.index + 1),
        again(9, 2, first.index),
    ];
    // The cursor is wrong, too: only the right retry is accepted.
    let result = delivered(&mut bench, deliver(0, 4, &[3], &mixed)).deliver.expect("accepted");
    assert_eq!((result.again, result.taken, result.moved), (vec![mixed[0]], vec![], false));
    let result = delivered(&mut bench, deliver(3, 4, &[3], &[again(1, 2, first.index)]));
    let result = result.deliver.expect("accepted");
    assert_eq!((result.again.len(), result.taken, result.moved), (1, vec![3], true));
}

#[test]
fn ack_settles_only_the_delivery_that_it_names() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(4, 0);
    let first = delivered(&mut bench, deliver(0, 3, &[0, 1], &[]));
    let positions = [(0, first.index), (1, first.index + 1), (2, first.index), (3, first.index)];
    let result = bench.one(ack(&positions));
    let expected = [Code::Ok, Code::HandleExpired, Code::Ok, Code::HandleExpired];
    assert_eq!(codes(&result), expected, "acked, other delivery, passed over before, never handed out");
    assert!(held(&bench, 0).is_none() && held(&bench, 1).is_some());
    assert_eq!(codes(&bench.one(ack(&[(0, first.index)]))), [Code::Ok], "again: still OK");
    bench.restart();
    assert_eq!(codes(&bench.one(ack(&[(0, first.index)]))), [Code::Ok], "after a restart, too");
}

#[test]
fn ack_after_the_invisible_time_is_refused_and_settles_nothing() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(1, 0);
    let first = delivered(&mut bench, deliver(0, 1, &[0], &[]));
    bench.lease = first.lease_time + 999;
    assert_eq!(codes(&bench.one(ack(&[(0, first.index)]))), [Code::HandleExpired], "at its end");
    let second = delivered(&mut bench, deliver(1, 1, &[], &[again(0, 2, first.index)]));
    assert_eq!(second.code(), Code::Ok);
    assert_eq!(codes(&bench.one(ack(&[(0, first.index)]))), [Code::HandleExpired], "a later delivery");
    assert!(held(&bench, 0).is_some());
    bench.lease = second.lease_time + 998;
    assert_eq!(codes(&bench.one(ack(&[(0, second.index)]))), [Code::Ok], "one ms before the end");
}

#[test]
fn change_makes_a_new_handle_and_no_attempt() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(1, 0);
    let first = delivered(&mut bench, deliver(0, 1, &[0], &[]));
    let changed = bench.one(item(command::CHANGE_INVISIBLE, &change(0, first.index, 5_000)));
    assert_eq!(changed.code(), Code::Ok);
    let entry = held(&bench, 0).expect("in flight");
    assert_eq!((entry.deliver_index, entry.attempt), (changed.index, 1));
    assert_eq!(entry.invisible_end, changed.lease_time + 5_000);
    assert_eq!(codes(&bench.one(ack(&[(0, first.index)]))), [Code::HandleExpired], "the old handle");
    let stale = bench.one(item(command::CHANGE_INVISIBLE, &change(0, first.index, 0)));
    assert_eq!(stale.code(), Code::HandleExpired);
    let due = bench.machine.deliveries.lock().progress(&key()).map(|progress| progress.due.len());
    assert_eq!(due, Some(1), "one pending redelivery");
    // To 0: visible at once, and no longer acknowledgeable.
    let zero = bench.one(item(command::CHANGE_INVISIBLE, &change(0, changed.index, 0)));
    assert_eq!(codes(&bench.one(ack(&[(0, zero.index)]))), [Code::HandleExpired]);
    let retry = delivered(&mut bench, deliver(1, 1, &[], &[again(0, 2, zero.index)]));
    assert_eq!(retry.code(), Code::Ok);
    assert_eq!(held(&bench, 0).expect("in flight").attempt, 2);
}

#[test]
fn renewal_keeps_the_handle() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(1, 0);
    let first = delivered(&mut bench, deliver(0, 1, &[0], &[]));
    let renewal = ChangeInvisibleCommand { renewal: true, ..change(0, first.index, 9_000) };
    assert_eq!(bench.one(item(command::CHANGE_INVISIBLE, &renewal)).code(), Code::Ok);
    bench.lease += 5_000;
    assert_eq!(codes(&bench.one(ack(&[(0, first.index)]))), [Code::Ok]);
    let settled = bench.one(item(command::CHANGE_INVISIBLE, &change(0, first.index, 1)));
    assert_eq!(settled.code(), Code::HandleExpired, "a settled position has no invisible time");
}

#[test]
fn client_that_goes_away_gives_back_what_would_be_renewed() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(4, 0);
    let renewed = |from, client: &str| DeliverCommand {
        auto_renew: true,
        invisible_ms: 60_000,
        client_id: client.to_owned(),
        ..deliver(from, from + 1, &[from], &[])
    };
    for command in [renewed(0, "gone"), renewed(1, "stays"), deliver(2, 3, &[2], &[]), renewed(3, "gone")] {
        assert_eq!(delivered(&mut bench, command).code(), Code::Ok);
    }
    bench.restart();
    let gone = ClientGoneCommand { client_id: "gone".to_owned(), invisible_ms: 1_000 };
    let result = bench.one(item(command::CLIENT_GONE, &gone));
    assert_eq!(result.code(), Code::Ok);
    let end = |position| held(&bench, position).expect("in flight").invisible_end;
    assert_eq!([end(0), end(3)], [result.lease_time + 1_000; 2]);
    assert!(end(1) > result.lease_time + 50_000, "another client's");
    let before = dump(&*bench.state);
    bench.lease += 100;
    bench.one(item(command::CLIENT_GONE, &gone));
    assert_eq!(dump(&*bench.state), before, "never prolonged");
}

#[test]
fn too_many_in_flight_are_refused() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(MAX_IN_FLIGHT_PER_QUEUE as usize + 1, 0);
    let all: Vec<u64> = (0..=MAX_IN_FLIGHT_PER_QUEUE).collect();
    let result = delivered(&mut bench, deliver(0, all.len() as u64, &all, &[]));
    assert_eq!((result.code(), cursor(&bench)), (Code::InFlightLimit, 0));
    let most = &all[..MAX_IN_FLIGHT_PER_QUEUE as usize];
    let first = delivered(&mut bench, deliver(0, MAX_IN_FLIGHT_PER_QUEUE, most, &[]));
    assert_eq!(first.code(), Code::Ok);
    let one_more =
        deliver(MAX_IN_FLIGHT_PER_QUEUE, MAX_IN_FLIGHT_PER_QUEUE + 1, &[MAX_IN_FLIGHT_PER_QUEUE], &[]);
    assert_eq!(delivered(&mut bench, one_more.clone()).code(), Code::InFlightLimit);
    assert_eq!(codes(&bench.one(ack(&[(5, first.index)]))), [Code::Ok]);
    assert_eq!(delivered(&mut bench, one_more).code(), Code::Ok, "an ack makes room");
}

#[test]
fn deleted_group_begins_anew() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(2, 0);
    let first = delivered(&mut bench, deliver(0, 2, &[0, 1], &[]));
    bench.one(delete_group("g"));
    assert_eq!(bench.machine.deliveries.lock().total(), 0);
    assert_eq!(bench.one(ack(&[(0, first.index)])).code(), Code::UnknownGroup);
    bench.one(put_group("g"));
    let command = DeliverCommand { group_incarnation: 2, ..deliver(0, 2, &[0, 1], &[]) };
    assert_eq!(delivered(&mut bench, command).code(), Code::Ok, "from the queue's minimum");
}
