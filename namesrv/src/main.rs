//! `mqnamesrv`: settings, log lines, start, wait, stop.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use mq_namesrv::{Config, Deps, NameServer, StartError};
use mq_runtime::admin_http;
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

/// An orderly stop may take this long; then the process ends as it is, which loses nothing.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A name server of RaftMQ: topic routes and broker groups, replicated.
#[derive(Debug, Parser)]
#[command(name = "mqnamesrv", version)]
struct Cli {
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
    let loaded = Sources::new(cli.config, cli.set).load::<Config>()?;
    if let Err(unusable) = loaded.settings.validate() {
        return Err(loaded.reject(&unusable.key, unusable.problem).into());
    }
    telemetry::init("info,openraft=warn", LogFormat::default())?;
    for name in &loaded.unknown_environment {
        tracing::warn!("environment variable {name} is no setting");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(|source| NotStarted::System { what: "the runtime does not start", source })?;
    let exit = runtime.block_on(serve(&loaded.settings))?;
    // Blocking reads that hang with a disk must not keep the process.
    runtime.shutdown_background();
    Ok(exit)
}

/// Starts, waits for a reason to stop, stops.
async fn serve(config: &Config) -> Result<Exit, NotStarted> {
    let mut signals =
        Signals::new().map_err(|source| NotStarted::System { what: "signals cannot be handled", source })?;
    let shutdown = Shutdown::new();
    let tasks = Tasks::new(Shutdown::new());
    let port = admin_http::bind("metrics_listen", &config.metrics_listen).await?;
    let deps = Deps {
        fs: Arc::new(OsFileSystem),
        clock: Arc::new(SystemClock::new()),
        random: Random::from_os(),
        backend: Backend::Rocks,
    };
    let server = NameServer::start(config, deps, shutdown.clone()).await.map_err(NotStarted::Start)?;
    let metrics = Metrics::new("mqnamesrv", env!("CARGO_PKG_VERSION"));
    metrics.register(|registry| server.register_metrics(registry));
    let routes = admin_http::metrics_routes(metrics).merge(admin_http::probe_routes(server.readiness()));
    admin_http::serve(&tasks, "metrics", port, routes);
    tracing::info!(cluster = config.cluster, node = config.node, api = %server.api_address(), "name server runs");
    shutdown.wait(&mut signals).await;
    let exit = shutdown.exit();
    if exit != Exit::Disk {
        process::stop_within(STOP_MAX, &mut signals, server.stop()).await;
    }
    tasks.shutdown().stop();
    tasks.wait(Duration::from_secs(1)).await;
    Ok(exit)
}
