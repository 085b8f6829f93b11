//! Receiving, acknowledging, changing the invisible time: at the leader, in time, with what is certain told apart.

use std::time::{Duration, Instant};

use crate::standin::services::ReceiveStep;
use crate::standin::{Standin, TOPIC};
use mq_client::admin::AdminError;
use mq_client::{AckError, ConfigError, FilterExpression, ReceiveError, SimpleConsumer};

const SOON: Duration = Duration::from_millis(200);
const INVISIBLE: Duration = Duration::from_secs(30);

fn consumer(standin: &Standin) -> SimpleConsumer {
    let consumer = standin.client().simple_consumer("readers").subscribe(TOPIC, FilterExpression::all());
    consumer.timeout(Duration::from_millis(800)).build().expect("settings are right")
}

fn next(standin: &Standin, steps: impl IntoIterator<Item = ReceiveStep>) {
    standin.state.lock().receive.extend(steps);
}

#[tokio::test]
async fn messages_are_received_at_the_leader_and_acknowledged() {
    let standin = Standin::start();
    let consumer = consumer(&standin);
    next(&standin, [ReceiveStep::Messages(vec!["a", "b"])]);
    let messages = consumer.receive(16, INVISIBLE, SOON).await.expect("an answer");
    let bodies: Vec<_> = messages.iter().map(|message| message.body().clone()).collect();
    assert_eq!(bodies, ["a", "b"]);
    assert_eq!((messages[0].topic(), messages[0].delivery_attempt()), (TOPIC, 1));
    // The leader changes between receive and ack.
    standin.lead(2, 2);
    consumer.ack(&messages[0]).await.expect("acknowledged");
    assert!(consumer.ack_all(&messages).await.iter().all(Result::is_ok));
    assert_eq!(standin.state.lock().acked, ["handle of a", "handle of a", "handle of b"]);
    let changed = consumer.change_invisible(&messages[1], INVISIBLE).await.expect("changed");
    assert_eq!(changed.receipt_handle(), "changed handle of b");
    consumer.close().await;
}

#[tokio::test]
async fn nothing_there_is_an_empty_answer() {
    let standin = Standin::start();
    assert!(consumer(&standin).receive(1, INVISIBLE, SOON).await.expect("an answer").is_empty());
}

#[tokio::test]
async fn refusals_are_told_apart_from_silence() {
    let standin = Standin::start();
    next(&standin, [ReceiveStep::Say(40_403)]);
    let refused = consumer(&standin).receive(1, INVISIBLE, SOON).await.expect_err("no such group");
    assert!(matches!(&refused, ReceiveError::Refused(cause) if cause.code() == Some(40_403)), "{refused:?}");

    next(&standin, vec![ReceiveStep::Hang; 9]);
    let started = Instant::now();
    let silent = consumer(&standin).receive(1, INVISIBLE, Duration::ZERO).await.expect_err("no answer");
    assert!(matches!(silent, ReceiveError::Unavailable(_)), "{silent:?}");
    assert!(started.elapsed() < Duration::from_millis(4_500), "{:?}", started.elapsed());

    let wrong = consumer(&standin).receive(33, INVISIBLE, SOON).await.expect_err("too many");
    assert!(matches!(wrong, ReceiveError::Invalid(_)), "{wrong:?}");
}

#[tokio::test]
async fn what_arrived_before_the_stream_broke_counts() {
    let standin = Standin::start();
    next(&standin, [ReceiveStep::BreakAfterOne("a")]);
    let messages = consumer(&standin).receive(16, INVISIBLE, SOON).await.expect("one message");
    assert_eq!(messages.len(), 1);
}

#[tokio::test]
async fn a_receive_moves_from_a_frozen_leader_to_the_next_one() {
    let standin = Standin::start();
    let consumer = consumer(&standin);
    next(&standin, [ReceiveStep::Hang, ReceiveStep::Messages(vec!["a"])]);
    let elect = async {
        tokio::time::sleep(SOON).await;
        standin.lead(1, 2);
    };
    let (messages, ()) = tokio::join!(consumer.receive(1, INVISIBLE, Duration::from_secs(5)), elect);
    assert_eq!(messages.expect("an answer").len(), 1);
}

#[tokio::test]
async fn an_ack_tells_expired_from_unknown() {
    let standin = Standin::start();
    let consumer = consumer(&standin);
    next(&standin, [ReceiveStep::Messages(vec!["a", "b", "c"])]);
    let messages = consumer.receive(16, INVISIBLE, SOON).await.expect("an answer");
    standin.state.lock().acks.extend([20_000, 40_013, 40_300]);
    let outcomes = consumer.ack_all(&messages).await;
    assert!(outcomes[0].is_ok());
    assert!(matches!(outcomes[1], Err(AckError::Expired(_))), "{outcomes:?}");
    assert!(matches!(outcomes[2], Err(AckError::Refused(_))), "{outcomes:?}");
    // Two unknown outcomes, then it passes: an ack may be repeated.
    standin.state.lock().acks.extend([50_400, 42_900]);
    consumer.ack(&messages[2]).await.expect("acknowledged");
    standin.state.lock().acks.extend(vec![50_400; 100]);
    let started = Instant::now();
    let unknown = consumer.ack(&messages[2]).await.expect_err("no answer that says anything");
    assert!(matches!(unknown, AckError::Unknown(_)), "{unknown:?}");
    assert!(started.elapsed() < Duration::from_millis(2_500));
}

#[tokio::test]
async fn a_handle_that_a_lost_change_may_have_replaced_is_not_called_expired() {
    let standin = Standin::start();
    let consumer = consumer(&standin);
    next(&standin, [ReceiveStep::Messages(vec!["a"])]);
    let messages = consumer.receive(1, INVISIBLE, SOON).await.expect("an answer");
    for codes in [[50_400, 40_013], [40_800, 40_013], [50_400, 40_000]] {
        standin.state.lock().changes.extend(codes);
        let error = consumer.change_invisible(&messages[0], INVISIBLE).await.expect_err("no new handle");
        assert!(matches!(error, AckError::Unknown(_)), "{codes:?}: {error:?}");
    }
    standin.state.lock().changes.extend([42_900, 40_013]);
    let error = consumer.change_invisible(&messages[0], INVISIBLE).await.expect_err("it is over");
    assert!(matches!(error, AckError::Expired(_)), "nothing was proposed before: {error:?}");
}

#[tokio::test]
async fn times_out_of_range_are_refused_before_a_server_is_asked() {
    let standin = Standin::start();
    let consumer = consumer(&standin);
    for (invisible, wait) in [(Duration::MAX, SOON), (Duration::ZERO, SOON), (INVISIBLE, Duration::MAX)] {
        let error = consumer.receive(1, invisible, wait).await.expect_err("out of range");
        assert!(matches!(error, ReceiveError::Invalid(ConfigError::Range { .. })), "{error:?}");
    }
    assert_eq!(standin.state.lock().routes_asked, 0);
    next(&standin, [ReceiveStep::Messages(vec!["a"])]);
    let messages = consumer.receive(1, INVISIBLE, SOON).await.expect("an answer");
    let error = consumer.change_invisible(&messages[0], Duration::MAX).await.expect_err("out of range");
    assert!(matches!(error, AckError::Invalid(ConfigError::Range { value: u64::MAX, .. })), "{error:?}");
    consumer.change_invisible(&messages[0], Duration::ZERO).await.expect("visible at once");
    for timeout in [Duration::MAX, Duration::ZERO] {
        let error = standin
            .client()
            .admin()
            .timeout(timeout)
            .transfer_leadership("", 1)
            .await
            .expect_err("out of range");
        assert!(matches!(error, AdminError::Invalid(_)), "{error:?}");
    }
}
