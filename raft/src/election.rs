//! The fast path to a new leader when the old one's process has died (D10).
//!
//! A follower whose control connection to the leader closed, and to which a new connection is refused, asks the
//! other voters. If it and those who saw the same are a majority of *all* voters, the one of them with the longest
//! log starts an election that bypasses the voters' lease. A wrong guess costs an election, never safety: leases
//! guard nothing here but peace.

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster as wire;
use openraft::raft::TransferLeaderRequest;
use tokio::time::Instant;

use crate::config::NodeId;
use crate::network::convert;
use crate::network::endpoint::Endpoint;
use crate::network::local::Uuid;
use crate::types::{LogId, Members, Node, Raft, Vote};

/// A yes is void after this time.
const VALID: Duration = Duration::from_millis(100);
/// An asked voter may notice a moment later.
const PATIENCE: Duration = Duration::from_millis(50);
/// The next candidate waits this long for the one before it.
const NEXT: Duration = Duration::from_millis(50);

/// A voter's answer: is the leader of `vote` gone for this one as well, and how long is its log?
pub(crate) async fn confirm_gone(endpoint: &Endpoint, raft: &Raft, vote: Vote) -> (bool, Option<LogId>) {
    let leader = vote.leader_id.voted_for;
    let same = |raft: &Raft| current(raft).vote == vote;
    let gone = leader != endpoint.local.me
        && same(raft)
        && endpoint.presence.wait_gone(leader, VALID, PATIENCE).await
        && same(raft);
    (gone, endpoint.last())
}

/// Waits for the leader's process to go, for the group's whole life.
pub(crate) async fn watch(endpoint: Arc<Endpoint>, raft: Raft) {
    let mut changes = endpoint.presence.changes();
    while changes.changed().await.is_ok() {
        let gone = *changes.borrow_and_update();
        if let Some(gone) = gone
            && let Err(why) = replace(&endpoint, &raft, gone).await
        {
            tracing::debug!(group = %endpoint.local.group, "node {gone} is gone, no fast election: {why}");
        }
    }
}

struct Situation {
    vote: Vote,
    leader: Option<NodeId>,
    members: Members,
}

fn current(raft: &Raft) -> Situation {
    use openraft::async_runtime::watch::WatchReceiver;
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    Situation {
        vote: metrics.vote,
        leader: metrics.current_leader,
        members: metrics.membership_config.membership().clone(),
    }
}

async fn replace(endpoint: &Arc<Endpoint>, raft: &Raft, gone: NodeId) -> Result<(), &'static str> {
    let Situation { vote, leader, members } = current(raft);
    let me = endpoint.local.me;
    let voters: Vec<_> = members.voter_ids().collect();
    if leader != Some(gone) || !vote.committed || vote.leader_id.voted_for != gone {
        return Err("it was not the leader");
    }
    if !voters.contains(&me) {
        return Err("this node has no vote");
    }
    let last = endpoint.last();
    let others = members.nodes().filter(|(id, _)| voters.contains(id) && **id != me && **id != gone);
    let asked = others.map(|(id, node)| ask(endpoint, *id, node, vote, last));
    let answers = futures::future::join_all(asked).await;
    let answered = Instant::now();
    let mut agreeing: Vec<_> = answers.into_iter().flatten().collect();
    agreeing.push((me, last));
    if agreeing.len() <= voters.len() / 2 {
        return Err("no majority saw it");
    }
    tokio::time::sleep(NEXT * rank(&agreeing, me)).await;
    if answered.elapsed() > VALID {
        return Err("the answers are void");
    }
    if current(raft).vote != vote {
        return Err("another vote came first");
    }
    tracing::info!(group = %endpoint.local.group, "node {gone}, leader of {vote}, is gone: standing for election");
    match raft.handle_transfer_leader(TransferLeaderRequest::new(vote, me, last)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err("the vote changed, or the log was not flushed in time"),
        Err(_) => Err("raft stopped"),
    }
}

/// 0 for the longest log, ties to the lowest id.
fn rank(agreeing: &[(NodeId, Option<LogId>)], me: NodeId) -> u32 {
    let mut order: Vec<_> = agreeing.iter().collect();
    order.sort_by(|(a, a_last), (b, b_last)| b_last.cmp(a_last).then(a.cmp(b)));
    order.iter().position(|(id, _)| *id == me).map_or(0, |place| u32::try_from(place).unwrap_or(u32::MAX))
}

/// The member and the end of its log, if it says yes in time.
async fn ask(
    endpoint: &Endpoint,
    member: NodeId,
    node: &Node,
    vote: Vote,
    last: Option<LogId>,
) -> Option<(NodeId, Option<LogId>)> {
    let request = wire::LeaderGoneRequest {
        header: Some(endpoint.local.header(member)),
        vote: Some(convert::vote_to_wire(&vote)),
        last: last.as_ref().map(convert::log_id_to_wire),
    };
    let call = async {
        endpoint.faults.pass(member).await;
        endpoint.peers.get(&node.raft_address).ok()?.control().leader_gone(request).await.ok()
    };
    let answer = tokio::time::timeout(PATIENCE + NEXT, call).await.ok()??.into_inner();
    let wire::LeaderGoneResponse { header, gone, last } = answer;
    endpoint.local.check_answer(header.as_ref(), member, Uuid::Equal).ok()?;
    gone.then(|| (member, last.as_ref().map(convert::log_id_from_wire)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_log_stands_first_and_ties_go_to_the_lowest_id() {
        let at = |term, index| Some(LogId::new_term_index(term, index));
        let agreeing = [(3, at(2, 9)), (1, at(2, 8)), (2, at(2, 9)), (4, None)];
        assert_eq!([2, 3, 1, 4].map(|id| rank(&agreeing, id)), [0, 1, 2, 3]);
    }
}
