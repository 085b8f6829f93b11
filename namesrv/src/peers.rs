//! Connections to the other name servers.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Addresses come from the membership, so that this is never reached in practice.
const CHANNELS_MAX: usize = 64;

/// One connection per address, made when it is first used.
#[derive(Debug, Default)]
pub struct Peers {
    channels: Mutex<BTreeMap<String, Channel>>,
}

impl Peers {
    /// The connection to an API address; `None` if that is no address.
    pub fn channel(&self, address: &str) -> Option<Channel> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Some(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .ok()?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        let channel = endpoint.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Some(channel)
    }
}
