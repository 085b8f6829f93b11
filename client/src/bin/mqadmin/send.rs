//! `send`: each line of the input as a message, several on their way at the same time.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mq_client::{Message, Producer, SendError, SendReceipt};
use serde_json::json;
use tokio::time::Instant;

use crate::arguments::Connection;
use crate::input::Messages;
use crate::outcome::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct SendArguments {
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    topic: String,
    /// Files; the standard input when there is none or for `-`
    files: Vec<PathBuf>,
    /// Sends this text instead of a file's lines
    #[arg(long, conflicts_with = "files")]
    body: Option<String>,
    /// Namespace of the topic
    #[arg(long, default_value = "")]
    namespace: String,
    /// Tag of every message
    #[arg(long)]
    tag: Option<String>,
    /// Key of every message
    #[arg(long)]
    key: Option<String>,
    /// Property of every message, name=value; may be repeated
    #[arg(long = "property", value_parser = property)]
    properties: Vec<(String, String)>,
    /// Messages on their way at the same time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Messages a second at most
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Time for one message, retries included
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    send_timeout: Duration,
}

fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not name=value"))?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Debug, Default)]
struct Summary {
    confirmed: u64,
    not_stored: u64,
    unknown: u64,
    empty: u64,
    first_failure: Option<SendError>,
}

pub(crate) async fn run(connection: &Connection, arguments: SendArguments) -> Outcome {
    let producer = connection.client()?.producer().timeout(arguments.send_timeout).build()?;
    let started = Instant::now();
    let mut summary = Summary::default();
    let lines: Box<dyn Iterator<Item = Outcome<String>>> = match &arguments.body {
        Some(body) => Box::new(std::iter::once(Ok(body.clone()))),
        None => Box::new(Messages::new(arguments.files.clone())),
    };
    let mut running = FuturesUnordered::new();
    for (number, line) in lines.enumerate() {
        let line = line?;
        if line.is_empty() {
            summary.empty += 1;
            continue;
        }
        if running.len() >= arguments.in_flight as usize
            && let Some((number, outcome)) = running.next().await
        {
            summary.count(connection, number, outcome)?;
        }
        if let Some(rate) = arguments.rate {
            let due = started + Duration::from_secs_f64(number as f64 / f64::from(rate));
            while let Ok(Some((number, outcome))) = tokio::time::timeout_at(due, running.next()).await {
                summary.count(connection, number, outcome)?;
            }
            tokio::time::sleep_until(due).await;
        }
        running.push(send(producer.clone(), number, message(&arguments, line)));
        // What is ready is counted beside, so that the oldest ones do not wait for their turn.
        while let Some(Some((number, outcome))) = futures::FutureExt::now_or_never(running.next()) {
            summary.count(connection, number, outcome)?;
        }
    }
    while let Some((number, outcome)) = running.next().await {
        summary.count(connection, number, outcome)?;
    }
    summary.finish(connection, started.elapsed())
}

async fn send(
    producer: Producer,
    number: usize,
    message: Message,
) -> (usize, Result<SendReceipt, SendError>) {
    (number, producer.send(message).await)
}

fn message(arguments: &SendArguments, body: String) -> Message {
    let mut message = Message::new(arguments.topic.clone(), body).namespace(arguments.namespace.clone());
    if let Some(tag) = &arguments.tag {
        message = message.tag(tag.clone());
    }
    if let Some(key) = &arguments.key {
        message = message.key(key.clone());
    }
    arguments
        .properties
        .iter()
        .fold(message, |message, (name, value)| message.property(name.clone(), value.clone()))
}

impl Summary {
    fn count(
        &mut self,
        connection: &Connection,
        number: usize,
        outcome: Result<SendReceipt, SendError>,
    ) -> Outcome {
        let line = number + 1;
        match outcome {
            Ok(receipt) => {
                self.confirmed += 1;
                if connection.json {
                    output::json(&json!({
                        "line": line, "outcome": "confirmed", "message_id": receipt.message_id,
                        "topic": receipt.topic, "broker_group": receipt.broker_group, "queue": receipt.queue,
                        "offset": receipt.offset, "attempts": receipt.attempts,
                    }))?;
                }
            }
            Err(error) => {
                let unknown = error.is_unknown();
                *(if unknown { &mut self.unknown } else { &mut self.not_stored }) += 1;
                if connection.json {
                    let outcome = if unknown { "unknown" } else { "not stored" };
                    output::json(&json!({ "line": line, "outcome": outcome, "error": error.to_string() }))?;
                } else {
                    eprintln!("line {line}: {error}");
                }
                self.first_failure.get_or_insert(error);
            }
        }
        Ok(())
    }

    fn finish(self, connection: &Connection, took: Duration) -> Outcome {
        let Self { confirmed, not_stored, unknown, empty, first_failure } = self;
        if connection.json {
            output::json(&json!({
                "confirmed": confirmed, "not_stored": not_stored, "unknown": unknown, "empty_lines": empty,
                "seconds": took.as_secs_f64(),
            }))?;
        } else {
            let skipped = if empty > 0 { format!(", {empty} empty lines left out") } else { String::new() };
            let failed = if not_stored + unknown > 0 {
                format!(", {not_stored} not stored, {unknown} with an unknown outcome")
            } else {
                String::new()
            };
            output::line(format!("{confirmed} confirmed{failed}{skipped} in {:.2} s", took.as_secs_f64()))?;
        }
        match first_failure {
            None => Ok(()),
            Some(error) if confirmed == 0 => Err(error.into()),
            Some(_) => {
                Err(Failure::failed(format!("{not_stored} not stored, {unknown} with an unknown outcome")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_name_and_value() {
        assert_eq!(property("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(property("a").is_err());
    }
}
