//! `bench`: confirmed sends in a closed loop. So many senders, each with one message on its way.

use std::cell::RefCell;
use std::time::Duration;

use clap::Args;
use hdrhistogram::Histogram;
use mq_client::admin::Admin;
use mq_client::{Message, Producer};
use mq_protocol::cluster;
use serde_json::json;
use tokio::time::Instant;

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;
use crate::topics::broker_groups;

/// Longest time of measuring, and of warming up before it.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// Latencies are recorded in microseconds up to a minute.
const LATENCY_MAX_US: u64 = 60_000_000;

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// Name of the topic; it is created when it does not exist
    #[arg(short = 't', long = "topic", default_value = "bench")]
    topic: String,
    /// Bytes of a body
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    size: u32,
    /// Messages on their way at the same time; a list measures one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,16,128,1024",
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    in_flight: Vec<u32>,
    /// How long each is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long each runs before it is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    warm_up: Duration,
    /// Requests on their way at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    requests: u32,
    /// Does not create the topic
    #[arg(long)]
    no_create: bool,
}

/// What one run measured.
struct Measured {
    in_flight: u32,
    seconds: f64,
    latencies: Histogram<u64>,
    not_stored: u64,
    unknown: u64,
    last_error: Option<String>,
}

pub(crate) async fn run(connection: &Connection, arguments: BenchArguments) -> Outcome {
    let longest = arguments.duration.max(arguments.warm_up);
    if longest > TIME_MAX {
        let text = format!(
            "{} s of measuring or warming up, the limit is {} s",
            longest.as_secs(),
            TIME_MAX.as_secs()
        );
        return Err(Failure::wrong_use(text));
    }
    let client = connection.client()?;
    if !arguments.no_create {
        create(&client.admin(), &arguments.topic).await?;
    }
    let producer = client.producer().requests_in_flight(arguments.requests as usize).build()?;
    let mut rows = Vec::new();
    let mut failed = None;
    for in_flight in &arguments.in_flight {
        let measured = measure(&producer, &arguments, *in_flight).await?;
        if connection.json {
            output::json(&measured.as_json(arguments.size))?;
        }
        rows.push(measured.row(arguments.size));
        failed = failed.or(measured.last_error);
    }
    if !connection.json {
        let heading = [
            "IN FLIGHT",
            "MSGS/S",
            "MB/S",
            "P50 MS",
            "P99 MS",
            "P99.9 MS",
            "MAX MS",
            "NOT STORED",
            "UNKNOWN",
        ];
        output::table(&heading, rows)?;
    }
    failed.map_or(Ok(()), |error| Err(Failure::failed(error)))
}

async fn create(admin: &Admin, topic: &str) -> Outcome {
    for group in broker_groups(admin, &[]).await? {
        let request = cluster::PutTopicRequest { group, name: topic.to_owned(), ..Default::default() };
        admin.put_topic(request).await?;
    }
    Ok(())
}

async fn measure(producer: &Producer, arguments: &BenchArguments, in_flight: u32) -> Outcome<Measured> {
    let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).map_err(Failure::failed)?;
    let body: Vec<u8> = (0..arguments.size).map(|i| b'a' + u8::try_from(i % 26).unwrap_or(0)).collect();
    let message = Message::new(arguments.topic.clone(), body);
    let begin = Instant::now() + arguments.warm_up;
    let end = begin + arguments.duration;
    let measured = RefCell::new(Measured {
        in_flight,
        seconds: arguments.duration.as_secs_f64(),
        latencies,
        not_stored: 0,
        unknown: 0,
        last_error: None,
    });
    let senders = (0..in_flight).map(|_| async {
        while Instant::now() < end {
            let sent = Instant::now();
            let outcome = producer.send(message.clone()).await;
            let now = Instant::now();
            let mut measured = measured.borrow_mut();
            match outcome {
                // What was confirmed within the measured time counts.
                Ok(_) if now >= begin && now < end => {
                    let micros = u64::try_from((now - sent).as_micros()).unwrap_or(LATENCY_MAX_US);
                    measured.latencies.saturating_record(micros);
                }
                Ok(_) => {}
                Err(error) => {
                    *(if error.is_unknown() { &mut measured.unknown } else { &mut measured.not_stored }) += 1;
                    measured.last_error = Some(error.to_string());
                }
            }
        }
    });
    futures::future::join_all(senders).await;
    Ok(measured.into_inner())
}

impl Measured {
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn row(&self, size: u32) -> Vec<String> {
        let ms = |value: f64| format!("{value:.2}");
        vec![
            self.in_flight.to_string(),
            format!("{:.0}", self.rate()),
            format!("{:.1}", self.rate() * f64::from(size) / 1e6),
            ms(self.quantile_ms(0.5)),
            ms(self.quantile_ms(0.99)),
            ms(self.quantile_ms(0.999)),
            ms(self.latencies.max() as f64 / 1000.0),
            self.not_stored.to_string(),
            self.unknown.to_string(),
        ]
    }

    fn as_json(&self, size: u32) -> serde_json::Value {
        json!({
            "in_flight": self.in_flight, "size": size, "seconds": self.seconds, "confirmed": self.latencies.len(),
            "messages_per_second": self.rate(), "p50_ms": self.quantile_ms(0.5), "p99_ms": self.quantile_ms(0.99),
            "p999_ms": self.quantile_ms(0.999), "max_ms": self.latencies.max() as f64 / 1000.0,
            "not_stored": self.not_stored, "unknown": self.unknown,
        })
    }
}
