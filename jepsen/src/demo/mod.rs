//! The main job on real input: a cluster, a text file, two killed leaders, and a comparison at the end.
//!
//! Every line of the file is sent as `<line number><tab><line>` at a steady rate with at most 64 in flight. After a
//! third the leader of the broker group is killed, after two thirds the leader of the name servers. Then a consumer
//! group receives and settles everything, and the replicas are compared.

pub mod faults;
pub mod judge;
pub mod receive;
pub mod report;
pub mod send;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mq_client::Client;

use crate::cluster::{Cluster, Observer, Options};
use crate::setup;
use faults::Killed;
use judge::judge;
use report::Printer;
use send::Sender;

const TOPIC: &str = "demo";
const QUEUES: u32 = 8;
const CONSUMER_GROUP: &str = "demo-readers";
/// Fewer lines are sent before the first kill could hit anything in flight.
const LINES_MIN: usize = 300;
const WHOLE_LIMIT: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to start the cluster; its folder is removed first when it is that of an older demonstration.
    pub cluster: Options,
    /// Text file.
    pub file: PathBuf,
    /// Messages per second.
    pub rate: u32,
    /// Leave the cluster running.
    pub hold: bool,
    /// One JSON object per line.
    pub json: bool,
}

/// Runs to the verdict. `Err` is an error of the suite or of the machine, not a verdict.
pub async fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(settings.json);
    let lines = read_lines(&settings.file)?;
    clear(&settings.cluster).await?;

    let began = Instant::now();
    let cluster = Arc::new(Cluster::up(&settings.cluster).await?);
    let observer = Arc::new(Observer::new(&cluster));
    observer.await_whole(WHOLE_LIMIT).await?;
    let leaders = (observer.name_leader().await, observer.broker_leader().await);
    let (Some(name_leader), Some(leader)) = &leaders else { bail!("a leader is gone right after the start") };
    printer.started(&cluster, &name_leader.node, &leader.node, began.elapsed());
    setup::topic_and_groups(&cluster, TOPIC, QUEUES, &[CONSUMER_GROUP]).await?;
    printer.topic(TOPIC, QUEUES, setup::BROKER_GROUP);

    let passed = work(&settings, &printer, lines, &cluster, &observer).await;
    let dir = cluster.dir().to_path_buf();
    if settings.hold && passed.is_ok() {
        if let Ok(cluster) = Arc::try_unwrap(cluster) {
            cluster.leave_running();
        }
    } else if let Ok(cluster) = Arc::try_unwrap(cluster) {
        cluster.down(false).await?;
    }
    let passed = passed?;
    printer.end(passed, &dir, settings.hold);
    Ok(ExitCode::from(u8::from(!passed)))
}

async fn work(
    settings: &Settings,
    printer: &Printer,
    lines: Arc<Vec<Vec<u8>>>,
    cluster: &Arc<Cluster>,
    observer: &Arc<Observer>,
) -> anyhow::Result<bool> {
    let client = Client::builder()
        .name_servers(cluster.names.iter().map(|(_, address)| address.clone()))
        .brokers(cluster.clients.iter().map(|(_, address)| address.clone()))
        .build()?;

    let sender = Sender::new(&client, TOPIC, Arc::clone(&lines), settings.rate)?;
    let sending = sender.start();
    let killed = faults::kill_both(cluster, observer, &sender).await;
    let (sent, took) = sending.outcome().await?;
    printer.sent(&sent, took, &settings.file);
    let killed: [Killed; 2] = killed?;
    for kill in &killed {
        printer.killed(kill);
    }

    let began = Instant::now();
    for kill in &killed {
        cluster.start(&kill.node).await?;
    }
    observer.await_whole(WHOLE_LIMIT).await?;
    printer.restarted(&killed, began.elapsed());

    let began = Instant::now();
    let received = receive::everything(&client, TOPIC, CONSUMER_GROUP, &lines, &sent).await?;
    let judgement = judge(&sent, &received.came);
    printer.received(&judgement, &received, lines.len(), began.elapsed());

    let digest = observer.digest(setup::BROKER_GROUP, WHOLE_LIMIT).await?;
    printer.digest(&digest, cluster.brokers.len());
    for problem in &judgement.problems {
        printer.problem(problem);
    }
    for kill in &killed {
        if let Some(problem) = kill.objection() {
            printer.problem(&problem);
        }
    }
    if received.unsettled > 0 {
        printer.problem(&format!("{} deliveries could not be acknowledged", received.unsettled));
    }
    let equal = digest.difference.is_empty() && digest.members as usize == cluster.brokers.len();
    let aimed = killed.iter().all(|kill| kill.objection().is_none());
    Ok(judgement.good() && equal && aimed && received.unsettled == 0)
}

/// The messages: line number, tab, line.
fn read_lines(file: &std::path::Path) -> anyhow::Result<Arc<Vec<Vec<u8>>>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let lines: Vec<Vec<u8>> = (1u64..)
        .zip(text.split(|byte| *byte == b'\n'))
        .map(|(number, line)| [format!("{number}\t").as_bytes(), line].concat())
        .collect();
    let count = lines.len();
    ensure!(count >= LINES_MIN, "{} has {count} lines; at least {LINES_MIN} are needed", file.display());
    Ok(Arc::new(lines))
}

/// Removes the folder of an older demonstration; anything else in its place is an error of the script.
async fn clear(options: &Options) -> anyhow::Result<()> {
    if options.dir.join("cluster.env").exists() {
        Cluster::purge(options).await?;
    }
    Ok(())
}
