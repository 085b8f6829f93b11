//! One group's end of the network: what its clients and its handlers share.

use std::sync::Arc;
use std::time::Duration;

use mq_store::commit_log::CommitLog;
use parking_lot::RwLock;
use tokio::sync::watch;
use tonic::Status;

use super::faults::Faults;
use super::local::Local;
use super::peers::Peers;
use super::presence::Presence;
use crate::bootstrap::Formation;
use crate::clock::GroupClock;
use crate::types::{LogId, Raft, log_id};

pub(crate) struct Endpoint {
    pub local: Arc<Local>,
    pub clock: GroupClock,
    pub faults: Arc<Faults>,
    pub peers: Arc<Peers>,
    pub formation: Arc<Formation>,
    pub presence: Arc<Presence>,
    pub append_stall: Duration,
    pub append_window: usize,
    raft: RwLock<Option<(Raft, CommitLog)>>,
    closing: watch::Sender<bool>,
}

/// What an endpoint is made of.
pub(crate) struct Parts {
    pub local: Arc<Local>,
    pub clock: GroupClock,
    pub faults: Arc<Faults>,
    pub peers: Arc<Peers>,
    pub formation: Arc<Formation>,
    pub append_stall: Duration,
    pub append_window: usize,
}

impl Endpoint {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { local, clock, faults, peers, formation, append_stall, append_window } = parts;
        Self {
            local,
            clock,
            faults,
            peers,
            formation,
            presence: Arc::default(),
            append_stall,
            append_window,
            raft: RwLock::new(None),
            closing: watch::channel(false).0,
        }
    }

    pub(crate) fn set_raft(&self, raft: Raft, log: CommitLog) {
        *self.raft.write() = Some((raft, log));
    }

    /// Raft stops and will be started again: calls are answered as before the group was formed.
    #[cfg(feature = "testkit")]
    pub(crate) fn take_raft(&self) {
        *self.raft.write() = None;
    }

    pub(crate) fn raft(&self) -> Option<Raft> {
        self.raft.read().as_ref().map(|(raft, _)| raft.clone())
    }

    /// The log, while the group runs here.
    pub(crate) fn log(&self) -> Option<CommitLog> {
        self.raft.read().as_ref().map(|(_, log)| log.clone())
    }

    /// Last entry in the log here.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.raft.read().as_ref().and_then(|(_, log)| log.last()).map(log_id)
    }

    /// Raft, or how a caller is told that it does not run yet.
    pub(crate) fn running(&self) -> Result<Raft, Status> {
        self.raft()
            .ok_or_else(|| Status::unavailable(format!("group {} is not formed here yet", self.local.group)))
    }

    /// Ends all streams of this group.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
        *self.raft.write() = None;
    }

    /// True when the group left the network: nothing may leave any more.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    /// Returns when the group closes.
    pub(crate) async fn closed(&self) {
        // An error means that the endpoint itself is gone.
        self.closing.subscribe().wait_for(|closing| *closing).await.ok();
    }
}
