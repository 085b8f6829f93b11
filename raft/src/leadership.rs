//! Who leads, as a watch: follows Raft's own metrics and says when the leader is *ready*.

use std::collections::BTreeSet;

use mq_store::Term;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

use crate::clock::GroupClock;
use crate::config::NodeId;
use crate::network::endpoint::Endpoint;
use crate::proposer::leader_info;
use crate::types::Raft;
use crate::view::Leadership;

/// Runs until Raft ends.
pub(crate) async fn follow(
    raft: Raft,
    me: NodeId,
    clock: GroupClock,
    endpoint: std::sync::Arc<Endpoint>,
    leadership: watch::Sender<Leadership>,
) {
    let mut server = raft.server_metrics();
    let mut data = raft.data_metrics();
    loop {
        let now = present(&raft, me);
        clock.set_voters(voters(&raft), me);
        clock.set_leading(now.me);
        let settled = !now.me || now.ready;
        if *leadership.borrow() != now {
            tracing::info!(
                group = %endpoint.local.group,
                term = now.term.0,
                leader = now.leader.as_ref().map_or(0, |l| l.id),
                ready = now.ready,
                "leadership"
            );
            leadership.send_replace(now);
        }
        remember_stores(&raft, &endpoint);
        let changed = if settled {
            server.changed().await
        } else {
            // Waits for the own term's first entry to be applied.
            tokio::select! {
                changed = server.changed() => changed,
                changed = data.changed() => changed,
            }
        };
        if changed.is_err() {
            leadership.send_modify(|l| (l.leader, l.me, l.ready) = (None, false, false));
            return;
        }
    }
}

pub(crate) fn present(raft: &Raft, me: NodeId) -> Leadership {
    let server = raft.server_metrics().borrow_watched().clone();
    let applied = raft.data_metrics().borrow_watched().last_applied;
    let term = server.vote.leader_id.term;
    let members = server.membership_config.membership();
    let leader = server.current_leader.and_then(|id| members.get_node(&id).map(|node| leader_info(id, node)));
    let is_me = server.state == ServerState::Leader && server.current_leader == Some(me);
    // The first entry of a leader's term is its blank one: applied means that a quorum has it.
    let ready = is_me && applied.is_some_and(|id| id.leader_id.term == term);
    Leadership { term: Term(term), leader, me: is_me, ready }
}

/// Whose wall clocks count for the due time.
fn voters(raft: &Raft) -> BTreeSet<NodeId> {
    let server = raft.server_metrics().borrow_watched().clone();
    server.membership_config.membership().voter_ids().collect()
}

/// From now on a member must come with the store that the membership names.
fn remember_stores(raft: &Raft, endpoint: &Endpoint) {
    let server = raft.server_metrics().borrow_watched().clone();
    let members = server.membership_config.membership();
    let stores = members.nodes().filter(|(_, node)| !node.store_id.is_empty());
    endpoint.local.set_stores(stores.map(|(id, node)| (*id, node.store_id.clone())).collect());
}
