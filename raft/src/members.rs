//! Changes of the membership, one voter or node per step.
//!
//! A step is one entry that differs from the committed membership by one voter, so that a majority of the old voters
//! and one of the new voters share a member: nothing in between is ever left behind by a leader that dies. The step
//! is decided on what this leader sees and proposed under the condition that the membership is still the one that
//! was looked at; a leader commits an entry of its own term before its first step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mq_store::LogIndex;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::entry::RaftPayload;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::Precondition;

use crate::config::NodeId;
use crate::error::MemberError;
use crate::group::RaftGroup;
use crate::types::{Members, Node, Payload, Raft};
use crate::view::MemberView;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A learner gets a vote.
    Promote(NodeId),
    /// A voter becomes a learner.
    Demote(NodeId),
    /// A member leaves.
    Remove(NodeId),
}

/// What the leader sees of its group when it decides.
#[derive(Clone, Debug)]
struct Sight {
    me: NodeId,
    /// The newest membership is committed.
    settled: bool,
    members: Members,
    last: u64,
    /// By member: the last entry known to be stored there.
    matched: BTreeMap<NodeId, u64>,
    /// Members that answered a heartbeat just now, this one included.
    heard: BTreeSet<NodeId>,
    /// Entries that a current member may lack.
    lag: u64,
}

impl Sight {
    fn is_current(&self, id: NodeId) -> bool {
        let stored = self.matched.get(&id).copied().unwrap_or(0);
        id == self.me || (self.heard.contains(&id) && self.last.saturating_sub(stored) <= self.lag)
    }

    /// The membership after `step`, or why it is not taken.
    fn after(&self, step: Step) -> Result<Members, MemberError> {
        let [voters] = self.members.get_joint_config().as_slice() else {
            return Err(MemberError::ChangeInProgress);
        };
        if !self.settled {
            return Err(MemberError::ChangeInProgress);
        }
        let mut voters = voters.clone();
        let mut nodes: BTreeMap<NodeId, Node> =
            self.members.nodes().map(|(id, node)| (*id, node.clone())).collect();
        let (Step::Promote(id) | Step::Demote(id) | Step::Remove(id)) = step;
        if !nodes.contains_key(&id) {
            return Err(MemberError::Unknown { id });
        }
        match step {
            Step::Promote(_) if !voters.insert(id) => return Err(MemberError::IsVoter { id }),
            Step::Promote(_) => self.check_target(id)?,
            Step::Demote(_) | Step::Remove(_) if id == self.me => return Err(MemberError::Leads { id }),
            Step::Demote(_) if !voters.remove(&id) => return Err(MemberError::IsLearner { id }),
            Step::Demote(_) => {}
            Step::Remove(_) => {
                voters.remove(&id);
                nodes.remove(&id);
            }
        }
        let (current, needed) =
            (voters.iter().filter(|id| self.is_current(**id)).count(), voters.len() / 2 + 1);
        if current < needed {
            return Err(MemberError::MajorityAtRisk { current, voters: voters.len(), needed });
        }
        Members::new(vec![voters], nodes).map_err(|e| MemberError::Refused(e.to_string()))
    }

    fn check_target(&self, id: NodeId) -> Result<(), MemberError> {
        let stored = self.matched.get(&id).copied().unwrap_or(0);
        let behind = self.last.saturating_sub(stored);
        if behind > self.lag {
            return Err(MemberError::TargetBehind { id, behind, limit: self.lag });
        }
        if !self.heard.contains(&id) {
            return Err(MemberError::TargetSilent { id });
        }
        Ok(())
    }
}

impl RaftGroup {
    /// All members by id, learners included, as this node knows them.
    #[must_use]
    pub fn members(&self) -> Vec<MemberView> {
        self.status().members
    }

    /// Gives a learner a vote. The index of the entry that does it, once it is committed and applied here.
    ///
    /// # Errors
    /// See [`MemberError`]; `certainly_not_changed` tells what may be repeated blindly.
    pub async fn promote(&self, id: NodeId, deadline: Instant) -> Result<LogIndex, MemberError> {
        self.step(Step::Promote(id), deadline).await
    }

    /// Takes a voter's vote away; it goes on receiving the log.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn demote(&self, id: NodeId, deadline: Instant) -> Result<LogIndex, MemberError> {
        self.step(Step::Demote(id), deadline).await
    }

    /// Takes a member out of the group: from now on it confirms nothing.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub async fn remove(&self, id: NodeId, deadline: Instant) -> Result<LogIndex, MemberError> {
        self.step(Step::Remove(id), deadline).await
    }

    async fn step(&self, step: Step, deadline: Instant) -> Result<LogIndex, MemberError> {
        if self.inner.stopped() {
            return Err(MemberError::Stopped { unknown: false });
        }
        let leader = || self.inner.leadership.borrow().leader.clone();
        let Some(running) = self.inner.running() else { return Err(MemberError::NotLeader { leader: None }) };
        {
            let leadership = self.inner.leadership.borrow();
            if !leadership.me || !leadership.ready {
                return Err(MemberError::NotLeader { leader: leadership.leader.clone() });
            }
        }
        let (timers, limits) = (&self.inner.config.timers, &self.inner.config.limits);
        let (sight, looked_at) =
            look(&running.raft, self.node_id(), timers.election_max * 2, limits.apply_lag)
                .ok_or_else(|| MemberError::NotLeader { leader: leader() })?;
        let members = sight.after(step)?;
        tracing::info!(group = %self.name(), ?step, %members, "membership changes");
        let condition = Precondition::LastMembershipLogId { last_membership_log_id: looked_at };
        let change = running.raft.append_membership(members, Payload::blank(), [condition]);
        match tokio::time::timeout_at(deadline.into(), change).await {
            Ok(Ok(done)) => Ok(LogIndex(done.log_id.index)),
            Ok(Err(RaftError::APIError(error))) => Err(self.refusal(error)),
            Ok(Err(RaftError::Fatal(_))) => Err(MemberError::Stopped { unknown: true }),
            Err(_) => Err(MemberError::Deadline),
        }
    }

    fn refusal(&self, error: ClientWriteError<crate::types::TypeConfig>) -> MemberError {
        match error {
            ClientWriteError::ForwardToLeader(_) => {
                MemberError::NotLeader { leader: self.inner.leadership.borrow().leader.clone() }
            }
            ClientWriteError::LogEntryDiscarded(_) => MemberError::Discarded,
            ClientWriteError::PreconditionFailed(_)
            | ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
            ) => MemberError::ChangeInProgress,
            ClientWriteError::ChangeMembershipError(other) => MemberError::Refused(other.to_string()),
        }
    }
}

/// What the leader sees now, and the entry of the membership it sees; `None` when it does not lead.
fn look(
    raft: &Raft,
    me: NodeId,
    silence: Duration,
    lag: u64,
) -> Option<(Sight, Option<crate::types::LogId>)> {
    // One borrow, cloned at once: a held one would block Raft's core.
    let metrics = raft.metrics().borrow_watched().clone();
    let replication = metrics.replication.as_ref()?;
    let answered = metrics.heartbeat.iter().flatten();
    let heard = answered.filter(|(_, at)| at.as_ref().is_some_and(|at| at.elapsed() < silence));
    let stored = |(id, at): (&NodeId, &Option<crate::types::LogId>)| Some((*id, at.as_ref()?.index));
    let looked_at = *metrics.membership_config.log_id();
    let sight = Sight {
        me,
        settled: looked_at == *metrics.committed_membership_config.log_id(),
        members: metrics.membership_config.membership().clone(),
        last: metrics.last_log_index.unwrap_or(0),
        matched: replication.iter().filter_map(stored).collect(),
        heard: heard.map(|(id, _)| *id).chain([me]).collect(),
        lag,
    };
    Some((sight, looked_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Voters 1…n led by 1, learner 9; all current.
    fn sight(n: u64) -> Sight {
        let ids: BTreeSet<_> = (1..=n).chain([9]).collect();
        let nodes: BTreeMap<_, _> = ids.iter().map(|id| (*id, Node::default())).collect();
        Sight {
            me: 1,
            settled: true,
            members: Members::new(vec![(1..=n).collect()], nodes).expect("valid"),
            last: 1000,
            matched: ids.iter().map(|id| (*id, 1000)).collect(),
            heard: ids,
            lag: 256,
        }
    }

    #[test]
    fn one_voter_changes_per_step_and_the_rest_stays() {
        let members = sight(3).after(Step::Promote(9)).expect("current");
        assert_eq!(members.voter_ids().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3, 9]));
        let members = sight(3).after(Step::Demote(3)).expect("a majority stays");
        assert_eq!(members.voter_ids().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
        assert!(members.get_node(&3).is_some());
        let members = sight(3).after(Step::Remove(3)).expect("a majority stays");
        assert!(members.get_node(&3).is_none());
    }

    #[test]
    fn what_is_unsafe_or_pointless_is_refused_by_its_reason() {
        assert_eq!(sight(3).after(Step::Promote(4)), Err(MemberError::Unknown { id: 4 }));
        assert_eq!(sight(3).after(Step::Promote(2)), Err(MemberError::IsVoter { id: 2 }));
        assert_eq!(sight(3).after(Step::Demote(9)), Err(MemberError::IsLearner { id: 9 }));
        assert_eq!(sight(1).after(Step::Remove(1)), Err(MemberError::Leads { id: 1 }));
        let behind = Sight { matched: BTreeMap::from([(9, 743)]), ..sight(3) };
        let refused = behind.after(Step::Promote(9));
        assert_eq!(refused, Err(MemberError::TargetBehind { id: 9, behind: 257, limit: 256 }));
        let mut silent = sight(3);
        silent.heard.remove(&9);
        assert_eq!(silent.after(Step::Promote(9)), Err(MemberError::TargetSilent { id: 9 }));
        let unsettled = Sight { settled: false, ..sight(3) };
        assert_eq!(unsettled.after(Step::Remove(9)), Err(MemberError::ChangeInProgress));
    }

    #[test]
    fn a_step_needs_a_current_majority_of_the_voters_behind_it() {
        let mut one_down = sight(3);
        one_down.heard.remove(&3);
        let refused = one_down.after(Step::Demote(2));
        assert_eq!(refused, Err(MemberError::MajorityAtRisk { current: 1, voters: 2, needed: 2 }));
        assert!(one_down.after(Step::Remove(3)).is_ok(), "the one that is down may go");
        let mut two_of_five = sight(5);
        two_of_five.matched.insert(4, 1);
        two_of_five.heard.remove(&5);
        let refused = two_of_five.after(Step::Remove(2));
        assert_eq!(refused, Err(MemberError::MajorityAtRisk { current: 2, voters: 4, needed: 3 }));
        assert!(two_of_five.after(Step::Remove(4)).is_ok());
    }
}
