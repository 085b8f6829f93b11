//! `mqbroker`: settings, log lines, start, wait, stop.

mod dev;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use mq_broker::{Broker, Config, Deps, StartError};
use mq_runtime::admin_http::{self, Readiness};
use mq_runtime::clock::SystemClock;
use mq_runtime::config_file::Sources;
use mq_runtime::exit::Exit;
use mq_runtime::metrics::Metrics;
use mq_runtime::process;
use mq_runtime::random::Random;
use mq_runtime::shutdown::{Shutdown, Signals};
use mq_runtime::tasks::Tasks;
use mq_runtime::telemetry::{self, LogFormat};
use mq_store::{Backend, OsFileSystem};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is logged unless `MQ_LOG` says otherwise. Of openraft errors only: it warns at each try to reach a member.
const LOG: &str = "info,openraft=error";
const DEV_LOG: &str = "warn,openraft=error";

/// An orderly stop may take this long; then the process ends as it is, which loses nothing.
const STOP_MAX: Duration = Duration::from_secs(30);

/// A broker of RaftMQ: replicated messages for RocketMQ 5 clients.
#[derive(Debug, Parser)]
#[command(name = "mqbroker", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A whole system in one process: one node, no name server, topics and groups made at first use.
    Dev(dev::Dev),
}

#[derive(Debug, Args)]
struct Run {
    /// TOML file with the settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrides one setting; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

type NotStarted = process::NotStarted<StartError>;

fn main() -> ExitCode {
    process::run(|| run(Cli::parse()))
}

fn run(cli: Cli) -> Result<Exit, NotStarted> {
    let (config, dev) = match cli.command {
        Some(Command::Dev(dev)) => {
            let prepared = dev.prepare()?;
            (prepared.config.clone(), Some(prepared))
        }
        None => {
            let loaded = Sources::new(cli.run.config, cli.run.set).load::<Config>()?;
            if let Err(error) = loaded.settings.validate() {
                return Err(loaded.reject(&error.key, error.problem).into());
            }
            (loaded.settings, None)
        }
    };
    telemetry::init(if dev.is_some() { DEV_LOG } else { LOG }, LogFormat::default())?;
    let system = |what| move |source| NotStarted::System { what, source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("client")
        .enable_all()
        .build()
        .map_err(system("the runtime does not start"))?;
    let exit = runtime.block_on(serve(config, dev.as_ref()))?;
    // Blocking reads that hang with a disk must not keep the process.
    runtime.shutdown_background();
    Ok(exit)
}

/// Starts, waits for a reason to stop, stops.
async fn serve(config: Config, dev: Option<&dev::Prepared>) -> Result<Exit, NotStarted> {
    let mut signals =
        Signals::new().map_err(|source| NotStarted::System { what: "signals cannot be handled", source })?;
    let shutdown = Shutdown::new();
    let tasks = Tasks::new(Shutdown::new());
    let metrics_port = admin_http::bind("metrics_listen", &config.metrics_listen).await?;
    let admin_port = admin_http::bind("admin_listen", &config.admin_listen).await?;
    let deps = Deps {
        fs: Arc::new(OsFileSystem),
        clock: Arc::new(SystemClock::new()),
        random: Random::from_os(),
        backend: Backend::Rocks,
    };
    let broker = Broker::start(config.clone(), deps, shutdown.clone()).await.map_err(NotStarted::Start)?;
    let metrics = Metrics::new("mqbroker", env!("CARGO_PKG_VERSION"));
    metrics.register(|registry| broker.register_metrics(registry));
    let check = broker.readiness();
    let probe = move || {
        let readiness = check();
        let reason = serde_json::to_value(&readiness.groups).unwrap_or_default();
        Readiness { ready: readiness.ready, reason }
    };
    admin_http::serve(&tasks, "metrics", metrics_port, admin_http::metrics_routes(metrics));
    admin_http::serve(&tasks, "probes", admin_port, admin_http::probe_routes(Arc::new(probe)));
    if let Some(dev) = dev {
        let stopping = shutdown.token();
        stopping.run_until_cancelled(dev.announce(&broker, &config)).await;
    }
    shutdown.wait(&mut signals).await;
    let exit = shutdown.exit();
    if exit == Exit::Disk {
        // Nothing may wait for that disk any more, destructors included. A restart recovers from the log.
        std::process::exit(exit.code().into());
    }
    process::stop_within(STOP_MAX, &mut signals, broker.stop()).await;
    tasks.shutdown().stop();
    tasks.wait(Duration::from_secs(1)).await;
    Ok(exit)
}
