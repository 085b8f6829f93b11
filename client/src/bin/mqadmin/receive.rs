//! `receive`: prints the bodies of messages, one per line, and acknowledges them afterwards.

use std::time::Duration;

use clap::Args;
use mq_client::{FilterExpression, MessageView, RECEIVE_BATCH_MAX, SimpleConsumer};
use serde_json::json;

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct ReceiveArguments {
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    topic: String,
    /// Subscription group
    #[arg(short = 'g', long = "group")]
    group: String,
    /// Namespace of both
    #[arg(long, default_value = "")]
    namespace: String,
    /// Tags, for example `a || b`
    #[arg(long, default_value = "*")]
    filter: String,
    /// Ends after this many messages
    #[arg(long)]
    max: Option<u64>,
    /// Ends when none came for this long
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Goes on when none comes
    #[arg(long)]
    follow: bool,
    /// How long others do not get a message that is printed and not acknowledged yet
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    invisible: Duration,
    /// Does not acknowledge: the messages come again
    #[arg(long)]
    no_ack: bool,
}

pub(crate) async fn run(connection: &Connection, arguments: ReceiveArguments) -> Outcome {
    let consumer = connection
        .client()?
        .simple_consumer(arguments.group.clone())
        .namespace(arguments.namespace.clone())
        .subscribe(arguments.topic.clone(), FilterExpression::tag(arguments.filter.clone()))
        .build()?;
    let outcome = receive(connection, &consumer, &arguments).await;
    consumer.close().await;
    outcome
}

async fn receive(
    connection: &Connection,
    consumer: &SimpleConsumer,
    arguments: &ReceiveArguments,
) -> Outcome {
    let mut left = arguments.max.unwrap_or(u64::MAX);
    let mut not_acknowledged = 0_u64;
    while left > 0 {
        let batch = RECEIVE_BATCH_MAX.min(usize::try_from(left).unwrap_or(RECEIVE_BATCH_MAX));
        let messages = consumer.receive(batch, arguments.invisible, arguments.wait).await?;
        if messages.is_empty() && !arguments.follow {
            break;
        }
        left = left.saturating_sub(messages.len() as u64);
        messages.iter().try_for_each(|message| print(connection, message))?;
        if !arguments.no_ack {
            for outcome in consumer.ack_all(&messages).await {
                if let Err(error) = outcome {
                    not_acknowledged += 1;
                    eprintln!("{error}");
                }
            }
        }
    }
    if not_acknowledged > 0 {
        return Err(Failure::failed(format!("{not_acknowledged} messages are not acknowledged")));
    }
    Ok(())
}

fn print(connection: &Connection, message: &MessageView) -> Outcome {
    if !connection.json {
        return output::line(message.body());
    }
    let properties: serde_json::Map<_, _> =
        message.properties().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    output::json(&json!({
        "message_id": message.message_id(),
        "topic": message.topic(),
        "broker_group": message.broker_group(),
        "queue": message.queue(),
        "offset": message.queue_offset(),
        "attempt": message.delivery_attempt(),
        "tag": message.tag(),
        "keys": message.keys(),
        "properties": properties,
        "body": String::from_utf8_lossy(message.body()),
    }))
}
