//! The view that a status output shows, put together from Raft's metrics, the log and the bootstrap.

use mq_store::commit_log::CommitLog;
use mq_store::{LogIndex, Term};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;

use crate::config::GroupConfig;
use crate::network::endpoint::Endpoint;
use crate::types::{LogId, Node, Raft, entry_id};
use crate::view::{GroupState, GroupStatusView, Leadership, MemberView};

/// Before Raft runs: for whom this node waits.
pub(crate) fn waiting(config: &GroupConfig, endpoint: &Endpoint) -> GroupStatusView {
    let members = config.members.iter().map(|m| MemberView {
        id: m.id,
        node: m.node.clone(),
        raft_address: m.raft_address.clone(),
        api_address: m.api_address.clone(),
        client_address: m.client_address.clone(),
        role: m.role,
        voter: false,
        matched: None,
    });
    GroupStatusView {
        group: config.group.clone(),
        group_uuid: endpoint.local.uuid().to_string(),
        node_id: endpoint.local.me,
        state: GroupState::Waiting,
        waiting_for: endpoint.formation.waiting_for(),
        members: members.collect(),
        ..GroupStatusView::default()
    }
}

/// While Raft runs.
pub(crate) fn running(
    config: &GroupConfig,
    endpoint: &Endpoint,
    raft: &Raft,
    log: &CommitLog,
    leadership: &Leadership,
) -> GroupStatusView {
    // One borrow, cloned at once: a held one would block Raft's core.
    let metrics = raft.metrics().borrow_watched().clone();
    let index = |id: &LogId| LogIndex(id.index);
    let membership = metrics.membership_config.membership();
    let unformed = metrics.last_log_index.is_none();
    let state = match metrics.state {
        _ if unformed => GroupState::Waiting,
        ServerState::Learner => GroupState::Learner,
        ServerState::Follower => GroupState::Follower,
        ServerState::Candidate => GroupState::Candidate,
        ServerState::Leader => GroupState::Leader,
        ServerState::Shutdown => GroupState::Stopped,
    };
    let voters: Vec<_> = membership.voter_ids().collect();
    let members = membership.nodes().map(|(id, node)| {
        let Node { node, raft_address, api_address, client_address, role, store_id: _ } = node.clone();
        let matched = metrics.replication.as_ref().and_then(|r| r.get(id)).and_then(|m| m.as_ref());
        let voter = voters.contains(id);
        let id = *id;
        MemberView {
            id,
            node,
            raft_address,
            api_address,
            client_address,
            role,
            voter,
            matched: matched.map(index),
        }
    });
    let empty = waiting(config, endpoint);
    let members: Vec<_> = members.collect();
    GroupStatusView {
        waiting_for: if unformed { empty.waiting_for } else { String::new() },
        members: if members.is_empty() { empty.members } else { members },
        state,
        term: Term(metrics.vote.leader_id.term),
        leader: leadership.leader.clone(),
        leader_ready: leadership.ready,
        last: metrics.last_log_index.map(LogIndex),
        committed: metrics.local_committed.as_ref().map(index),
        applied: metrics.last_applied.as_ref().map(|id| entry_id(id).index),
        flushed: log.watermark().flushed().map(|id| id.index),
        log_start: mq_store::LogOffset(0),
        log_end: log.end(),
        ..empty
    }
}
