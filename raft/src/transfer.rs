//! Handing over leadership: only to a member that has the whole log, and only as a whole.
//!
//! openraft's transfer is sticky: the old leader refuses writes until some other node wins. So new proposals are
//! refused first, the target catches up, and only then it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{NodeId, Role};
use crate::error::TransferError;
use crate::types::Raft;
use crate::view::Leadership;

const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// While one lives, nothing new is proposed.
pub(crate) struct Closed(Arc<AtomicUsize>);

impl Closed {
    pub(crate) fn close(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Hands over to `target`, or to the best member, and waits until another one leads.
pub(crate) async fn hand_over(
    raft: &Raft,
    me: NodeId,
    target: Option<NodeId>,
    mut leadership: watch::Receiver<Leadership>,
    deadline: Instant,
) -> Result<(), TransferError> {
    let before = leadership.borrow().clone();
    if !before.me {
        return Err(TransferError::NotLeader { leader: before.leader });
    }
    let chosen = loop {
        match choose(raft, me, target) {
            Ok(chosen) => break chosen,
            Err(TransferError::NoTarget(why)) if Instant::now() + LOOK_AGAIN > deadline => {
                return Err(TransferError::NoTarget(why));
            }
            Err(TransferError::NoTarget(_)) => tokio::time::sleep(LOOK_AGAIN).await,
            Err(error) => return Err(error),
        }
    };
    raft.trigger().transfer_leader(chosen).await.map_err(|_| TransferError::Stopped)?;
    let moved = leadership.wait_for(|now| now.term > before.term && now.leader.is_some());
    match tokio::time::timeout_at(deadline, moved).await {
        Ok(Ok(now)) if now.me => Err(TransferError::NoTarget("this node was elected again".to_owned())),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(TransferError::Stopped),
        Err(_) => Err(TransferError::Deadline),
    }
}

/// A voter whose last matched entry is the last one here; data members before witnesses.
fn choose(raft: &Raft, me: NodeId, target: Option<NodeId>) -> Result<NodeId, TransferError> {
    let metrics = raft.metrics().borrow_watched().clone();
    let Some(replication) = &metrics.replication else {
        return Err(TransferError::NotLeader { leader: None });
    };
    let membership = metrics.membership_config.membership();
    let mut current: Vec<_> = membership
        .voter_ids()
        .filter(|id| *id != me && target.is_none_or(|target| target == *id))
        .filter(|id| {
            let matched = replication.get(id).and_then(|matched| matched.as_ref());
            matched.is_some_and(|matched| Some(matched.index) == metrics.last_log_index)
        })
        .collect();
    let role = |id: &NodeId| membership.get_node(id).map_or(Role::Learner, |node| node.role);
    current.sort_by_key(|id| (role(id) != Role::Data, *id));
    current.first().copied().ok_or_else(|| {
        let whom = target.map_or_else(|| "any other voter".to_owned(), |id| format!("node {id}"));
        let last = metrics.last_log_index.unwrap_or(0);
        TransferError::NoTarget(format!("{whom} has not matched entry {last}"))
    })
}
