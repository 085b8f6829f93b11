//! Faults on processes. Each has a start, a probe (did it bite?) and a stop; one at a time, in a seeded order.

pub mod schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::cluster::{Cluster, Observer, Signal};
use crate::generator::{pause, stream};
use crate::history::Recorder;
use crate::history::record::{Call, Fault, Role};
use schedule::{Class, Planned, Target};

/// A process is stopped this long after SIGSTOP at the latest.
const STOP_LIMIT: Duration = Duration::from_millis(500);

/// Injects faults until told to stop; heals what it broke before it returns.
#[derive(Debug)]
pub struct Nemesis {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// Finds leaders and probes.
    pub observer: Arc<Observer>,
    /// Takes down what happens.
    pub recorder: Recorder,
    /// Enabled classes.
    pub classes: Vec<Class>,
    /// Seed of the schedule.
    pub seed: u64,
    /// Mean pause between two faults.
    pub interval: Duration,
}

impl Nemesis {
    /// Works until `stop` or `until`. An error is an error of the suite (a node that does not start again).
    pub async fn run(&self, stop: &AtomicBool, until: Instant) -> anyhow::Result<()> {
        let mut random = stream(self.seed, "nemesis");
        let mut plan = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let wait = self.interval / 4 + pause(&mut random, self.interval * 3 / 4).min(2 * self.interval);
            let hold = Duration::from_millis(random.random_range(1_500..3_500));
            if Instant::now() + wait + hold > until {
                return Ok(());
            }
            tokio::time::sleep(wait).await;
            if plan.is_empty() {
                plan = schedule::round(&self.classes, &mut random);
            }
            if let Some(planned) = plan.pop() {
                self.inject(planned, hold, &mut random).await?;
            }
        }
        Ok(())
    }

    async fn inject(&self, planned: Planned, hold: Duration, random: &mut ChaCha8Rng) -> anyhow::Result<()> {
        let Some(node) = self.resolve(planned.target, random).await else {
            // Without a leader there is nothing to aim at; the next round tries again.
            self.note(planned, "-", "missed", None, "no leader at that moment");
            return Ok(());
        };
        match planned.class {
            Class::Kill => self.kill(planned, &node, hold).await,
            Class::Pause => self.pause(planned, &node, hold).await,
            Class::KillAll => self.kill_all(planned, hold).await,
        }
    }

    /// Roles are resolved when the fault starts.
    async fn resolve(&self, target: Target, random: &mut ChaCha8Rng) -> Option<String> {
        let pick = |nodes: &[(String, String)], random: &mut ChaCha8Rng| {
            nodes.get(random.random_range(0..nodes.len())).map(|(node, _)| node.clone())
        };
        match target {
            Target::Leader => self.observer.broker_leader().await.map(|view| view.node),
            Target::NameLeader => self.observer.name_leader().await.map(|view| view.node),
            Target::Random => pick(&self.cluster.brokers, random),
            Target::NameRandom => pick(&self.cluster.names, random),
            Target::All => Some("all".to_owned()),
        }
    }

    async fn kill(&self, planned: Planned, node: &str, hold: Duration) -> anyhow::Result<()> {
        self.note(planned, node, "start", None, "SIGKILL");
        let process = self.cluster.kill(node).await?;
        tokio::time::sleep(hold).await;
        self.cluster.start(node).await?;
        let back = self.await_answer(node, Duration::from_secs(20)).await;
        let detail = format!("pid {} gone, answers again: {back}", process.pid);
        self.note(planned, node, "probe", Some(back), &detail);
        self.note(planned, node, "stop", None, "");
        Ok(())
    }

    async fn kill_all(&self, planned: Planned, hold: Duration) -> anyhow::Result<()> {
        self.note(planned, "all", "start", None, "SIGKILL");
        let nodes: Vec<&str> = self.cluster.nodes().collect();
        // All signals first: nobody sees another one die and lives on for long.
        let hit: Vec<&str> =
            nodes.iter().copied().filter(|node| self.cluster.signal(node, Signal::KILL)).collect();
        for node in &nodes {
            self.cluster.await_gone(node).await?;
        }
        tokio::time::sleep(hold / 2).await;
        for node in &nodes {
            self.cluster.start(node).await?;
        }
        let mut back = hit.len() == nodes.len();
        for node in &nodes {
            back &= self.await_answer(node, Duration::from_secs(20)).await;
        }
        let detail = format!("{} of {} killed, all answer again: {back}", hit.len(), nodes.len());
        self.note(planned, "all", "probe", Some(back), &detail);
        self.note(planned, "all", "stop", None, "");
        Ok(())
    }

    async fn pause(&self, planned: Planned, node: &str, hold: Duration) -> anyhow::Result<()> {
        self.note(planned, node, "start", None, "SIGSTOP");
        if !self.cluster.signal(node, Signal::STOP) {
            self.note(planned, node, "skip", None, "the process does not run");
            return Ok(());
        }
        let began = Instant::now();
        // A signal takes a moment; an answer that was on its way already is no sign of life.
        while began.elapsed() < STOP_LIMIT && !self.cluster.process(node).is_some_and(|p| p.paused()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let silent = !self.observer.answers(node).await;
        tokio::time::sleep(hold.saturating_sub(began.elapsed())).await;
        let stopped = self.cluster.process(node).is_some_and(|process| process.paused());
        self.cluster.signal(node, Signal::CONT);
        let detail = format!("silent: {silent}, stopped until the end: {stopped}");
        self.note(planned, node, "probe", Some(silent && stopped), &detail);
        self.note(planned, node, "stop", None, "SIGCONT");
        Ok(())
    }

    async fn await_answer(&self, node: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if self.observer.answers(node).await {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }

    fn note(&self, planned: Planned, node: &str, step: &str, bit: Option<bool>, detail: &str) {
        let fault = Fault {
            class: planned.class.name().into(),
            target: planned.target.name().into(),
            node: node.into(),
            step: step.into(),
            bit,
            detail: detail.into(),
        };
        self.recorder.remark(Role::Nemesis, Call::Fault(fault));
    }

    /// Wakes what is stopped and starts what is not there. A process that nobody killed is noted as a crash.
    pub async fn heal(&self) -> anyhow::Result<()> {
        for node in self.cluster.nodes() {
            match self.cluster.process(node) {
                Some(process) if process.paused() => {
                    process.signal(Signal::CONT);
                }
                Some(process) if process.alive() => {}
                _ => {
                    let planned = Planned { class: Class::Kill, target: Target::Random };
                    self.note(planned, node, "crash", None, "not running, and not killed by this suite");
                    self.cluster.start(node).await?;
                }
            }
        }
        Ok(())
    }
}
