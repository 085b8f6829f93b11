//! Sends all lines at a steady rate, with a bound on what is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mq_client::{Client, Message, Producer, SendError};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::judge::{Outcome, Sent};

const IN_FLIGHT_MAX: usize = 64;
/// A send may last that long, repeats included.
const SEND_LIMIT: Duration = Duration::from_secs(15);

/// The sending side, watched by whoever kills leaders.
#[derive(Debug, Clone)]
pub struct Sender {
    producer: Producer,
    topic: String,
    lines: Arc<Vec<Vec<u8>>>,
    rate: u32,
    progress: Arc<Progress>,
}

#[derive(Debug)]
struct Progress {
    started: Instant,
    begun: AtomicU64,
    in_flight: AtomicUsize,
}

/// A running send of all lines.
#[derive(Debug)]
pub struct Sending {
    task: JoinSet<anyhow::Result<(Vec<Sent>, Duration)>>,
}

impl Sender {
    /// With a producer of its own.
    pub fn new(client: &Client, topic: &str, lines: Arc<Vec<Vec<u8>>>, rate: u32) -> anyhow::Result<Self> {
        let producer = client.producer().timeout(SEND_LIMIT).build()?;
        let progress =
            Progress { started: Instant::now(), begun: AtomicU64::new(0), in_flight: AtomicUsize::new(0) };
        Ok(Self { producer, topic: topic.into(), lines, rate, progress: Arc::new(progress) })
    }

    /// Share of the lines whose send has begun, in percent.
    pub fn percent(&self) -> u64 {
        self.progress.begun.load(Ordering::Relaxed) * 100 / self.lines.len().max(1) as u64
    }

    /// Sends that have no outcome yet.
    pub fn in_flight(&self) -> usize {
        self.progress.in_flight.load(Ordering::Relaxed)
    }

    /// Begins to send.
    pub fn start(&self) -> Sending {
        let mut task = JoinSet::new();
        task.spawn(self.clone().send_all());
        Sending { task }
    }

    async fn send_all(self) -> anyhow::Result<(Vec<Sent>, Duration)> {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let step = Duration::from_secs(1) / self.rate;
        let began = Instant::now();
        let (mut due, mut running, mut sent) = (began, JoinSet::new(), Vec::with_capacity(self.lines.len()));
        for at in 0..self.lines.len() {
            // After a pause the rate goes on from now: no burst to catch up. (Timers have a grain of 1 ms.)
            due = due.max(Instant::now().checked_sub(Duration::from_millis(5)).unwrap_or(due));
            if due > Instant::now() {
                tokio::time::sleep_until(due.into()).await;
            }
            due += step;
            let permit = Arc::clone(&permits).acquire_owned().await?;
            let sender = self.clone();
            running.spawn(async move {
                let sent = sender.send(at).await;
                drop(permit);
                sent
            });
            while let Some(done) = running.try_join_next() {
                sent.push(done?);
            }
        }
        while let Some(done) = running.join_next().await {
            sent.push(done?);
        }
        sent.sort_by_key(|sent| sent.line);
        Ok((sent, began.elapsed()))
    }

    async fn send(&self, at: usize) -> Sent {
        let message = Message::new(&self.topic, self.lines[at].clone());
        let begin = self.now();
        self.progress.begun.fetch_add(1, Ordering::Relaxed);
        self.progress.in_flight.fetch_add(1, Ordering::Relaxed);
        let result = self.producer.send(message).await;
        self.progress.in_flight.fetch_sub(1, Ordering::Relaxed);
        let outcome = match result {
            Ok(receipt) => Outcome::Confirmed { queue: receipt.queue, offset: receipt.offset },
            Err(error @ SendError::Unknown { .. }) => Outcome::Unknown(error.to_string()),
            Err(error) => Outcome::NotStored(error.to_string()),
        };
        Sent { line: at as u64 + 1, begin, end: self.now(), outcome }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.progress.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Sending {
    /// Waits until all outcomes are known; they come in the order of the lines.
    pub async fn outcome(mut self) -> anyhow::Result<(Vec<Sent>, Duration)> {
        match self.task.join_next().await {
            Some(done) => done?,
            None => anyhow::bail!("nothing was sent"),
        }
    }
}
