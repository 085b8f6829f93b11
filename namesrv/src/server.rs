//! A name server as a whole: what starts it, and the one function that stops it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mq_raft::{
    ApplyDeps, Deps as RaftDeps, Fatal, LeaderInfo, RaftGroup, StartError as RaftStartError, Transport,
    exit_of_store,
};
use mq_runtime::admin_http::{BindError, Readiness, bind};
use mq_runtime::clock::Clock;
use mq_runtime::exit::Exit;
use mq_runtime::process::StartFailure;
use mq_runtime::random::Random;
use mq_runtime::shutdown::Shutdown;
use mq_runtime::tasks::{OnError, Tasks};
use mq_store::{Backend, DataLock, FileSystem, StoreError};
use prometheus_client::registry::Registry;

use crate::api::{self, Api};
use crate::config::Config;
use crate::contact::Contact;
use crate::liveness::Liveness;
use crate::metrics::NameMetrics;
use crate::name_state::NameState;
use crate::node::Node;
use crate::peers::Peers;
use crate::{state_machine, watch};

/// The own tasks have this long to end.
const TASKS_END_MAX: Duration = Duration::from_secs(3);

/// What a name server gets from its process.
#[derive(Clone)]
pub struct Deps {
    /// All file access.
    pub fs: Arc<dyn FileSystem>,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Source of ids.
    pub random: Random,
    /// What holds the state.
    pub backend: Backend,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name group.
    #[error(transparent)]
    Raft(#[from] RaftStartError),
    /// The API port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A socket that was just bound.
    #[error("the API port: {0}")]
    Socket(#[from] std::io::Error),
}

impl StartFailure for StartError {
    fn exit(&self) -> Exit {
        match self {
            Self::Store(error) => exit_of_store(error),
            Self::Raft(error) => error.exit(),
            Self::Bind(_) => Exit::Config,
            Self::Socket(_) => Exit::Failed,
        }
    }
}

/// A running name server.
#[derive(Debug)]
pub struct NameServer {
    node: Arc<Node>,
    transport: Arc<Transport>,
    api: Api,
    tasks: Tasks,
    _lock: DataLock,
}

impl NameServer {
    /// Starts it. The name group may still be waiting for its other members when this returns. `shutdown` hears of a
    /// group that cannot go on.
    ///
    /// # Errors
    /// Ports in use, a folder that is locked, damaged or another node's.
    pub async fn start(config: &Config, deps: Deps, shutdown: Shutdown) -> Result<Self, StartError> {
        let lock = DataLock::acquire(deps.fs.as_ref(), &config.data)?;
        let listener = bind("api_listen", &config.api_listen).await?;
        let transport = Transport::bind(&config.raft_listen).await?;
        let (state, metrics) = (NameState::default(), NameMetrics::default());
        let raft = match start_group(config, &deps, &transport, state.clone(), shutdown).await {
            Ok(raft) => raft,
            Err(error) => {
                transport.stop().await;
                return Err(error.into());
            }
        };
        let node = Arc::new(Node {
            cluster: config.cluster.clone(),
            name: config.node.clone(),
            raft,
            state,
            liveness: Liveness::new(config.limits.lost_after_ms),
            contact: Contact::new(config.limits.route_age_ms_max),
            peers: Peers::default(),
            clock: deps.clock,
            random: deps.random,
            leader_wait: Duration::from_millis(config.limits.leader_wait_ms),
            watchers: api::watchers(),
            metrics,
        });
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn("contact", OnError::Log, watch::contact(node.clone(), tasks.token()));
        tasks.spawn("expiry", OnError::Log, watch::expiry(node.clone(), tasks.token()));
        let routes = api::routes(&node);
        let api = Api::serve(listener, routes, config.limits.connections_max, Tasks::new(Shutdown::new()))?;
        Ok(Self { node, transport, api, tasks, _lock: lock })
    }

    /// Where brokers, administrators and clients reach it.
    #[must_use]
    pub fn api_address(&self) -> SocketAddr {
        self.api.address()
    }

    /// Who leads the name group, as far as this node knows.
    #[must_use]
    pub fn leader(&self) -> Option<LeaderInfo> {
        self.node.raft.leadership().borrow().leader.clone()
    }

    /// Registers its figures.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.node.metrics.register(registry);
    }

    /// Answers `/readyz`: ready when the group is formed and this node may answer route queries.
    #[must_use]
    pub fn readiness(&self) -> Arc<dyn Fn() -> Readiness + Send + Sync> {
        let node = self.node.clone();
        Arc::new(move || {
            let status = node.raft.status();
            let waiting_for = if !status.stopped_by.is_empty() {
                status.stopped_by
            } else if !status.waiting_for.is_empty() {
                status.waiting_for
            } else if let Err(error) = node.fresh() {
                error.to_string()
            } else {
                String::new()
            };
            let ready = waiting_for.is_empty();
            let leader = status.leader.map(|leader| leader.node);
            let reason = serde_json::json!({
                "group": status.group, "state": status.state.as_str(), "leader": leader, "waiting_for": waiting_for,
            });
            Readiness { ready, reason }
        })
    }

    /// Stops it, top to bottom: no new calls, the open ones end, leadership goes to another member, Raft stops, the
    /// state makes its last checkpoint, the Raft port closes.
    pub async fn stop(self) {
        self.api.stop().await;
        self.tasks.shutdown().stop();
        self.tasks.wait(TASKS_END_MAX).await;
        self.node.raft.shutdown().await;
        self.transport.stop().await;
    }

    /// Ends it as a killed process would: nothing is handed over, nothing is checkpointed.
    #[cfg(feature = "testkit")]
    pub async fn kill(self) {
        self.node.raft.kill().await;
        self.transport.stop().await;
        self.tasks.shutdown().stop();
        self.api.stop().await;
        self.tasks.wait(TASKS_END_MAX).await;
    }
}

async fn start_group(
    config: &Config,
    deps: &Deps,
    transport: &Arc<Transport>,
    state: NameState,
    shutdown: Shutdown,
) -> Result<RaftGroup, RaftStartError> {
    let backend = deps.backend;
    let make_apply = move |parts: ApplyDeps| -> Result<Box<dyn mq_raft::Apply>, mq_raft::ApplyError> {
        Ok(Box::new(state_machine::open(parts, backend, state.clone())?))
    };
    let on_fatal = move |fatal: Fatal| shutdown.fail(fatal.exit(), fatal.to_string());
    let raft_deps = RaftDeps {
        fs: deps.fs.clone(),
        clock: deps.clock.clone(),
        random: deps.random.clone(),
        on_fatal: Arc::new(on_fatal),
    };
    RaftGroup::start(config.group(), transport.clone(), raft_deps, Arc::new(make_apply)).await
}
