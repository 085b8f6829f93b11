//! What a name server does by itself: proves its contact with the leader, and as leader notices silent brokers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::cluster::NameResult;
use mq_store::Term;
use tokio_util::sync::CancellationToken;

use crate::command::Command;
use crate::node::Node;

/// Between two proofs of contact.
const CONTACT_EVERY: Duration = Duration::from_secs(3);
/// After a failed one.
const CONTACT_RETRY: Duration = Duration::from_millis(300);
const CONTACT_TIME: Duration = Duration::from_secs(1);
/// Between two looks at who is silent.
const EXPIRY_EVERY: Duration = Duration::from_millis(500);
const EXPIRY_TIME: Duration = Duration::from_secs(2);

/// Asks for a read barrier again and again, until stopped.
pub async fn contact(node: Arc<Node>, stop: CancellationToken) {
    let mut leadership = node.raft.leadership();
    let rounds = async {
        loop {
            leadership.borrow_and_update();
            let proven = node.barrier(Instant::now() + CONTACT_TIME).await.is_ok();
            let pause = if proven { CONTACT_EVERY } else { CONTACT_RETRY };
            // A new leader is a reason to ask at once; an ended group must not make a busy loop.
            if !matches!(tokio::time::timeout(pause, leadership.changed()).await, Ok(Ok(())) | Err(_)) {
                tokio::time::sleep(pause).await;
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = rounds => {}
    }
}

/// While this node leads: proposes that silent broker groups are lost. Shows figures on the way.
pub async fn expiry(node: Arc<Node>, stop: CancellationToken) {
    let rounds = async {
        loop {
            node.metrics.show(&node);
            let seen = node.raft.leadership().borrow().clone();
            if seen.me && seen.ready {
                expire(&node, seen.term).await;
            }
            tokio::time::sleep(EXPIRY_EVERY).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = rounds => {}
    }
}

async fn expire(node: &Node, term: Term) {
    let now = node.now_ms();
    node.liveness.lead(term, now);
    let overdue = node.liveness.overdue(term, &node.state.read().table, now);
    for lost in overdue {
        let group = lost.broker_group.clone();
        tracing::warn!(group, "broker group is silent for too long: lost");
        let proposed: Result<NameResult, _> =
            node.propose(term, &Command::Lost(lost), Instant::now() + EXPIRY_TIME).await;
        if let Err(error) = proposed {
            tracing::warn!(group, %error, "the loss is not registered yet");
        }
    }
}
