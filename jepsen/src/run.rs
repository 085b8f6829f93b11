//! A run: start, main (load and faults), heal, recovery, final (drain, then calls that must succeed), check.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::Rng;
use tokio::task::JoinSet;

use crate::checker;
use crate::cluster::observe::{NAME_GROUP, status_of};
use crate::cluster::{Cluster, Observer, Options};
use crate::generator::stream;
use crate::history::record::{Call, Header, Phase, Role, SCHEMA};
use crate::history::{History, Recorder};
use crate::nemesis::Nemesis;
use crate::nemesis::schedule::Class;
use crate::setup;
use crate::verdict;
use crate::wire::Target;
use crate::workload::queue::{Load, Plan};

const TOPIC: &str = "jepsen-queue";
const GROUPS: [&str; 2] = ["jepsen-queue-g", "jepsen-queue-h"];
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
const FINAL_CALLS: u64 = 25;
/// First process numbers of the phases behind the main one; main never gets there.
const DRAIN_PROCESS: u64 = 1_000_000;
const PROBE_PROCESS: u64 = 2_000_000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to start the cluster.
    pub cluster: Options,
    /// Folder of history and results.
    pub out: PathBuf,
    /// Fault classes; may be empty.
    pub faults: Vec<Class>,
    /// Length of the main phase.
    pub time_limit: Duration,
    /// Sends per second.
    pub rate: u32,
    /// Seed of content and schedule.
    pub seed: u64,
    /// Mean pause between faults.
    pub interval: Duration,
    /// Invisible time of receives.
    pub invisible: Duration,
    /// The command that repeats this run.
    pub command: String,
    /// Keep the cluster's folder also when valid.
    pub keep_data: bool,
}

/// Runs and judges. An error is a failure of the suite; the history is kept.
pub async fn test(settings: Settings) -> anyhow::Result<ExitCode> {
    println!("seed     {}", settings.seed);
    std::fs::create_dir_all(&settings.out)
        .with_context(|| format!("cannot make {}", settings.out.display()))?;
    let run = format!("{:08x}", stream(settings.seed, "run").random::<u32>() ^ std::process::id());
    let plan = |nodes| Plan {
        run: run.clone(),
        seed: settings.seed,
        nodes,
        target: Target { topic: TOPIC.into(), broker_group: setup::BROKER_GROUP.into() },
        groups: GROUPS.map(str::to_owned).to_vec(),
        rate: settings.rate,
        senders: 4,
        consumers: 3,
        invisible: settings.invisible,
    };
    let header = Header {
        schema: SCHEMA,
        run: run.clone(),
        seed: settings.seed,
        workload: "queue".into(),
        faults: settings.faults.iter().map(|class| class.name().to_owned()).collect(),
        topology: "ns3-b3".into(),
        groups: GROUPS.map(str::to_owned).to_vec(),
        scanners: Vec::new(),
        planned_sends: settings.time_limit.as_secs() * u64::from(settings.rate),
        build: env!("CARGO_PKG_VERSION").into(),
        command: settings.command.clone(),
    };
    let path = settings.out.join("history.jsonl");
    let recorder = Recorder::create(&path, header)?;
    println!("history  {}", path.display());
    let began = Instant::now();
    let cluster = Arc::new(Cluster::up(&settings.cluster).await?);
    let observer = Arc::new(Observer::new(&cluster));
    observer.await_whole(RECOVERY_LIMIT).await?;
    setup::topic_and_groups(&cluster, TOPIC, 4, &GROUPS).await?;
    println!("start    {:.1} s   cluster in {}", began.elapsed().as_secs_f64(), cluster.dir().display());

    let plan = plan(cluster.clients.clone());
    let phases = Phases {
        settings: &settings,
        plan: &plan,
        recorder: &recorder,
        cluster: &cluster,
        observer: &observer,
    };
    let ran = phases.run().await;
    let history = recorder.finish(match &ran {
        Ok(()) => "complete",
        Err(_) => "failed",
    })?;
    judge(&settings, history, ran, cluster).await
}

async fn judge(
    settings: &Settings,
    history: History,
    ran: anyhow::Result<()>,
    cluster: Arc<Cluster>,
) -> anyhow::Result<ExitCode> {
    let report = checker::check(&history)?;
    let summary = verdict::summary(&history, &report);
    println!("{summary}");
    let mut results = serde_json::to_vec_pretty(&report)?;
    results.push(b'\n');
    setup::write_new(&settings.out.join("results.json"), &results)?;
    setup::write_new(&settings.out.join("summary.txt"), format!("{summary}\n").as_bytes())?;
    let keep = settings.keep_data || report.verdict != checker::Verdict::Valid || ran.is_err();
    if let Ok(cluster) = Arc::try_unwrap(cluster) {
        cluster.down(!keep).await?;
    }
    if report.verdict != checker::Verdict::Invalid {
        ran?;
    }
    Ok(verdict::exit_code(report.verdict))
}

struct Phases<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    recorder: &'a Recorder,
    cluster: &'a Arc<Cluster>,
    observer: &'a Arc<Observer>,
}

impl Phases<'_> {
    fn phase(&self, name: &str) {
        self.recorder.remark(Role::Harness, Call::Phase(Phase { name: name.into() }));
    }

    async fn run(&self) -> anyhow::Result<()> {
        let stop_monitor = Arc::new(AtomicBool::new(false));
        let mut monitor = JoinSet::new();
        monitor.spawn(watch(Arc::clone(self.observer), self.recorder.clone(), Arc::clone(&stop_monitor)));
        let outcome = self.phases().await;
        stop_monitor.store(true, Ordering::Relaxed);
        while let Some(ended) = monitor.join_next().await {
            ended?;
        }
        outcome
    }

    async fn phases(&self) -> anyhow::Result<()> {
        let nemesis = Nemesis {
            cluster: Arc::clone(self.cluster),
            observer: Arc::clone(self.observer),
            recorder: self.recorder.clone(),
            classes: self.settings.faults.clone(),
            seed: self.settings.seed,
            interval: self.settings.interval,
        };
        self.phase("main");
        let until = Instant::now() + self.settings.time_limit;
        let load = Load::main(self.plan, self.recorder);
        let disturbed = if nemesis.classes.is_empty() {
            Ok(())
        } else {
            nemesis.run(&AtomicBool::new(false), until).await
        };
        tokio::time::sleep_until(until.into()).await;
        self.phase("heal");
        load.stop().await?;
        disturbed?;
        nemesis.heal().await?;
        self.phase("recovery");
        let began = Instant::now();
        if let Err(problem) = self.observer.await_whole(RECOVERY_LIMIT).await {
            self.phase(&format!("failed: {problem}"));
            return Ok(());
        }
        println!("recovery {:.1} s", began.elapsed().as_secs_f64());
        self.last().await
    }

    /// Reads everything back with fresh clients; then some calls that must all succeed.
    async fn last(&self) -> anyhow::Result<()> {
        self.phase("final");
        let drain = Load::drain(self.plan, self.recorder, DRAIN_PROCESS);
        let quiet = self.settings.invisible + Duration::from_secs(3);
        let drained = drain.await_quiet(quiet, DRAIN_LIMIT).await;
        self.phase("probe");
        let confirmed = drain.send(FINAL_CALLS, PROBE_PROCESS).await;
        let settled = drain.await_quiet(quiet, DRAIN_LIMIT + quiet * 2).await;
        drain.stop().await?;
        if confirmed < FINAL_CALLS {
            self.phase(&format!("failed: {confirmed} of {FINAL_CALLS} sends confirmed after the recovery"));
        }
        if drained && settled {
            self.phase("drained");
        }
        let digest = self.observer.digest(setup::BROKER_GROUP, RECOVERY_LIMIT).await?;
        ensure!(digest.members as usize == self.cluster.brokers.len(), "a member's digest is missing");
        self.recorder.remark(Role::Harness, Call::Digest(digest));
        self.phase("end");
        Ok(())
    }
}

/// Takes down the status of all nodes, about every 200 ms, when it changed.
async fn watch(observer: Arc<Observer>, recorder: Recorder, stop: Arc<AtomicBool>) {
    let mut known = std::collections::BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let mut seen = Vec::new();
        for view in observer.brokers().await {
            let group = view.group.group.clone();
            seen.push(status_of(&view, &group));
        }
        for view in observer.name_servers().await {
            seen.push(status_of(&view, NAME_GROUP));
        }
        // A node that has just started does not know its term yet.
        for status in seen.into_iter().filter(|status| status.term > 0) {
            let key = (status.group.clone(), status.node.clone());
            if known.get(&key) != Some(&status) {
                known.insert(key, status.clone());
                recorder.remark(Role::Monitor, Call::Status(status));
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
