//! Reads that decide on absence: a barrier that a quorum confirms (ReadIndex), on the leader and on followers.

use std::time::Instant;

use mq_protocol::cluster as wire;
use mq_store::LogIndex;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::raft::ReadPolicy;

use crate::error::ReadError;
use crate::group::RaftGroup;
use crate::network::local::Uuid;
use crate::types::Raft;

impl RaftGroup {
    /// Returns when everything that was confirmed to anybody before this call is applied *here*: the leader's
    /// office is confirmed by a quorum (ReadIndex), on a follower by asking the leader.
    ///
    /// # Errors
    /// No leader, no majority, or not in time.
    pub async fn read_barrier(&self, deadline: Instant) -> Result<LogIndex, ReadError> {
        if self.inner.stopped() {
            return Err(ReadError::Stopped);
        }
        let Some(running) = self.inner.running() else { return Err(ReadError::NotLeader { leader: None }) };
        let barrier = async {
            let index = if self.inner.leadership.borrow().me {
                self.read_index(&running.raft).await?
            } else {
                self.ask_read_index(&running.raft).await?
            };
            let applied = |at: Option<u64>| at >= Some(index.0);
            let mut data = running.raft.data_metrics();
            while !applied(data.borrow_watched().last_applied.map(|id| id.index)) {
                data.changed().await.map_err(|_| ReadError::Stopped)?;
            }
            Ok(index)
        };
        tokio::time::timeout_at(deadline.into(), barrier).await.unwrap_or(Err(ReadError::Deadline))
    }

    async fn read_index(&self, raft: &Raft) -> Result<LogIndex, ReadError> {
        match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(confirmed) => Ok(LogIndex(confirmed.read_log_id().index())),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
                Err(ReadError::NotLeader { leader: self.inner.leadership.borrow().leader.clone() })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(ReadError::NoQuorum),
            Err(RaftError::Fatal(_)) => Err(ReadError::Stopped),
        }
    }

    async fn ask_read_index(&self, raft: &Raft) -> Result<LogIndex, ReadError> {
        use wire::read_index_response::Outcome;
        let Some(leader) = self.inner.leadership.borrow().leader.clone() else {
            return Err(ReadError::NotLeader { leader: None });
        };
        let unknown = || ReadError::NotLeader { leader: Some(leader.clone()) };
        let address = {
            let server = raft.server_metrics();
            let server = server.borrow_watched();
            let node = server.membership_config.membership().get_node(&leader.id);
            node.map(|node| node.raft_address.clone()).ok_or_else(unknown)?
        };
        let endpoint = &self.inner.endpoint;
        let request = wire::ReadIndexRequest { header: Some(endpoint.local.header(leader.id)) };
        let mut control = endpoint.peers.get(&address).map_err(|_| unknown())?.control();
        endpoint.faults.pass(leader.id).await;
        let answer = control.read_index(request).await.map_err(|_| unknown())?.into_inner();
        let outcome = answer.outcome();
        let wire::ReadIndexResponse { header, outcome: _, read } = answer;
        endpoint.local.check_answer(header.as_ref(), leader.id, Uuid::Equal).map_err(|_| unknown())?;
        match (outcome, read) {
            (Outcome::Confirmed, Some(read)) => Ok(LogIndex(read.index)),
            (Outcome::NoQuorum, _) => Err(ReadError::NoQuorum),
            _ => Err(unknown()),
        }
    }
}
