//! Connections to the other processes, shared by all groups and purposes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster::raft_append_client::RaftAppendClient;
use mq_protocol::cluster::raft_bulk_client::RaftBulkClient;
use mq_protocol::cluster::raft_control_client::RaftControlClient;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::transport::{Channel, Endpoint};

use super::MAX_MESSAGE;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
const FRAME_SIZE: u32 = 256 << 10;

/// One process's connections.
#[derive(Debug)]
pub(crate) struct Peer {
    control: Channel,
    append: Channel,
    bulk: Channel,
}

impl Peer {
    pub(crate) fn control(&self) -> RaftControlClient<Channel> {
        RaftControlClient::new(self.control.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn bulk(&self) -> RaftBulkClient<Channel> {
        RaftBulkClient::new(self.bulk.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn append(&self) -> RaftAppendClient<Channel> {
        RaftAppendClient::new(self.append.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }
}

/// Peers by address; as many as the memberships name.
#[derive(Debug)]
pub(crate) struct Peers {
    runtime: Handle,
    by_address: Mutex<BTreeMap<String, Arc<Peer>>>,
}

impl Peers {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, by_address: Mutex::default() }
    }

    /// Connections are made on first use and again after they broke.
    pub(crate) fn get(&self, address: &str) -> Result<Arc<Peer>, String> {
        let mut by_address = self.by_address.lock();
        if let Some(peer) = by_address.get(address) {
            return Ok(peer.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| format!("{address:?} is no address: {e}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            // Heartbeats notice a silent cut but do not end it: after it, TCP would wait about as long again.
            .http2_keep_alive_interval(Duration::from_secs(1))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true);
        let append = endpoint
            .clone()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_SIZE);
        let _entered = self.runtime.enter();
        let (control, bulk) = (endpoint.connect_lazy(), append.connect_lazy());
        let peer = Arc::new(Peer { control, append: append.connect_lazy(), bulk });
        by_address.insert(address.to_owned(), peer.clone());
        Ok(peer)
    }
}
