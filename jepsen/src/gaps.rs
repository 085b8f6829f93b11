//! How long senders wait when the leader's process dies or freezes: the longest gap between two confirmed sends, round
//! by round, seen by the native client at a steady rate.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mq_client::Client;

use crate::cluster::{Cluster, Observer, Options, Signal};
use crate::demo::judge::{Outcome, longest_gap};
use crate::demo::send::Sender;
use crate::setup;

const TOPIC: &str = "gaps";
const QUEUES: u32 = 8;
const CONSUMER_GROUP: &str = "gaps-readers";
const WHOLE_LIMIT: Duration = Duration::from_secs(60);
/// Sends before the signal, and of a whole round.
const BEFORE_S: u32 = 1;
const ROUND_S: u32 = 5;

/// What happens to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT when the round is over.
    Stop,
    /// SIGTERM: a planned stop.
    Terminate,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to start the cluster.
    pub cluster: Options,
    /// What happens to the leader.
    pub fault: Fault,
    /// Rounds.
    pub count: u32,
    /// Sends per second.
    pub rate: u32,
    /// Exit 1 when the median is longer.
    pub median_max: Option<Duration>,
}

/// Runs all rounds and prints a line for each; 1 when the median exceeds its limit.
pub async fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::up(&settings.cluster).await?;
    let measured = measure(&settings, &cluster).await;
    cluster.down(measured.is_ok()).await?;
    let mut gaps = measured?;
    gaps.sort_unstable();
    let (first, median, last) = (gaps.first(), median(&gaps), gaps.last());
    let (Some(first), Some(median), Some(last)) = (first, median, last) else {
        bail!("nothing was measured")
    };
    println!("{} rounds: shortest {first:.0?}, median {median:.0?}, longest {last:.0?}", gaps.len());
    Ok(ExitCode::from(u8::from(settings.median_max.is_some_and(|limit| median > limit))))
}

/// Of an even number the upper one: never better than what was seen.
fn median(sorted: &[Duration]) -> Option<Duration> {
    sorted.get(sorted.len() / 2).copied()
}

async fn measure(settings: &Settings, cluster: &Cluster) -> anyhow::Result<Vec<Duration>> {
    let observer = Observer::new(cluster);
    observer.await_whole(WHOLE_LIMIT).await?;
    setup::topic_and_groups(cluster, TOPIC, QUEUES, &[CONSUMER_GROUP]).await?;
    let client = Client::builder()
        .name_servers(cluster.names.iter().map(|(_, address)| address.clone()))
        .brokers(cluster.clients.iter().map(|(_, address)| address.clone()))
        .build()?;
    let mut gaps = Vec::new();
    for number in 1..=settings.count {
        gaps.push(round(settings, cluster, &observer, &client, number).await?);
    }
    Ok(gaps)
}

async fn round(
    settings: &Settings,
    cluster: &Cluster,
    observer: &Observer,
    client: &Client,
    number: u32,
) -> anyhow::Result<Duration> {
    let lines = (0..ROUND_S * settings.rate).map(|line| format!("{number} {line}").into_bytes()).collect();
    let sender = Sender::new(client, TOPIC, Arc::new(lines), settings.rate)?;
    let sending = sender.start();
    let part = u64::from(BEFORE_S * 100 / ROUND_S);
    let end = Instant::now() + WHOLE_LIMIT;
    while sender.percent() < part {
        ensure!(Instant::now() < end, "only {} % are sent after {WHOLE_LIMIT:?}", sender.percent());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let leader = observer.broker_leader().await.context("no leader to hit")?;
    match settings.fault {
        Fault::Kill => drop(cluster.kill(&leader.node).await?),
        Fault::Stop => ensure!(cluster.signal(&leader.node, Signal::STOP), "{} is gone", leader.node),
        Fault::Terminate => ensure!(cluster.signal(&leader.node, Signal::TERM), "{} is gone", leader.node),
    }
    let outcome = sending.outcome().await;
    let next = observer.broker_leader().await;
    match settings.fault {
        Fault::Stop => ensure!(cluster.signal(&leader.node, Signal::CONT), "{} is gone", leader.node),
        Fault::Kill | Fault::Terminate => {
            cluster.await_gone(&leader.node).await?;
            cluster.start(&leader.node).await?;
        }
    }
    observer.await_whole(WHOLE_LIMIT).await?;
    let (sent, _) = outcome?;
    let next = next.context("no new leader at the end of the round")?;
    // A round that did not move the leadership has measured nothing.
    ensure!(next.group.term > leader.group.term, "{} did not lead when it was hit", leader.node);
    let failed = sent.iter().filter(|sent| !matches!(sent.outcome, Outcome::Confirmed { .. })).count();
    let (gap, _) = longest_gap(&sent).context("fewer than two confirmed sends")?;
    let gap = Duration::from_nanos(gap);
    println!(
        "round {number}: {} (term {}) to {} (term {}): longest gap {gap:.0?}, {failed} of {} not confirmed",
        leader.node,
        leader.group.term,
        next.node,
        next.group.term,
        sent.len()
    );
    Ok(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_never_better_than_what_was_seen() {
        let ms = |values: &[u64]| values.iter().copied().map(Duration::from_millis).collect::<Vec<_>>();
        assert_eq!(median(&ms(&[])), None);
        assert_eq!(median(&ms(&[3, 5, 9])), Some(Duration::from_millis(5)));
        assert_eq!(median(&ms(&[3, 5, 9, 11])), Some(Duration::from_millis(9)));
    }
}
