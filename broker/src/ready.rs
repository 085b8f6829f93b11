//! Is this broker of use? `/readyz` says yes when every broker group of the process is formed and knows a leader,
//! else for whom or what each one waits.

use serde::Serialize;

use crate::group::Groups;

/// Answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// All groups serve.
    pub ready: bool,
    /// One entry per group.
    pub groups: Vec<GroupReadiness>,
}

/// One broker group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupReadiness {
    /// `brokerName`.
    pub group: String,
    /// waiting, follower, candidate, leader, stopped.
    pub state: &'static str,
    /// Node that leads, when known.
    pub leader: Option<String>,
    /// Why the group does not serve; empty when it does.
    pub waiting_for: String,
}

/// The present answer.
pub fn readiness(groups: &Groups, stopping: bool) -> Readiness {
    let groups: Vec<_> = groups
        .iter()
        .map(|group| {
            let status = group.raft.status();
            let leader = status.leader.as_ref().map(|leader| leader.node.clone());
            let waiting_for = if !status.stopped_by.is_empty() {
                status.stopped_by
            } else if !status.waiting_for.is_empty() {
                status.waiting_for
            } else if group.open().is_err() {
                "the state to be opened".to_owned()
            } else if leader.is_none() {
                "a leader".to_owned()
            } else {
                String::new()
            };
            GroupReadiness { group: group.name.clone(), state: status.state.as_str(), leader, waiting_for }
        })
        .collect();
    let ready = !stopping && groups.iter().all(|group| group.waiting_for.is_empty());
    Readiness { ready, groups }
}
