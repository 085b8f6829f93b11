//! `mqjepsen`: proves the promises from outside.
//!
//! Exit codes of `test` and `check`: 0 valid, 1 invalid, 2 unknown, 3 failure of the suite, 64 wrong use.
//! `demo`: 0 when nothing was lost, invented, reordered or different, else 1 (3 and 64 as above).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use mq_jepsen::cluster::Options;
use mq_jepsen::nemesis::schedule::Class;
use mq_jepsen::{checker, demo, gaps, history, run, verdict};

#[derive(Parser)]
#[command(name = "mqjepsen", version, about = "Fault testing of RaftMQ: load, faults, history, verdict")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a cluster, sends every line of a file while leaders are killed, receives and compares.
    Demo(Demo),
    /// Runs a workload under faults and judges its history.
    Test(Test),
    /// Measures the longest gap between two confirmed sends when the leader dies, freezes or is stopped.
    Gaps(Gaps),
    /// Judges a stored history again.
    Check {
        /// history.jsonl of a run
        file: PathBuf,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct Where {
    /// The script that starts and stops local clusters
    #[arg(long, default_value = "deploy/cluster.sh")]
    script: PathBuf,
    /// Folder of the binaries
    #[arg(long)]
    bin: Option<PathBuf>,
    /// First of 60 ports, or `auto`
    #[arg(long)]
    port_base: Option<String>,
    /// Timers of the Raft groups: lan or test
    #[arg(long)]
    timers: Option<String>,
}

#[derive(Args)]
struct Demo {
    #[command(flatten)]
    at: Where,
    /// Text file; each line becomes a message
    #[arg(long, default_value = "Cargo.lock")]
    file: PathBuf,
    /// Folder of the cluster; must not exist or be that of an older demo
    #[arg(long, default_value = "./demo-data")]
    dir: PathBuf,
    /// Messages per second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Leave the cluster running at the end
    #[arg(long)]
    hold: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Fault {
    /// SIGKILL
    Kill,
    /// SIGSTOP, SIGCONT at the end of the round
    Stop,
    /// SIGTERM: a planned stop
    Term,
}

#[derive(Args)]
struct Gaps {
    #[command(flatten)]
    at: Where,
    /// What happens to the leader of the broker group
    #[arg(long, value_enum, default_value = "kill")]
    fault: Fault,
    /// Rounds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    count: u32,
    /// Sends per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    rate: u32,
    /// Exit code 1 when the median is longer
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    median_max: Option<Duration>,
    /// Folder of the cluster; must not exist
    #[arg(long, default_value = "./gaps-data")]
    dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Workload {
    /// Send, receive, ack; two subscription groups
    Queue,
}

#[derive(Args)]
struct Test {
    #[command(flatten)]
    at: Where,
    /// What to do with the cluster
    #[arg(long, value_enum)]
    workload: Workload,
    /// Faults: kill, pause, kill-all; empty for none
    #[arg(long, value_delimiter = ',', default_value = "kill,pause")]
    nemesis: Vec<String>,
    /// Length of the main phase
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    time_limit: Duration,
    /// Sends per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Seed of content and schedule; random when absent
    #[arg(long)]
    seed: Option<u64>,
    /// Mean pause between two faults
    #[arg(long, default_value = "2500ms", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Invisible time of every receive; below 10 s the brokers' lower limit is moved
    #[arg(long, default_value = "4s", value_parser = humantime::parse_duration)]
    invisible: Duration,
    /// Folder for history, results and the cluster; must not hold a run
    #[arg(long)]
    out: Option<PathBuf>,
    /// Keep the cluster's folder also when the run is valid
    #[arg(long)]
    keep_data: bool,
}

impl Where {
    fn options(&self, dir: PathBuf, settings: Vec<String>) -> Options {
        Options {
            script: self.script.clone(),
            dir,
            bin: self.bin.clone(),
            port_base: self.port_base.clone(),
            timers: self.timers.clone(),
            settings,
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let shown = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let _ = error.print();
            return ExitCode::from(if shown { verdict::VALID } else { verdict::WRONG_USE });
        }
    };
    match work(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(verdict::HARNESS_FAILURE)
        }
    }
}

fn work(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check { file, json } => {
            let history = history::History::read(&file)?;
            let report = checker::check(&history)?;
            if json {
                println!("{}", serde_json::to_string(&report)?);
            } else {
                println!("{}", verdict::summary(&history, &report));
            }
            Ok(verdict::exit_code(report.verdict))
        }
        Command::Test(test) => match test_settings(test) {
            Ok(settings) => block_on(run::test(settings)),
            Err(problem) => {
                eprintln!("error: {problem}");
                Ok(ExitCode::from(verdict::WRONG_USE))
            }
        },
        Command::Gaps(arguments) => {
            let Gaps { at, fault, count, rate, median_max, dir } = arguments;
            let fault = match fault {
                Fault::Kill => gaps::Fault::Kill,
                Fault::Stop => gaps::Fault::Stop,
                Fault::Term => gaps::Fault::Terminate,
            };
            let cluster = at.options(dir, Vec::new());
            block_on(gaps::run(gaps::Settings { cluster, fault, count, rate, median_max }))
        }
        Command::Demo(demo) => {
            // The shipped ports and timers: what a user gets.
            let options = demo.at.options(demo.dir, Vec::new());
            let Demo { file, rate, hold, json, .. } = demo;
            block_on(demo::run(demo::Settings { cluster: options, file, rate, hold, json }))
        }
    }
}

fn test_settings(test: Test) -> Result<run::Settings, String> {
    let classes = test.nemesis.iter().filter(|name| !name.is_empty());
    let faults: Vec<Class> = classes.map(|name| name.parse()).collect::<Result<_, _>>()?;
    let Workload::Queue = test.workload;
    let seed = test.seed.unwrap_or_else(mq_runtime::random::u64);
    let out = test.out.unwrap_or_else(|| format!("jepsen-store/queue-{seed}-{}", std::process::id()).into());
    if out.join("history.jsonl").exists() {
        return Err(format!("{} already holds a run", out.display()));
    }
    let out = std::path::absolute(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let lowest = test.invisible.as_millis().min(10_000);
    let mut cluster = test.at.options(out.join("cluster"), vec![format!("limits.invisible_ms_min={lowest}")]);
    // Beside whatever else runs on this machine.
    cluster.port_base.get_or_insert_with(|| "auto".into());
    cluster.timers.get_or_insert_with(|| "test".into());
    let command = format!(
        "mqjepsen test --workload queue --nemesis {} --time-limit {} --rate {} --interval {} --invisible {} --seed {seed}",
        test.nemesis.join(","),
        humantime::format_duration(test.time_limit).to_string().replace(' ', ""),
        test.rate,
        humantime::format_duration(test.interval).to_string().replace(' ', ""),
        humantime::format_duration(test.invisible).to_string().replace(' ', ""),
    );
    Ok(run::Settings {
        cluster,
        out,
        faults,
        time_limit: test.time_limit,
        rate: test.rate,
        seed,
        interval: test.interval,
        invisible: test.invisible,
        command,
        keep_data: test.keep_data,
    })
}

/// Runs to the end, or until the user interrupts; then the cluster is dropped, which ends its processes.
fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .context("cannot listen for SIGTERM")?;
        tokio::select! {
            done = work => done,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
            _ = terminate.recv() => anyhow::bail!("terminated"),
        }
    })
}
