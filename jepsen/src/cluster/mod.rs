//! A real cluster on this machine: binaries started by `deploy/cluster.sh`, signals sent from here.

pub mod observe;
pub mod process;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::Command;

pub use observe::{NodeView, Observer};
pub use process::Recorded;
pub use rustix::process::Signal;

/// How to start a cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// `deploy/cluster.sh`.
    pub script: PathBuf,
    /// Folder of the cluster.
    pub dir: PathBuf,
    /// Folder of the binaries; the script looks for them when absent.
    pub bin: Option<PathBuf>,
    /// First of 60 ports, `auto`, or the shipped ports.
    pub port_base: Option<String>,
    /// `lan` or `test`.
    pub timers: Option<String>,
    /// Further settings of the brokers, `key=value`.
    pub settings: Vec<String>,
}

/// A started cluster; dropping it stops all of its processes, its folder stays.
#[derive(Debug)]
pub struct Cluster {
    script: PathBuf,
    dir: PathBuf,
    /// Brokers and the addresses where clients reach them.
    pub clients: Vec<(String, String)>,
    /// Brokers and their API addresses.
    pub brokers: Vec<(String, String)>,
    /// Name servers and their API addresses.
    pub names: Vec<(String, String)>,
    stopped: bool,
}

impl Cluster {
    /// Starts all nodes and waits until both Raft groups have leaders and are registered.
    pub async fn up(options: &Options) -> anyhow::Result<Self> {
        let mut cluster = Self {
            script: options.script.clone(),
            dir: options.dir.clone(),
            clients: Vec::new(),
            brokers: Vec::new(),
            names: Vec::new(),
            stopped: false,
        };
        let mut arguments = vec!["up".to_owned()];
        let mut option = |name: &str, value: Option<String>| {
            arguments.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        };
        option("--bin", options.bin.as_ref().map(|bin| bin.display().to_string()));
        option("--port-base", options.port_base.clone());
        option("--timers", options.timers.clone());
        for setting in &options.settings {
            option("--set", Some(setting.clone()));
        }
        cluster.script(&arguments).await?;
        let text = cluster.script(&["endpoints".to_owned()]).await?;
        cluster.clients = nodes('b', value(&text, "CLIENTS")?);
        cluster.brokers = nodes('b', value(&text, "BROKERS")?);
        cluster.names = nodes('n', value(&text, "NAMES")?);
        Ok(cluster)
    }

    /// Runs the deploy script for this cluster's folder; its error text goes into the error.
    async fn script(&self, arguments: &[String]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.script);
        command.args(arguments).arg("--dir").arg(&self.dir).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), command.output())
            .await
            .with_context(|| format!("{} {arguments:?} did not end within 120 s", self.script.display()))?
            .with_context(|| format!("cannot run {}", self.script.display()))?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("deploy/cluster.sh {}: {}\n{}", arguments.join(" "), output.status, error.trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// All node names, name servers first.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.names.iter().chain(&self.brokers).map(|(node, _)| node.as_str())
    }

    /// The process of a node as recorded at its start.
    pub fn process(&self, node: &str) -> Option<Recorded> {
        Recorded::read(&self.dir.join(node).join("pid"))
    }

    /// Log of a node.
    pub fn log(&self, node: &str) -> PathBuf {
        self.dir.join(node).join("log")
    }

    /// Folder of the cluster.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sends a signal to a node; false when it does not run.
    pub fn signal(&self, node: &str, signal: Signal) -> bool {
        self.process(node).is_some_and(|process| process.signal(signal))
    }

    /// Kills a node and waits until its process is gone.
    pub async fn kill(&self, node: &str) -> anyhow::Result<Recorded> {
        let process = self.process(node).with_context(|| format!("{node} has no recorded process"))?;
        ensure!(process.signal(Signal::KILL), "{node} (pid {}) is not running", process.pid);
        self.await_gone(node).await?;
        Ok(process)
    }

    /// Waits until a killed node's process is gone.
    pub async fn await_gone(&self, node: &str) -> anyhow::Result<()> {
        for _ in 0..1000 {
            if !self.process(node).is_some_and(Recorded::alive) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("{node} is still there 5 s after SIGKILL");
    }

    /// Starts a node that does not run; does not wait until it is ready.
    pub async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.script(&["start".into(), node.into(), "--wait".into(), "0".into()]).await.map(drop)
    }

    /// Stops whatever runs in an old cluster's folder and removes it.
    pub async fn purge(options: &Options) -> anyhow::Result<()> {
        let old = Self {
            script: options.script.clone(),
            dir: options.dir.clone(),
            clients: Vec::new(),
            brokers: Vec::new(),
            names: Vec::new(),
            stopped: false,
        };
        old.down(true).await
    }

    /// Forgets the cluster: its processes go on.
    pub fn leave_running(mut self) {
        self.stopped = true;
    }

    /// Stops all nodes; the folder stays unless `purge`.
    pub async fn down(mut self, purge: bool) -> anyhow::Result<()> {
        let mut arguments = vec!["down".to_owned()];
        arguments.extend(purge.then(|| "--purge".to_owned()));
        self.script(&arguments).await?;
        self.stopped = true;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.stopped {
            for node in ["b1", "b2", "b3", "n1", "n2", "n3"] {
                self.signal(node, Signal::KILL);
            }
        }
    }
}

fn value<'a>(text: &'a str, name: &str) -> anyhow::Result<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.with_context(|| format!("deploy/cluster.sh endpoints does not print {name}"))
}

fn nodes(letter: char, addresses: &str) -> Vec<(String, String)> {
    (1..).zip(addresses.split(',')).map(|(n, address)| (format!("{letter}{n}"), address.to_owned())).collect()
}
