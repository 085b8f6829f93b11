//! What a send's outcome says is true, whatever the servers do.

use std::time::{Duration, Instant};

use crate::standin::{GROUP, Standin, Step, TOPIC};
use mq_client::{Cause, ConfigError, InvalidMessage, Message, NotStored, Producer, SendError};

fn producer(standin: &Standin, timeout_ms: u64) -> Producer {
    let builder = standin.client().producer().timeout(Duration::from_millis(timeout_ms));
    builder.build().expect("settings are right")
}

fn message(body: &str) -> Message {
    Message::new(TOPIC, body.to_owned())
}

fn not_stored(outcome: Result<mq_client::SendReceipt, SendError>) -> NotStored {
    match outcome {
        Err(SendError::NotStored { why, .. }) => why,
        other => panic!("expected `not stored`, got {other:?}"),
    }
}

fn unknown(outcome: Result<mq_client::SendReceipt, SendError>) -> Cause {
    match outcome {
        Err(SendError::Unknown { cause, .. }) => cause,
        other => panic!("expected `unknown`, got {other:?}"),
    }
}

#[tokio::test]
async fn a_send_goes_straight_to_the_leader_with_its_numbers() {
    let standin = Standin::start();
    standin.lead(1, 1);
    let client = standin.builder().client_id("tester").build().expect("settings are right");
    let producer = client.producer().id(77).epoch(3).build().expect("settings are right");
    for (place, body) in ["a", "b"].into_iter().enumerate() {
        let receipt = producer.send(message(body)).await.expect("stored");
        assert_eq!((receipt.offset, receipt.attempts), (place as u64, 1));
        assert_eq!((receipt.topic.as_str(), receipt.broker_group.as_str()), (TOPIC, GROUP));
        assert_eq!(receipt.message_id.len(), 34);
    }
    let seen = standin.seen();
    assert_eq!(seen.len(), 2);
    for (place, seen) in seen.iter().enumerate() {
        assert_eq!((seen.node, seen.no_forward, seen.client_id.as_str()), (1, true, "tester"));
        let sequence = place as u64 + 1;
        let numbers = seen.numbers;
        assert_eq!((numbers.producer_id, numbers.epoch, numbers.first_sequence), (77, 3, sequence));
        assert_eq!(numbers.floor, sequence, "nothing else is outstanding");
    }
}

#[tokio::test]
async fn producers_have_random_ids() {
    let standin = Standin::start();
    let (one, other) = (producer(&standin, 100), producer(&standin, 100));
    assert!(one.id() != 0 && one.id() != other.id());
    assert_eq!(one.clone().id(), one.id());
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_call() {
    let standin = Standin::start();
    standin.lead(2, 4);
    standin.state.lock().route = Some(0);
    let client = mq_client::Client::builder().brokers([standin.address(0)]).build().expect("an address");
    let producer = client.producer().build().expect("settings are right");
    // The first node's status would tell; the route alone does not: make it wrong for the first attempt.
    let receipt = producer.send(message("a")).await.expect("stored");
    assert_eq!(receipt.offset, 0);
    standin.lead(1, 5);
    let receipt = producer.send(message("b")).await.expect("stored");
    assert_eq!((receipt.offset, receipt.attempts), (1, 2));
    let seen = standin.seen();
    let last: Vec<_> = seen.iter().rev().take(2).map(|seen| seen.node).collect();
    assert_eq!(last, [1, 2], "first the old leader, then the one it named");
}

#[tokio::test]
async fn two_nodes_that_name_each_other_do_not_spin() {
    let standin = Standin::with_nodes(2);
    {
        let mut state = standin.state.lock();
        state.leader = 9;
        state.route = Some(0);
        state.hint = Some(1);
    }
    let started = Instant::now();
    let why = not_stored(producer(&standin, 600).send(message("a")).await);
    assert!(matches!(why, NotStored::Unavailable(_)), "{why:?}");
    assert!(started.elapsed() < Duration::from_millis(2_500));
    assert!(standin.seen().len() < 60, "{} attempts in 600 ms", standin.seen().len());
}

#[tokio::test]
async fn an_unknown_outcome_is_repeated_with_the_same_sequence_and_stored_once() {
    for step in [Step::StoreAndBreak, Step::StoreAndSay(50_400), Step::StoreAndSay(50_001)] {
        let standin = Standin::start();
        standin.script([step.clone()]);
        let receipt = producer(&standin, 5_000).send(message("a")).await.expect("stored");
        assert_eq!((receipt.offset, receipt.attempts), (0, 2), "{step:?}");
        assert_eq!(standin.log(), ["a"], "{step:?}");
        let seen = standin.seen();
        assert_eq!(seen[0].numbers, seen[1].numbers, "{step:?}");
    }
}

#[tokio::test]
async fn certain_refusals_are_not_stored_and_not_repeated() {
    for code in [40_000, 40_014, 40_100, 40_300, 40_402, 41_301, 43_101, 50_100, 50_500] {
        let standin = Standin::start();
        standin.script([Step::Refuse(code, None)]);
        let why = not_stored(producer(&standin, 5_000).send(message("a")).await);
        let NotStored::Refused(cause) = why else { panic!("{code}: {why:?}") };
        assert_eq!(cause.code(), Some(code));
        assert_eq!(standin.seen().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn busy_until_the_deadline_is_not_stored() {
    let standin = Standin::start();
    standin.script(vec![Step::Refuse(42_900, None); 100]);
    let started = Instant::now();
    let why = not_stored(producer(&standin, 500).send(message("a")).await);
    let NotStored::Unavailable(cause) = why else { panic!("{why:?}") };
    assert_eq!(cause.code(), Some(42_900));
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(450) && took < Duration::from_millis(2_000), "{took:?}");
    assert!(standin.seen().len() > 2, "it was tried again");
}

#[tokio::test]
async fn one_uncertain_attempt_makes_the_outcome_unknown_for_good() {
    let standin = Standin::start();
    standin.script([Step::Break]);
    standin.script(vec![Step::Refuse(42_900, None); 100]);
    let cause = unknown(producer(&standin, 400).send(message("a")).await);
    assert_eq!(cause.code(), Some(42_900), "the last word is named");

    let standin = Standin::start();
    standin.script([Step::Refuse(50_400, None), Step::Refuse(40_402, None)]);
    let cause = unknown(producer(&standin, 5_000).send(message("a")).await);
    assert_eq!(cause.code(), Some(40_402));
}

#[tokio::test]
async fn no_answer_until_the_deadline_is_unknown_in_time() {
    let standin = Standin::start();
    standin.script(vec![Step::Hang; 10]);
    let started = Instant::now();
    unknown(producer(&standin, 400).send(message("a")).await);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(380) && took < Duration::from_millis(2_000), "{took:?}");
}

#[tokio::test]
async fn nobody_there_is_not_stored_in_time() {
    let mut standin = Standin::start();
    let producer = producer(&standin, 500);
    producer.send(message("a")).await.expect("stored");
    (0..3).for_each(|node| standin.kill(node));
    let started = Instant::now();
    let outcome = producer.send(message("b")).await;
    // The first attempt may still have used a connection that was about to break.
    if standin.seen().len() == 1 {
        let why = match outcome {
            Err(SendError::NotStored { why, .. }) => why,
            Err(SendError::Unknown { .. }) => return,
            Ok(receipt) => panic!("nobody stored {receipt:?}"),
        };
        assert!(matches!(why, NotStored::Unavailable(_)), "{why:?}");
    }
    assert!(started.elapsed() < Duration::from_millis(2_500));

    let never_there = mq_client::Client::builder().brokers([standin.address(0)]).build().expect("an address");
    let producer = never_there.producer().timeout(Duration::from_millis(300)).build().expect("settings");
    let why = not_stored(producer.send(message("c")).await);
    assert!(matches!(why, NotStored::Unavailable(Cause::NoRoute { .. })), "{why:?}");
}

#[tokio::test]
async fn a_replaced_producer_and_a_passed_floor_are_unknown_at_once() {
    for reason in ["older-epoch", "below-floor"] {
        let standin = Standin::start();
        standin.script([Step::Refuse(50_400, Some(reason))]);
        let cause = unknown(producer(&standin, 5_000).send(message("a")).await);
        assert!(matches!(cause, Cause::Status { reason: Some(said), .. } if said == reason));
        assert_eq!(standin.seen().len(), 1);
    }
}

#[tokio::test]
async fn what_no_server_would_take_is_refused_before_one_is_asked() {
    let standin = Standin::start();
    let why = not_stored(producer(&standin, 5_000).send(Message::new(TOPIC, "")).await);
    assert_eq!(why, NotStored::Invalid(InvalidMessage::BodyEmpty));
    let why = not_stored(producer(&standin, 5_000).send(Message::new("no such name", "a")).await);
    assert!(matches!(why, NotStored::Invalid(InvalidMessage::Text(_))), "{why:?}");
    let producer = producer(&standin, 5_000);
    let times =
        [(Duration::MAX, u64::MAX), (Duration::from_millis(86_400_001), 86_400_001), (Duration::ZERO, 0)];
    for (time, ms) in times {
        let why = not_stored(producer.send_within(message("a"), time).await);
        let range = ConfigError::Range { what: "send timeout in ms", value: ms, min: 1, max: 86_400_000 };
        assert_eq!(why, NotStored::Invalid(InvalidMessage::Setting(range)));
    }
    assert_eq!((standin.seen().len(), standin.state.lock().routes_asked), (0, 0));
    producer
        .send_within(message("a"), Duration::from_secs(86_400))
        .await
        .expect("the longest time is allowed");
}

#[tokio::test]
async fn an_unknown_topic_is_refused() {
    let standin = Standin::start();
    let why = not_stored(producer(&standin, 5_000).send(Message::new("unknown", "a")).await);
    assert!(matches!(&why, NotStored::Refused(cause) if cause.code() == Some(40_402)), "{why:?}");
}

#[tokio::test]
async fn a_killed_leader_is_passed_over_in_the_same_call() {
    let mut standin = Standin::start();
    let producer = producer(&standin, 5_000);
    producer.send(message("a")).await.expect("stored");
    standin.kill(0);
    standin.lead(2, 2);
    let started = Instant::now();
    let receipt = producer.send(message("b")).await.expect("stored");
    assert_eq!(receipt.offset, 1);
    assert!(started.elapsed() < Duration::from_millis(1_500), "{:?}", started.elapsed());
    assert_eq!(standin.log(), ["a", "b"]);
}

#[tokio::test]
async fn a_killed_leader_is_replaced_by_the_one_elected_meanwhile() {
    let mut standin = Standin::start();
    let producer = producer(&standin, 5_000);
    producer.send(message("a")).await.expect("stored");
    standin.kill(0);
    let send = producer.send(message("b"));
    let elect = async {
        // Followers still name the dead one.
        tokio::time::sleep(Duration::from_millis(300)).await;
        standin.lead(1, 2);
        Instant::now()
    };
    let (outcome, elected) = tokio::join!(send, elect);
    outcome.expect("stored");
    assert!(elected.elapsed() < Duration::from_millis(1_500), "{:?} after the election", elected.elapsed());
    assert_eq!(standin.log(), ["a", "b"]);
}

#[tokio::test]
async fn a_frozen_leader_is_left_with_the_same_sequence() {
    let standin = Standin::start();
    let producer = producer(&standin, 10_000);
    producer.send(message("a")).await.expect("stored");
    standin.script([Step::Hang]);
    let send = producer.send(message("b"));
    let elect = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        standin.lead(1, 2);
        Instant::now()
    };
    let (outcome, elected) = tokio::join!(send, elect);
    assert_eq!(outcome.expect("stored").attempts, 2);
    assert!(elected.elapsed() < Duration::from_millis(1_500), "{:?} after the election", elected.elapsed());
    let seen = standin.seen();
    let (first, second) = (&seen[seen.len() - 2], &seen[seen.len() - 1]);
    assert_eq!((first.node, second.node), (0, 1));
    assert_eq!(first.numbers.first_sequence, second.numbers.first_sequence);
    assert_eq!(standin.log(), ["a", "b"]);
}
