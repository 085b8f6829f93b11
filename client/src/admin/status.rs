//! State of all groups of a cluster, from every member itself.

use std::time::Duration;

use mq_protocol::cluster;
use mq_protocol::cluster::registry_client::RegistryClient;

use super::{Admin, AdminError, unanswered};

/// Time for one member's answer: a member that needs longer is shown as not answering.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(700);

/// A member and what it says of itself.
#[derive(Debug, Clone)]
pub struct MemberView {
    /// As the group's membership has it.
    pub member: cluster::MemberStatus,
    /// Its own answer, or why there is none.
    pub status: Result<cluster::GroupStatus, String>,
}

/// One Raft group.
#[derive(Debug, Clone)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// Its members in id order.
    pub members: Vec<MemberView>,
}

/// All groups of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// The name servers' group, when the cluster has one.
    pub name_group: Option<GroupView>,
    /// The broker groups.
    pub broker_groups: Vec<GroupView>,
}

impl GroupView {
    /// The member that leads by its own word, at the highest term.
    #[must_use]
    pub fn leader(&self) -> Option<&MemberView> {
        let leads = |view: &&MemberView| view.status.as_ref().is_ok_and(|status| status.state == "leader");
        self.members
            .iter()
            .filter(leads)
            .max_by_key(|view| view.status.as_ref().map_or(0, |status| status.term))
    }

    /// Entries that a member has not applied of what the group has committed, as far as its members say.
    #[must_use]
    pub fn lag(&self, member: &MemberView) -> Option<u64> {
        let statuses = self.members.iter().filter_map(|view| view.status.as_ref().ok());
        let committed = statuses.map(|status| status.committed_index).max()?;
        Some(committed.saturating_sub(member.status.as_ref().ok()?.applied_index))
    }

    /// What is wrong with it, in words; nothing when it is well.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        match self.leader().map(|leader| &leader.status) {
            None => complaints.push(format!("{}: no leader", self.name)),
            Some(Ok(status)) if !status.leader_ready => {
                complaints.push(format!("{}: the leader is not ready yet", self.name));
            }
            Some(_) => {}
        }
        for view in &self.members {
            let node = &view.member.node;
            match &view.status {
                Err(reason) => complaints.push(format!("{}: {node} does not answer: {reason}", self.name)),
                Ok(status) if status.state == "waiting" => {
                    complaints.push(format!("{}: {node} waits for {}", self.name, status.waiting_for));
                }
                Ok(status) if !matches!(status.state.as_str(), "leader" | "follower") => {
                    complaints.push(format!("{}: {node} is {}", self.name, status.state));
                }
                Ok(_) => {}
            }
        }
        complaints
    }
}

impl ClusterStatus {
    /// What is wrong anywhere; nothing when all is well.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<_> =
            self.name_group.iter().chain(&self.broker_groups).flat_map(GroupView::complaints).collect();
        if self.broker_groups.is_empty() {
            complaints.push("no broker group".to_owned());
        }
        complaints
    }
}

impl Admin {
    /// Asks every member of every group for its state.
    pub async fn cluster_status(&self) -> Result<ClusterStatus, AdminError> {
        let (name_group, groups) = tokio::join!(self.name_group(), self.broker_groups());
        let groups = match groups {
            Ok(groups) => groups,
            // A name group without a leader still answers for itself: that is what one wants to see then.
            Err(_) if name_group.is_some() => Vec::new(),
            Err(error) => return Err(error),
        };
        let asked = groups.iter().map(|group| self.group_view(&group.name, &group.members));
        Ok(ClusterStatus { name_group, broker_groups: futures::future::join_all(asked).await })
    }

    async fn group_view(&self, name: &str, members: &[cluster::MemberStatus]) -> GroupView {
        let asked = members.iter().map(|member| async {
            let answer =
                tokio::time::timeout(MEMBER_TIMEOUT, self.broker_status(&member.api_address, name)).await;
            let status = match answer {
                Ok(Ok(answer)) => answer
                    .groups
                    .into_iter()
                    .find(|status| status.group == name)
                    .ok_or_else(|| "does not host the group".to_owned()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {} ms", MEMBER_TIMEOUT.as_millis())),
            };
            MemberView { member: member.clone(), status }
        });
        GroupView { name: name.to_owned(), members: futures::future::join_all(asked).await }
    }

    /// The name servers' group; `None` when no name server is configured.
    pub(crate) async fn name_group(&self) -> Option<GroupView> {
        let servers = self.core.name_servers();
        if servers.is_empty() {
            return None;
        }
        let mut addresses = servers.to_vec();
        let mut views = self.name_views(&addresses).await;
        // Name servers that are members but not among the configured addresses.
        let members: Vec<_> = views
            .iter()
            .filter_map(|(_, status)| status.as_ref().ok())
            .flat_map(|s| s.members.clone())
            .collect();
        let unseen = |address: &String| !address.is_empty() && !addresses.contains(address);
        let mut more: Vec<String> =
            members.iter().map(|member| member.api_address.clone()).filter(unseen).collect();
        more.sort();
        more.dedup();
        views.extend(self.name_views(&more).await);
        addresses.extend(more);
        let mut shown: Vec<MemberView> =
            views.into_iter().map(|(address, status)| name_view(address, status, &members)).collect();
        shown.sort_by_key(|view| view.member.node_id);
        // Two addresses of one server (a host name and its number) are one member.
        shown.dedup_by(|one, other| {
            one.member.node_id != 0 && one.member.node_id == other.member.node_id && one.status.is_ok()
        });
        Some(GroupView { name: "name servers".to_owned(), members: shown })
    }

    async fn name_views(&self, addresses: &[String]) -> Vec<(String, Result<cluster::GroupStatus, String>)> {
        let asked = addresses.iter().map(|address| async {
            let status = self.name_status(address).await;
            (address.clone(), status.map_err(|error| error.to_string()))
        });
        futures::future::join_all(asked).await
    }

    /// State of the name group as one name server sees it.
    pub async fn name_status(&self, address: &str) -> Result<cluster::GroupStatus, AdminError> {
        let request = self.core.identity.request(cluster::GetNameStatusRequest {}, MEMBER_TIMEOUT);
        let call = |channel| async move { RegistryClient::new(channel).get_name_status(request).await };
        let answer = self.core.call(address, MEMBER_TIMEOUT, call).await;
        let answer = answer.map_err(|error| unanswered(error, address))?;
        super::check(answer.result.as_ref())?;
        answer.group.ok_or_else(|| AdminError::Failed(super::said(0, "answer without a group")))
    }
}

fn name_view(
    address: String,
    status: Result<cluster::GroupStatus, String>,
    members: &[cluster::MemberStatus],
) -> MemberView {
    let by_id = |id| members.iter().find(|member| member.node_id == id);
    let known = match &status {
        Ok(status) => by_id(status.node_id),
        Err(_) => members.iter().find(|member| member.api_address == address),
    };
    let member = known.cloned().unwrap_or_else(|| cluster::MemberStatus {
        node: address.clone(),
        api_address: address,
        ..Default::default()
    });
    MemberView { member, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: &str, status: Result<(&str, u64, u64, u64), &str>) -> MemberView {
        MemberView {
            member: cluster::MemberStatus { node: node.to_owned(), ..Default::default() },
            status: status.map_err(str::to_owned).map(|(state, term, committed, applied)| {
                cluster::GroupStatus {
                    state: state.to_owned(),
                    term,
                    committed_index: committed,
                    applied_index: applied,
                    leader_ready: state == "leader",
                    ..Default::default()
                }
            }),
        }
    }

    #[test]
    fn a_deposed_leader_is_not_shown_as_the_leader() {
        let group = GroupView {
            name: "broker-a".into(),
            members: vec![member("b1", Ok(("leader", 3, 9, 9))), member("b2", Ok(("leader", 4, 12, 11)))],
        };
        assert_eq!(group.leader().map(|view| view.member.node.as_str()), Some("b2"));
        assert_eq!(group.lag(&group.members[0]), Some(3));
        assert_eq!(group.lag(&group.members[1]), Some(1));
    }

    #[test]
    fn every_kind_of_trouble_is_named() {
        let well = GroupView {
            name: "a".into(),
            members: vec![member("b1", Ok(("leader", 1, 1, 1))), member("b2", Ok(("follower", 1, 1, 1)))],
        };
        assert_eq!(well.complaints(), Vec::<String>::new());
        let ill = GroupView {
            name: "a".into(),
            members: vec![
                member("b1", Ok(("waiting", 0, 0, 0))),
                member("b2", Err("refused")),
                member("b3", Ok(("stopped", 0, 0, 0))),
            ],
        };
        let complaints = ill.complaints();
        assert_eq!(complaints.len(), 4, "{complaints:?}");
    }
}
