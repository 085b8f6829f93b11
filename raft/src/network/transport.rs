//! The Raft port of a process: one listener, the runtime that all its groups' Raft work runs on, and the
//! connections to other processes.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster::raft_append_server::RaftAppendServer;
use mq_protocol::cluster::raft_bulk_server::RaftBulkServer;
use mq_protocol::cluster::raft_control_server::RaftControlServer;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::MAX_MESSAGE;
use super::endpoint::Endpoint;
use super::faults::Faults;
use super::peers::Peers;
use super::server::Handlers;
use crate::error::StartError;

const WORKERS: usize = 2;
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
const FRAME_SIZE: u32 = 256 << 10;

/// Groups of this process by name.
#[derive(Default)]
pub(crate) struct Groups {
    by_name: RwLock<BTreeMap<String, Arc<Endpoint>>>,
}

impl Groups {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Endpoint>> {
        self.by_name.read().get(name).cloned()
    }
}

/// One per process and Raft port; serves all groups.
pub struct Transport {
    handle: Handle,
    address: SocketAddr,
    groups: Arc<Groups>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) faults: Arc<Faults>,
    running: Mutex<Option<Running>>,
}

struct Running {
    runtime: Runtime,
    server: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Transport {
    /// Listens on `listen` (`host:port`, port 0 = any free one).
    ///
    /// # Errors
    /// The address is none, or in use.
    #[expect(clippy::unused_async, reason = "binding is a start-up step of an async server")]
    pub async fn bind(listen: &str) -> Result<Arc<Self>, StartError> {
        let failed = |e: std::io::Error| StartError::Transport(format!("Raft port {listen}: {e}"));
        let listener = std::net::TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("raft")
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let groups = Arc::new(Groups::default());
        let handlers = Handlers { groups: groups.clone() };
        let (stop, stopping) = oneshot::channel::<()>();
        let listener = {
            let _entered = handle.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed)?
        };
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = handle.spawn(serve(incoming, handlers, async move { drop(stopping.await) }));
        Ok(Arc::new(Self {
            peers: Arc::new(Peers::new(handle.clone())),
            faults: Arc::default(),
            handle,
            address,
            groups,
            running: Mutex::new(Some(Running { runtime, server, stop })),
        }))
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Faults of what this process sends.
    #[cfg(feature = "testkit")]
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The runtime of all Raft work.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn register(&self, endpoint: Arc<Endpoint>) -> Result<(), StartError> {
        let name = endpoint.local.group.clone();
        let mut by_name = self.groups.by_name.write();
        if by_name.contains_key(&name) {
            return Err(StartError::Transport(format!("group {name} is served already")));
        }
        by_name.insert(name, endpoint);
        Ok(())
    }

    pub(crate) fn deregister(&self, endpoint: &Arc<Endpoint>) {
        endpoint.close();
        self.groups.by_name.write().remove(&endpoint.local.group);
    }

    /// Ends the listener, all connections and the runtime. Groups must have been shut down before.
    pub async fn stop(&self) {
        let running = self.running.lock().take();
        let Some(Running { runtime, server, stop }) = running else { return };
        for endpoint in self.groups.by_name.read().values() {
            endpoint.close();
        }
        // An error means that the server has ended by itself.
        stop.send(()).ok();
        // What does not end by itself ends with the runtime.
        drop(tokio::time::timeout(STOP_TIMEOUT, server).await);
        runtime.shutdown_background();
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().take() {
            running.runtime.shutdown_background();
        }
    }
}

async fn serve(incoming: TcpIncoming, handlers: Handlers, stopping: impl Future<Output = ()>) {
    let control = RaftControlServer::new(handlers.clone()).max_decoding_message_size(MAX_MESSAGE);
    let bulk = RaftBulkServer::new(handlers.clone()).max_encoding_message_size(MAX_MESSAGE);
    let append = RaftAppendServer::new(handlers)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let served = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_SIZE)
        .http2_keepalive_interval(Some(Duration::from_secs(1)))
        .http2_keepalive_timeout(Some(Duration::from_secs(2)))
        .add_service(control)
        .add_service(append)
        .add_service(bulk)
        .serve_with_incoming_shutdown(incoming, stopping)
        .await;
    if let Err(error) = served {
        tracing::error!("Raft port: {error}");
    }
}
