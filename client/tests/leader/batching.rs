//! Many sends at the same time share requests; each still has its own number and its own outcome.

use std::time::Duration;

use crate::standin::{Standin, Step, TOPIC};
use mq_client::{Message, NotStored, SendError};

fn message(body: impl Into<String>) -> Message {
    Message::new(TOPIC, body.into())
}

/// Sends at the same time, in this order.
async fn send_all(
    producer: &mq_client::Producer,
    bodies: impl IntoIterator<Item = String>,
) -> Vec<Result<mq_client::SendReceipt, SendError>> {
    futures::future::join_all(bodies.into_iter().map(|body| producer.send(message(body)))).await
}

/// The first send is held and takes the only request slot; the others wait meanwhile and share the next request.
async fn send_behind_the_first(
    standin: &Standin,
    producer: &mq_client::Producer,
) -> Vec<Result<mq_client::SendReceipt, SendError>> {
    standin.state.lock().script.push_front(Step::Held);
    let first = producer.send(message("m0"));
    let others = async {
        standin.arrived(1).await;
        let others = send_all(producer, bodies(4).into_iter().skip(1));
        tokio::pin!(others);
        assert!(futures::poll!(&mut others).is_pending(), "all of them wait in the lane now");
        standin.release();
        others.await
    };
    let (first, others) = tokio::join!(first, others);
    std::iter::once(first).chain(others).collect()
}

fn bodies(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("m{i}")).collect()
}

#[tokio::test]
async fn waiting_messages_share_requests_and_keep_their_own_receipts() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(2).build().expect("settings");
    let outcomes = send_all(&producer, bodies(1_000)).await;
    let log = standin.log();
    assert_eq!(log.len(), 1_000);
    for (place, outcome) in outcomes.into_iter().enumerate() {
        let offset = usize::try_from(outcome.expect("stored").offset).expect("small");
        assert_eq!(log[offset], format!("m{place}"));
    }
    let seen = standin.seen();
    assert!(seen.len() < 60, "{} requests for 1,000 messages", seen.len());
    let mut numbered = vec![0; 1_001];
    for seen in &seen {
        assert!(seen.bodies.len() <= 256);
        assert!(seen.numbers.floor <= seen.numbers.first_sequence);
        assert!(seen.sequences().end <= seen.numbers.floor + 1_024);
        seen.sequences().for_each(|sequence| numbered[usize::try_from(sequence).expect("small")] += 1);
    }
    assert!(numbered[1..].iter().all(|times| *times == 1), "each sequence once, none left out");
}

#[tokio::test]
async fn queues_take_turns_and_the_receipt_names_the_one_that_was_asked_for() {
    let standin = Standin::start();
    let producer = standin.client().producer().build().expect("settings");
    let mut queues = Vec::new();
    for body in bodies(8) {
        queues.push(producer.send(message(body)).await.expect("stored").queue.expect("chosen"));
    }
    assert_eq!(queues, [0, 1, 2, 3, 0, 1, 2, 3]);
    let asked: Vec<_> = standin.seen().iter().flat_map(|seen| seen.queues.clone()).collect();
    assert_eq!(asked, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[tokio::test]
async fn big_bodies_do_not_share_more_than_a_request_holds() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(1).build().expect("settings");
    let big: Vec<String> = (0..6).map(|i| format!("{i}{}", "x".repeat(100 * 1024))).collect();
    assert!(send_all(&producer, big).await.iter().all(Result::is_ok));
    assert!(standin.seen().iter().all(|seen| seen.bodies.len() <= 2));
}

#[tokio::test]
async fn the_floor_stays_at_what_is_still_outstanding() {
    let standin = Standin::start();
    let producer = standin.client().producer().build().expect("settings");
    standin.script([Step::Held]);
    let slow = producer.send(message("slow"));
    let others = async {
        standin.arrived(1).await;
        for body in bodies(5) {
            producer.send(message(body)).await.expect("stored");
        }
        standin.release();
    };
    let (slow, ()) = tokio::join!(slow, others);
    slow.expect("stored");
    producer.send(message("last")).await.expect("stored");
    let seen = standin.seen();
    assert!(seen[..6].iter().all(|seen| seen.numbers.floor == 1), "sequence 1 was outstanding");
    assert_eq!(seen[6].numbers.floor, 7);
}

#[tokio::test]
async fn no_more_than_1024_sequences_are_outstanding() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(16).build().expect("settings");
    // The first request hangs until the others have used up the window.
    standin.script([Step::Slow(Duration::from_millis(300))]);
    let outcomes = send_all(&producer, bodies(3_000)).await;
    assert!(outcomes.iter().all(Result::is_ok));
    for seen in standin.seen() {
        assert!(seen.sequences().end <= seen.numbers.floor + 1_024, "{:?}", seen.numbers);
    }
}

#[tokio::test]
async fn one_refused_message_does_not_take_its_neighbours_along() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(1).build().expect("settings");
    standin.script([Step::RefuseSecond(43_101)]);
    let outcomes = send_behind_the_first(&standin, &producer).await;
    let refused: Vec<_> = outcomes.iter().map(Result::is_err).collect();
    assert_eq!(refused, [false, false, true, false]);
    assert!(matches!(&outcomes[2], Err(SendError::NotStored { why: NotStored::Refused(_), .. })));
    assert_eq!(standin.log(), ["m0", "m1", "m3"]);
}

#[tokio::test]
async fn a_request_refused_as_a_whole_is_tried_message_by_message() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(1).build().expect("settings");
    standin.script([Step::RefuseSeveral(40_007), Step::Slow(Duration::ZERO), Step::Refuse(40_007, None)]);
    let outcomes = send_behind_the_first(&standin, &producer).await;
    let refused: Vec<_> = outcomes.iter().map(Result::is_err).collect();
    assert_eq!(refused, [false, false, true, false]);
    assert_eq!(standin.log(), ["m0", "m1", "m3"]);
    let seen = standin.seen();
    assert_eq!(seen.last().expect("sends").sequences(), 4..5, "each kept its sequence");
}

#[tokio::test]
async fn part_of_a_request_with_an_unknown_outcome_is_repeated_alone() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(1).build().expect("settings");
    standin.script([Step::RefuseSecond(50_400)]);
    let outcomes = send_behind_the_first(&standin, &producer).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let seen = standin.seen();
    let ranges: Vec<_> = seen.iter().map(crate::standin::Seen::sequences).collect();
    assert_eq!(ranges, [1..2, 2..5, 3..4]);
    assert_eq!(seen[2].numbers.floor, 3);
    assert_eq!(standin.log(), ["m0", "m1", "m3", "m2"]);
}

#[tokio::test]
async fn a_message_that_waits_past_its_deadline_is_certainly_not_stored() {
    let standin = Standin::start();
    let producer = standin.client().producer().requests_in_flight(1).build().expect("settings");
    standin.script([Step::Held]);
    let first = producer.send(message("first"));
    let second = async {
        standin.arrived(1).await;
        let second = producer.send_within(message("second"), Duration::from_millis(100)).await;
        standin.release();
        second
    };
    let (first, second) = tokio::join!(first, second);
    first.expect("stored");
    assert!(matches!(second, Err(SendError::NotStored { why: NotStored::Unavailable(_), .. })), "{second:?}");
    producer.send(message("third")).await.expect("stored");
    assert_eq!(standin.log(), ["first", "third"]);
}
