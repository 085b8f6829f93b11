//! Which members' processes are there: one open call per member on the control connection (D10).
//!
//! A killed process ends the call at once, and a new connection to its port is refused. Only both together count:
//! a broken connection alone is a network's matter and left to the timers.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster as wire;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use super::local::Uuid;
use crate::config::NodeId;

const OPEN_TIMEOUT: Duration = Duration::from_millis(500);
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// What is known of the members' processes.
#[derive(Debug)]
pub(crate) struct Presence {
    gone: Mutex<BTreeMap<NodeId, Instant>>,
    changed: watch::Sender<Option<NodeId>>,
}

impl Default for Presence {
    fn default() -> Self {
        Self { gone: Mutex::default(), changed: watch::channel(None).0 }
    }
}

impl Presence {
    /// The process of `member` was seen to be gone within the last `age`.
    pub(crate) fn gone_within(&self, member: NodeId, age: Duration) -> bool {
        self.gone.lock().get(&member).is_some_and(|at| at.elapsed() <= age)
    }

    /// Waits up to `patience` for the same.
    pub(crate) async fn wait_gone(&self, member: NodeId, age: Duration, patience: Duration) -> bool {
        let mut changes = self.changed.subscribe();
        let seen = async {
            while !self.gone_within(member, age) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(patience, seen).await.is_ok() && self.gone_within(member, age)
    }

    /// The member that went last, as a stream of changes.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<NodeId>> {
        self.changed.subscribe()
    }

    fn went(&self, member: NodeId) {
        self.gone.lock().insert(member, Instant::now());
        self.changed.send_replace(Some(member));
    }

    fn came(&self, member: NodeId) {
        self.gone.lock().remove(&member);
    }
}

/// Watches one member until the group closes.
pub(crate) async fn watch(endpoint: Arc<Endpoint>, member: NodeId, address: String) {
    let mut pause = RETRY;
    loop {
        let watched = async {
            match hold(&endpoint, member, &address).await {
                // It was there and the call ended: is the process?
                Ok(()) => {
                    pause = RETRY;
                    if refused(&address).await {
                        endpoint.presence.went(member);
                    }
                }
                Err(error) => {
                    tracing::debug!(group = %endpoint.local.group, "control call to node {member}: {error}");
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
            tokio::time::sleep(pause).await;
        };
        tokio::select! {
            () = watched => {}
            () = endpoint.closed() => return,
        }
    }
}

/// Opens the call and stays in it. `Ok` when it was open and ended.
async fn hold(endpoint: &Endpoint, member: NodeId, address: &str) -> Result<(), String> {
    let request = wire::HoldRequest { header: Some(endpoint.local.header(member)) };
    let opened = async {
        endpoint.faults.pass(member).await;
        let mut control = endpoint.peers.get(address)?.control();
        let mut events = control.hold(request).await.map_err(|e| e.to_string())?.into_inner();
        let first = events.message().await.map_err(|e| e.to_string())?.ok_or("ended at once")?;
        endpoint.local.check_answer(first.header.as_ref(), member, Uuid::Equal).map_err(|e| e.to_string())?;
        Ok::<_, String>(events)
    };
    let mut events = tokio::time::timeout(OPEN_TIMEOUT, opened)
        .await
        .map_err(|_| format!("not within {OPEN_TIMEOUT:?}"))??;
    endpoint.presence.came(member);
    if let Some(raft) = endpoint.raft() {
        // A member that is back is tried at once, not after its back-off.
        raft.trigger().reset_backoff([member]).await.ok();
    }
    while let Ok(Some(wire::HoldEvent { header: _ })) = events.message().await {}
    Ok(())
}

/// A dying process may close its connections a moment before its listener.
async fn refused(address: &str) -> bool {
    for pause in [0, 5, 10, 20, 30] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        match tokio::time::timeout(REFUSAL_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return true,
            Ok(Err(_) | Ok(_)) => {}
            Err(_) => return false,
        }
    }
    false
}
