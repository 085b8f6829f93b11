//! `mqnamesrv`: settings, log lines, start, wait, stop.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use mq_namesrv::{Config, Deps, NameServer, StartError};
use mq_runtime::admin_http::{self, BindError};
use mq_runtime::clock::SystemClock;
use mq_runtime::config_file::{ConfigError, Sources};
use mq_runtime::exit::Exit;
use mq_runtime::metrics::Metrics;
use mq_runtime::random::Random;
use mq_runtime::shutdown::{Shutdown, Signals};
use mq_runtime::tasks::Tasks;
use mq_runtime::telemetry::{self, LogFormat, TelemetryError};
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

/// Why the process ends before it runs.
#[derive(Debug, thiserror::Error)]
enum MainError {
    #[error("{0}")]
    Settings(Box<ConfigError>),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("{what}: {source}")]
    System { what: &'static str, source: std::io::Error },
}

impl From<ConfigError> for MainError {
    fn from(error: ConfigError) -> Self {
        Self::Settings(Box::new(error))
    }
}

impl MainError {
    fn exit(&self) -> Exit {
        match self {
            Self::Settings(_) | Self::Telemetry(_) | Self::Bind(_) => Exit::Config,
            Self::Start(error) => error.exit(),
            Self::System { .. } => Exit::Failed,
        }
    }
}

fn main() -> ExitCode {
    // The allocator asks for huge pages, half of which would stay empty in a process this small.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        eprintln!("huge pages stay on: {error}");
    }
    match run(Cli::parse()) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error}");
            error.exit().into()
        }
    }
}

fn run(cli: Cli) -> Result<Exit, MainError> {
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
        .map_err(|source| MainError::System { what: "the runtime does not start", source })?;
    let exit = runtime.block_on(serve(&loaded.settings))?;
    // Blocking reads that hang with a disk must not keep the process.
    runtime.shutdown_background();
    Ok(exit)
}

/// Starts, waits for a reason to stop, stops.
async fn serve(config: &Config) -> Result<Exit, MainError> {
    let mut signals =
        Signals::new().map_err(|source| MainError::System { what: "signals cannot be handled", source })?;
    let shutdown = Shutdown::new();
    let tasks = Tasks::new(Shutdown::new());
    let port = admin_http::bind("metrics_listen", &config.metrics_listen).await?;
    let deps = Deps {
        fs: Arc::new(OsFileSystem),
        clock: Arc::new(SystemClock::new()),
        random: Random::from_os(),
        backend: Backend::Rocks,
    };
    let server = NameServer::start(config, deps, shutdown.clone()).await?;
    let metrics = Metrics::new("mqnamesrv", env!("CARGO_PKG_VERSION"));
    metrics.register(|registry| server.register_metrics(registry));
    let routes = admin_http::metrics_routes(metrics).merge(admin_http::probe_routes(server.readiness()));
    admin_http::serve(&tasks, "metrics", port, routes);
    tracing::info!(cluster = config.cluster, node = config.node, api = %server.api_address(), "name server runs");
    shutdown.wait(&mut signals).await;
    let exit = shutdown.exit();
    if exit != Exit::Disk {
        tokio::select! {
            ended = tokio::time::timeout(STOP_MAX, server.stop()) => {
                if ended.is_err() {
                    tracing::warn!("did not stop in {STOP_MAX:?}; ending as it is");
                }
            }
            name = signals.next() => tracing::warn!("{name} again, stopping at once"),
        }
    }
    tasks.shutdown().stop();
    tasks.wait(Duration::from_secs(1)).await;
    Ok(exit)
}
