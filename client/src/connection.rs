//! Connections to nodes: a few per address, made when needed, dropped at the first sign of trouble.
//!
//! One HTTP/2 connection handles its streams one after the other, so a busy address gets several. A failed
//! *connect* is reported apart from everything later: only then is it certain that nothing was sent.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

use crate::error::Cause;

/// Addresses known at the same time. They come from servers' answers, so there is a bound.
const NODES_MAX: usize = 256;
/// A second connection is made when the first one carries this many calls.
const CALLS_PER_CONNECTION: usize = 2;
/// Bytes of one answer that are in flight towards us before we read them.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// All connections of a client.
#[derive(Debug)]
pub(crate) struct Pool {
    connect_timeout: Duration,
    connections_per_node: usize,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
}

#[derive(Debug)]
struct Node {
    address: String,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    calls: AtomicUsize,
    /// Held while connecting, so that one attempt serves everybody who waits.
    state: tokio::sync::Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    channel: Option<Channel>,
    /// Counts connections, so that a late complaint does not drop a newer one.
    generation: u64,
    failure: Option<(Instant, Cause)>,
}

/// A connection for the length of one call.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) channel: Channel,
    node: Arc<Node>,
    slot: usize,
    generation: u64,
}

impl Pool {
    pub(crate) fn new(connect_timeout: Duration, connections_per_node: usize) -> Self {
        Self { connect_timeout, connections_per_node, nodes: Mutex::default() }
    }

    /// Takes the least busy connection to an address, making it when there is none.
    ///
    /// An error means that nothing was sent to that address.
    pub(crate) async fn lease(&self, address: &str) -> Result<Lease, Cause> {
        let node = self.node(address);
        let slot = node.least_busy();
        node.slots[slot].calls.fetch_add(1, Ordering::Relaxed);
        let counted = Counted { node, slot };
        let (channel, generation) = self.channel(&counted.node, slot).await?;
        let node = counted.hand_over();
        Ok(Lease { channel, node, slot, generation })
    }

    fn node(&self, address: &str) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Arc::clone(node);
        }
        if nodes.len() >= NODES_MAX {
            nodes.retain(|_, node| node.slots.iter().any(|slot| slot.calls.load(Ordering::Relaxed) > 0));
        }
        let slots = (0..self.connections_per_node).map(|_| Slot::default()).collect();
        let node = Arc::new(Node { address: address.to_owned(), slots });
        nodes.insert(address.to_owned(), Arc::clone(&node));
        node
    }

    async fn channel(&self, node: &Node, slot: usize) -> Result<(Channel, u64), Cause> {
        let asked = Instant::now();
        let mut state = node.slots[slot].state.lock().await;
        if let Some(channel) = &state.channel {
            return Ok((channel.clone(), state.generation));
        }
        if let Some((when, cause)) = &state.failure
            && *when >= asked
        {
            return Err(cause.clone());
        }
        match connect(&node.address, self.connect_timeout).await {
            Ok(channel) => {
                state.generation += 1;
                state.channel = Some(channel.clone());
                state.failure = None;
                Ok((channel, state.generation))
            }
            Err(reason) => {
                let cause = Cause::Connect { address: node.address.clone(), reason };
                state.failure = Some((Instant::now(), cause.clone()));
                Err(cause)
            }
        }
    }
}

impl Node {
    fn least_busy(&self) -> usize {
        let calls = |slot: &Slot| slot.calls.load(Ordering::Relaxed) / CALLS_PER_CONNECTION;
        (0..self.slots.len()).min_by_key(|slot| calls(&self.slots[*slot])).unwrap_or(0)
    }
}

/// Gives the count back when the caller stops waiting for the connection.
struct Counted {
    node: Arc<Node>,
    slot: usize,
}

impl Counted {
    fn hand_over(self) -> Arc<Node> {
        let node = Arc::clone(&self.node);
        node.slots[self.slot].calls.fetch_add(1, Ordering::Relaxed);
        node
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.node.slots[self.slot].calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease {
    /// The connection is not to be used again: the next call makes a new one.
    pub(crate) fn discard(&self) {
        // A slot that is locked is being connected just now: there is nothing to drop then.
        if let Ok(mut state) = self.node.slots[self.slot].state.try_lock()
            && state.generation == self.generation
        {
            state.channel = None;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.node.slots[self.slot].calls.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connect(address: &str, timeout: Duration) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| chain(&error))?
        .tcp_nodelay(true)
        .connect_timeout(timeout)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    match tokio::time::timeout(timeout, endpoint.connect()).await {
        Ok(connected) => connected.map_err(|error| chain(&error)),
        Err(_) => Err(format!("no connection within {} ms", timeout.as_millis())),
    }
}

/// An error with its sources: the outermost text alone says little.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_connection_is_told_apart_and_leaves_no_count() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let pool = Pool::new(Duration::from_millis(200), 2);
        let cause = pool.lease(&address).await.expect_err("nobody listens");
        assert!(matches!(cause, Cause::Connect { .. }), "{cause}");
        assert_eq!(pool.node(&address).slots[0].calls.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let pool = Pool::new(Duration::from_millis(200), 1);
        for port in 0..2 * NODES_MAX {
            pool.node(&format!("127.0.0.1:{port}"));
        }
        assert!(pool.nodes.lock().len() <= NODES_MAX);
    }
}
