//! Receives and settles everything with one consumer, one answer after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mq_client::{Client, FilterExpression, MessageView};
use tokio::task::JoinSet;

use super::judge::{Came, Outcome, Sent};

const BATCH: usize = 32;
const INVISIBLE: Duration = Duration::from_secs(30);
/// The last poll, which must bring nothing more.
const LAST_POLL: Duration = Duration::from_millis(1_500);
/// Settling answers that are still open.
const SETTLING_MAX: usize = 8;

/// All deliveries.
#[derive(Debug, Default)]
pub struct Received {
    /// In the order of arrival.
    pub came: Vec<Came>,
    /// Deliveries whose ack was not answered OK.
    pub unsettled: u64,
    /// Receives that gave no answer and were repeated.
    pub repeated_calls: u64,
}

/// Receives until every confirmed line came and one more poll brings nothing, or until the time is up.
pub async fn everything(
    client: &Client,
    topic: &str,
    group: &str,
    lines: &[Vec<u8>],
    sent: &[Sent],
) -> anyhow::Result<Received> {
    let consumer = client.simple_consumer(group).subscribe(topic, FilterExpression::all()).build()?;
    let known: BTreeMap<&[u8], u64> =
        (1u64..).zip(lines).map(|(line, text)| (text.as_slice(), line)).collect();
    let mut missing: BTreeSet<u64> = sent
        .iter()
        .filter(|sent| matches!(sent.outcome, Outcome::Confirmed { .. }))
        .map(|sent| sent.line)
        .collect();
    let end =
        Instant::now() + Duration::from_secs(60) + Duration::from_millis(5) * u32::try_from(lines.len())?;
    let mut received = Received::default();
    let mut settling: JoinSet<u64> = JoinSet::new();
    while Instant::now() < end {
        let messages = match consumer.receive(BATCH, INVISIBLE, LAST_POLL).await {
            Ok(messages) => messages,
            Err(error) if received.repeated_calls < 20 => {
                tracing::debug!(%error, "receive is repeated");
                received.repeated_calls += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if messages.is_empty() && missing.is_empty() {
            break;
        }
        for message in &messages {
            let line = known.get(&message.body()[..]).copied();
            if let Some(line) = line {
                missing.remove(&line);
            }
            received.came.push(came(message, line));
        }
        while settling.len() >= SETTLING_MAX {
            received.unsettled += settling.join_next().await.transpose()?.unwrap_or(0);
        }
        if !messages.is_empty() {
            let consumer = consumer.clone();
            settling.spawn(async move {
                let outcomes = consumer.ack_all(&messages).await;
                outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64
            });
        }
    }
    while let Some(unsettled) = settling.join_next().await {
        received.unsettled += unsettled?;
    }
    consumer.close().await;
    Ok(received)
}

fn came(message: &MessageView, line: Option<u64>) -> Came {
    Came { line, queue: message.queue(), offset: message.queue_offset(), attempt: message.delivery_attempt() }
}
