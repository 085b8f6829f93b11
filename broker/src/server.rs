//! Starts and stops a broker process. One function starts it bottom up, one stops it top to bottom; every task in
//! between belongs to the [`Broker`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mq_protocol::cluster::broker_admin_server::BrokerAdminServer;
use mq_protocol::v2::messaging_service_server::MessagingServiceServer;
use mq_raft::{Fatal, GroupConfig, MemberConfig, RaftGroup, Role, Timers, Transport, exit_of_store};
use mq_runtime::admin_http::BindError;
use mq_runtime::clock::Clock;
use mq_runtime::exit::Exit;
use mq_runtime::process::StartFailure;
use mq_runtime::random::Random;
use mq_runtime::shutdown::Shutdown;
use mq_runtime::tasks::{OnError, Tasks};
use mq_store::fs::FileSystem;
use mq_store::{Backend, DataLock, StoreError};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, oneshot};
use tonic::service::Routes as GrpcRoutes;

use crate::api::admin::AdminApi;
use crate::api::grpc::context::Port;
use crate::api::grpc::{AutoCreate, MessagingApi};
use crate::api::listener::{Bound, Listener};
use crate::clients::Clients;
use crate::config::{Config, ConfigError, GroupSection, TimerProfile};
use crate::consume::Consumer;
use crate::disk::DiskRoom;
use crate::forward::{Forward, MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::group::{BrokerGroup, Groups, Open};
use crate::metrics::Metrics;
use crate::ready::{Readiness, readiness};
use crate::registration;
use crate::routes::{NameServers, Routes};
use crate::state::{self, StateView};

const REFRESH_METRICS_EVERY: Duration = Duration::from_secs(1);
/// Heartbeats that may be on their way to leaders.
const COPIES_MAX: usize = 256;
/// Tasks have this long to end after everything else has.
const TASKS_END_MAX: Duration = Duration::from_secs(2);

/// What a broker gets from its process.
#[derive(Clone)]
pub struct Deps {
    /// All file access.
    pub fs: Arc<dyn FileSystem>,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Source of identities and marks.
    pub random: Random,
    /// Where derived state lives.
    pub backend: Backend,
}

/// A broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The data folder.
    #[error(transparent)]
    Data(#[from] StoreError),
    /// A broker group.
    #[error(transparent)]
    Raft(#[from] mq_raft::StartError),
}

impl StartFailure for StartError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Bind(_) => Exit::Config,
            Self::Data(error) => exit_of_store(error),
            Self::Raft(error) => error.exit(),
        }
    }
}

/// A running broker.
pub struct Broker {
    client_address: SocketAddr,
    api_address: SocketAddr,
    groups: Arc<Groups>,
    metrics: Arc<Metrics>,
    transport: Arc<Transport>,
    listeners: [Listener; 2],
    tasks: Tasks,
    _lock: DataLock,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").field("client_address", &self.client_address).finish_non_exhaustive()
    }
}

impl Broker {
    /// Starts everything. Returns as soon as the ports answer; groups form and elect in the background, see
    /// [`Broker::readiness`]. When the broker cannot go on, it says so to `shutdown`.
    pub async fn start(mut config: Config, deps: Deps, shutdown: Shutdown) -> Result<Self, StartError> {
        config.validate()?;
        deps.fs.create_dir_all(&config.data)?;
        let lock = DataLock::acquire(&*deps.fs, &config.data)?;
        let client = Bound::bind("client_listen", &config.client_listen, Port::Client).await?;
        let api = Bound::bind("api_listen", &config.api_listen, Port::Api).await?;
        let transport = Transport::bind(&config.raft_listen).await?;
        let taken = Taken { client: client.address(), api: api.address(), raft: transport.local_addr() };
        taken.fill_in(&mut config);

        let tasks = Tasks::new(shutdown);
        let left = Arc::new(AtomicUsize::new(config.broker.group.len()));
        let disk = Arc::new(DiskRoom::new(config.disk.refuse_percent));
        disk.measure(&config.data);
        let mut groups: Vec<Arc<BrokerGroup>> = Vec::new();
        for section in &config.broker.group {
            match start_group(&config, section, &transport, &deps, (&left, &disk), &tasks).await {
                Ok(group) => groups.push(group),
                Err(error) => {
                    // What runs already lets its files and ports go.
                    tasks.shutdown().stop();
                    futures::future::join_all(groups.iter().map(|group| group.raft.shutdown())).await;
                    transport.stop().await;
                    return Err(error);
                }
            }
        }
        let watch = disk.watch(config.data.clone(), tasks.token());
        tasks.spawn("room on disk", OnError::StopProcess, watch);
        let parts = Parts::new(&config, &deps, Groups::new(groups), tasks.clone());
        parts.run_background(&config);
        let listeners = parts.serve(&config, &deps, client, api);
        Ok(Self {
            client_address: taken.client,
            api_address: taken.api,
            groups: parts.messaging.groups,
            metrics: parts.messaging.metrics,
            transport,
            listeners,
            tasks,
            _lock: lock,
        })
    }

    /// Where clients are served.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// Where nodes and administrators are served.
    pub fn api_address(&self) -> SocketAddr {
        self.api_address
    }

    /// The broker groups of this process.
    pub fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    /// Makes the figures visible.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// A closure that answers `/readyz`.
    pub fn readiness(&self) -> impl Fn() -> Readiness + Send + Sync + Clone + 'static {
        let (groups, stopping) = (Arc::clone(&self.groups), self.tasks.token());
        move || readiness(&groups, stopping.is_cancelled())
    }

    /// Stops top to bottom: refuses new calls, ends polls and streams, lets open calls end, hands over leadership,
    /// stops Raft, writes the last checkpoint, closes the log, lets the data folder go.
    pub async fn stop(self) {
        self.tasks.shutdown().stop();
        let [client, api] = &self.listeners;
        tokio::join!(client.stop(), api.stop());
        futures::future::join_all(self.groups.iter().map(|group| group.raft.shutdown())).await;
        self.transport.stop().await;
        if !self.tasks.wait(TASKS_END_MAX).await {
            tracing::warn!("tasks did not end in time");
        }
    }

    /// Stops as a killed process would, as far as that is possible inside one: nothing is handed over, nothing is
    /// written at the end.
    #[cfg(feature = "testkit")]
    pub async fn kill(self) {
        self.tasks.shutdown().stop();
        let [client, api] = &self.listeners;
        client.abort();
        api.abort();
        futures::future::join_all(self.groups.iter().map(|group| group.raft.kill())).await;
        self.transport.stop().await;
    }
}

/// The addresses that were really bound, for settings with port 0.
#[derive(Debug, Clone, Copy)]
struct Taken {
    client: SocketAddr,
    api: SocketAddr,
    raft: SocketAddr,
}

impl Taken {
    /// In this node's own member entries port 0 stands for the port that was taken.
    fn fill_in(&self, config: &mut Config) {
        let node = config.node.clone();
        let members = config.broker.group.iter_mut().flat_map(|group| &mut group.members);
        for member in members.filter(|member| member.node == node) {
            for (address, taken) in [
                (&mut member.raft, self.raft),
                (&mut member.api, self.api),
                (&mut member.client, self.client),
            ] {
                if let Some(host) = address.strip_suffix(":0") {
                    *address = format!("{host}:{}", taken.port());
                }
            }
        }
    }
}

async fn start_group(
    config: &Config,
    section: &GroupSection,
    transport: &Arc<Transport>,
    deps: &Deps,
    (left, disk): (&Arc<AtomicUsize>, &Arc<DiskRoom>),
    tasks: &Tasks,
) -> Result<Arc<BrokerGroup>, StartError> {
    let (view_out, view) = oneshot::channel::<StateView>();
    let opened = Mutex::new((Some(view_out), None::<StateView>));
    let backend = deps.backend;
    let make_apply: mq_raft::MakeApply = Arc::new(move |deps| {
        let mut opened = opened.lock();
        if let Some(view) = &opened.1 {
            return Ok(Box::new(state::reopen(deps, backend, view)?));
        }
        let (apply, view) = state::open(deps, backend)?;
        opened.1 = Some(view.clone());
        if let Some(view_out) = opened.0.take() {
            // Nobody listens any more when the broker stops before the group is formed.
            let _ = view_out.send(view);
        }
        Ok(Box::new(apply))
    });
    let (left, shutdown) = (Arc::clone(left), tasks.shutdown().clone());
    let raft_deps = mq_raft::Deps {
        fs: Arc::clone(&deps.fs),
        clock: Arc::clone(&deps.clock),
        random: deps.random.clone(),
        on_fatal: Arc::new(move |event| stopped(&event, &left, &shutdown)),
    };
    let raft =
        RaftGroup::start(group_config(config, section), Arc::clone(transport), raft_deps, make_apply).await?;
    let group = Arc::new(BrokerGroup::new(
        section.name.clone(),
        raft,
        config.limits.in_flight_bytes_max,
        Arc::clone(disk),
    ));
    let opened = Arc::clone(&group);
    tasks.spawn("open a broker group", OnError::StopProcess, async move {
        if let Ok(view) = view.await {
            let consumer = Consumer::new(&opened.name, opened.raft.clone(), view.clone());
            opened.opened(Open { view, consumer });
        }
    });
    Ok(group)
}

/// What the end of one group means for the process (D11): damage stops the group, and the process only when none of
/// its groups is left; anything else stops the process.
fn stopped(event: &Fatal, left: &AtomicUsize, shutdown: &Shutdown) {
    let left = left.fetch_sub(1, Ordering::AcqRel).saturating_sub(1);
    let exit = match event {
        Fatal::Disk { .. } | Fatal::Internal { .. } => Exit::Disk,
        Fatal::Identity { .. } => Exit::Identity,
        Fatal::Damage { .. } | Fatal::Divergence { .. } if left == 0 => Exit::Damage,
        Fatal::Damage { .. } | Fatal::Divergence { .. } => {
            tracing::error!(group = event.group(), "stopped, {left} other groups go on: {event}");
            return;
        }
    };
    shutdown.fail(exit, event.to_string());
}

fn group_config(config: &Config, section: &GroupSection) -> GroupConfig {
    let members = section.members.iter().zip(1..).map(|(member, id)| MemberConfig {
        id,
        node: member.node.clone(),
        raft_address: member.raft.clone(),
        api_address: member.api.clone(),
        client_address: member.client.clone(),
        role: Role::Data,
    });
    let limits = mq_raft::Limits {
        uncommitted_bytes: usize::try_from(config.limits.in_flight_bytes_max).unwrap_or(usize::MAX),
        ..mq_raft::Limits::default()
    };
    GroupConfig {
        cluster: config.cluster.clone(),
        group: section.name.clone(),
        node_name: config.node.clone(),
        members: members.collect(),
        dir: config.data.join(&section.name),
        segment_size: config.log.segment_size,
        frame_limit: config.log.frame_limit,
        timers: match config.timers.profile {
            TimerProfile::Lan => Timers::lan(),
            TimerProfile::Test => Timers::test(),
        },
        limits,
    }
}

/// What serves calls, before it is put on ports.
struct Parts {
    messaging: MessagingApi,
    servers: Arc<NameServers>,
}

impl Parts {
    fn new(config: &Config, deps: &Deps, groups: Groups, tasks: Tasks) -> Self {
        let limits = &config.limits;
        let leader_wait = Duration::from_millis(limits.leader_wait_ms_max);
        let forward = Arc::new(Forward::new(config.node.clone(), leader_wait));
        let servers = Arc::new(NameServers::new(config.name.members.clone(), Arc::clone(&forward)));
        let own = config.broker.group.iter().map(|group| group.name.clone()).collect();
        let client_address = own_client_address(config);
        let messaging = MessagingApi {
            groups: Arc::new(groups),
            forward,
            routes: Arc::new(Routes::new(Arc::clone(&servers), own)),
            clients: Arc::new(Clients::new(limits.clients_max as usize)),
            metrics: Arc::new(Metrics::default()),
            limits: Arc::new(limits.clone()),
            auto: AutoCreate { topics: config.auto_create_topics, groups: config.auto_create_groups },
            store_host: store_host(&client_address),
            client_address: client_address.into(),
            clock: Arc::clone(&deps.clock),
            copies: Arc::new(Semaphore::new(COPIES_MAX)),
            waiting: Arc::new(Semaphore::new(limits.waiting_receives_max as usize)),
            streams: Arc::new(Semaphore::new(limits.clients_max as usize)),
            stopping: tasks.token(),
            tasks,
        };
        Self { messaging, servers }
    }

    fn run_background(&self, config: &Config) {
        let MessagingApi { groups, routes, clients, metrics, tasks, stopping, .. } = &self.messaging;
        for group in groups.iter() {
            let (cluster, group, servers) =
                (config.cluster.clone(), Arc::clone(group), Arc::clone(&self.servers));
            let run = registration::run(cluster, group, servers, stopping.clone());
            tasks.spawn("registration", OnError::StopProcess, run);
        }
        tasks.spawn("routes", OnError::StopProcess, Arc::clone(routes).run(stopping.clone()));
        let (groups, clients, metrics) = (Arc::clone(groups), Arc::clone(clients), Arc::clone(metrics));
        let stop = stopping.clone();
        tasks.spawn("metrics", OnError::StopProcess, async move {
            while tokio::time::timeout(REFRESH_METRICS_EVERY, stop.cancelled()).await.is_err() {
                metrics.refresh(&groups, &clients);
            }
        });
    }

    fn serve(&self, config: &Config, deps: &Deps, client: Bound, api: Bound) -> [Listener; 2] {
        let messaging = || {
            MessagingServiceServer::new(self.messaging.clone())
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        let admin = BrokerAdminServer::new(AdminApi {
            cluster: config.cluster.as_str().into(),
            groups: Arc::clone(&self.messaging.groups),
            forward: Arc::clone(&self.messaging.forward),
            random: deps.random.clone(),
        })
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let connections = config.limits.connections_max;
        [
            client.serve(GrpcRoutes::new(messaging()), connections),
            api.serve(GrpcRoutes::new(messaging()).add_service(admin), connections),
        ]
    }
}

/// Where the member lists say that clients reach this node.
fn own_client_address(config: &Config) -> String {
    let members = config.broker.group.iter().flat_map(|group| &group.members);
    let own = members.filter(|member| member.node == config.node).map(|member| &member.client).next();
    let own = own.unwrap_or(&config.client_listen);
    match (&config.advertise, own.rsplit_once(':')) {
        (Some(host), Some((_, port))) => format!("{host}:{port}"),
        _ => own.clone(),
    }
}

/// Records hold an IP address; a name that does not resolve now is shown as unspecified.
fn store_host(address: &str) -> SocketAddr {
    let found: Vec<_> = address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first()).copied();
    first.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
}
