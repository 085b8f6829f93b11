//! What nodes say about themselves, over their API ports. A node that does not answer in time is silent.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::future::join_all;
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::cluster::{
    GetNameStatusRequest, GetStatusRequest, GroupStatus, MarkDigestRequest, ReadDigestRequest,
    ReadDigestResponse,
};
use tonic::transport::{Channel, Endpoint};

use super::Cluster;
use crate::history::record::{Digest, Status};

/// A node's answer must come within this time.
pub const ANSWER_LIMIT: Duration = Duration::from_millis(800);
/// Name of the name servers' Raft group in records.
pub const NAME_GROUP: &str = "name";

/// One Raft group as one of its members sees it.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The node.
    pub node: String,
    /// Its answer.
    pub group: GroupStatus,
}

impl NodeView {
    /// It leads and has applied its own term's first entry.
    pub fn leads(&self) -> bool {
        self.group.state == "leader" && self.group.leader_ready
    }
}

/// Asks nodes; keeps a connection per node.
#[derive(Debug)]
pub struct Observer {
    brokers: Vec<(String, String)>,
    names: Vec<(String, String)>,
    channels: Mutex<BTreeMap<String, Channel>>,
}

impl Observer {
    /// For all nodes of a cluster.
    pub fn new(cluster: &Cluster) -> Self {
        let (brokers, names) = (cluster.brokers.clone(), cluster.names.clone());
        Self { brokers, names, channels: Mutex::new(BTreeMap::new()) }
    }

    fn channel(&self, address: &str) -> anyhow::Result<Channel> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(Duration::from_millis(300))
            .timeout(ANSWER_LIMIT)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2));
        let channel = endpoint.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Broker groups as the broker sees them; `None` when it is silent.
    pub async fn broker(&self, node: &str) -> Option<Vec<NodeView>> {
        let (node, address) = self.brokers.iter().find(|(name, _)| name == node)?;
        let mut client = BrokerAdminClient::new(self.channel(address).ok()?);
        let call = client.get_status(GetStatusRequest::default());
        let answer = tokio::time::timeout(ANSWER_LIMIT, call).await.ok()?.ok()?.into_inner();
        Some(answer.groups.into_iter().map(|group| NodeView { node: node.clone(), group }).collect())
    }

    /// The name group as the name server sees it; `None` when it is silent.
    pub async fn name_server(&self, node: &str) -> Option<NodeView> {
        let (node, address) = self.names.iter().find(|(name, _)| name == node)?;
        let mut client = RegistryClient::new(self.channel(address).ok()?);
        let call = client.get_name_status(GetNameStatusRequest {});
        let answer = tokio::time::timeout(ANSWER_LIMIT, call).await.ok()?.ok()?.into_inner();
        answer.group.map(|group| NodeView { node: node.clone(), group })
    }

    /// True when the node answers.
    pub async fn answers(&self, node: &str) -> bool {
        if node.starts_with('n') {
            self.name_server(node).await.is_some()
        } else {
            self.broker(node).await.is_some()
        }
    }

    /// Views of all brokers that answer.
    pub async fn brokers(&self) -> Vec<NodeView> {
        let asked = join_all(self.brokers.iter().map(|(node, _)| self.broker(node))).await;
        asked.into_iter().flatten().flatten().collect()
    }

    /// Views of all name servers that answer.
    pub async fn name_servers(&self) -> Vec<NodeView> {
        let asked = join_all(self.names.iter().map(|(node, _)| self.name_server(node))).await;
        asked.into_iter().flatten().collect()
    }

    /// The ready leader of the highest term, when a majority of all members sees it as such.
    pub async fn broker_leader(&self) -> Option<NodeView> {
        leader_of(&self.brokers().await, self.brokers.len())
    }

    /// The same for the name group.
    pub async fn name_leader(&self) -> Option<NodeView> {
        leader_of(&self.name_servers().await, self.names.len())
    }

    /// Waits until every node answers, both groups have a ready leader and every member has applied what the
    /// leader had committed when it was asked.
    pub async fn await_whole(&self, limit: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        loop {
            let (brokers, names) = (self.brokers().await, self.name_servers().await);
            let problem = [
                incomplete("broker group", &brokers, self.brokers.len()),
                incomplete("name group", &names, self.names.len()),
            ];
            let Some(problem) = problem.into_iter().flatten().next() else { return Ok(()) };
            if Instant::now() > end {
                bail!("not whole within {} s: {problem}", limit.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Proposes a mark and compares the digests of all members of a broker group.
    pub async fn digest(&self, group: &str, limit: Duration) -> anyhow::Result<Digest> {
        let end = Instant::now() + limit;
        let (mark, index) = self.mark(group, end).await?;
        let mut answers: Vec<(String, ReadDigestResponse)> = Vec::new();
        for (node, address) in &self.brokers {
            let mut client = BrokerAdminClient::new(self.channel(address)?);
            loop {
                let request = ReadDigestRequest { group: group.into(), mark };
                let answer = tokio::time::timeout(Duration::from_secs(10), client.read_digest(request)).await;
                let problem = match answer {
                    Ok(Ok(answer)) => {
                        let answer = answer.into_inner();
                        match answer.result.as_ref() {
                            Some(result) if result.code != 20_000 => result.message.clone(),
                            _ => {
                                answers.push((node.clone(), answer));
                                break;
                            }
                        }
                    }
                    Ok(Err(status)) => status.to_string(),
                    Err(_) => "no answer within 10 s".to_owned(),
                };
                if Instant::now() > end {
                    bail!("no digest from {node} within {} s: {problem}", limit.as_secs());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let members = u32::try_from(answers.len()).unwrap_or(u32::MAX);
        Ok(Digest { group: group.into(), index, members, difference: difference(&answers) })
    }

    async fn mark(&self, group: &str, end: Instant) -> anyhow::Result<(u64, u64)> {
        let mut problem = "no broker".to_owned();
        loop {
            for (node, address) in &self.brokers {
                let mut client = BrokerAdminClient::new(self.channel(address)?);
                match client.mark_digest(MarkDigestRequest { group: group.into() }).await {
                    Ok(answer) => {
                        let answer = answer.into_inner();
                        let result = answer.result.unwrap_or_default();
                        if result.code == 20_000 {
                            return Ok((answer.mark, answer.index));
                        }
                        problem = format!("{node}: {} {}", result.code, result.message);
                    }
                    Err(status) => problem = format!("{node}: {status}"),
                }
            }
            if Instant::now() > end {
                bail!("no digest mark was accepted: {problem}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Records of what a view says.
pub fn status_of(view: &NodeView, group: &str) -> Status {
    Status {
        node: view.node.clone(),
        group: group.into(),
        term: view.group.term,
        leads: view.group.state == "leader",
        committed: view.group.committed_index,
        applied: view.group.applied_index,
    }
}

fn leader_of(views: &[NodeView], members: usize) -> Option<NodeView> {
    let leader = views.iter().filter(|view| view.leads()).max_by_key(|view| view.group.term)?;
    let agreeing = views
        .iter()
        .filter(|view| view.group.term == leader.group.term && view.group.leader_id == leader.group.node_id);
    (agreeing.count() * 2 > members).then(|| leader.clone())
}

fn incomplete(what: &str, views: &[NodeView], members: usize) -> Option<String> {
    if views.len() < members {
        return Some(format!("{what}: {} of {members} members answer", views.len()));
    }
    let Some(leader) = leader_of(views, members) else { return Some(format!("{what}: no ready leader")) };
    let behind = views.iter().find(|view| view.group.applied_index < leader.group.committed_index)?;
    let (applied, committed) = (behind.group.applied_index, leader.group.committed_index);
    Some(format!("{what}: {} has applied {applied} of {committed}", behind.node))
}

/// The first part that is not the same everywhere, in words; empty when all are equal.
fn difference(answers: &[(String, ReadDigestResponse)]) -> String {
    let Some(((first, expected), others)) = answers.split_first() else { return "nobody answered".into() };
    for (node, answer) in others {
        if answer.index != expected.index {
            return format!("{first} answers for index {}, {node} for {}", expected.index, answer.index);
        }
        if answer.parts.len() != expected.parts.len() {
            return format!("{first} has {} parts, {node} {}", expected.parts.len(), answer.parts.len());
        }
        for (a, b) in expected.parts.iter().zip(&answer.parts) {
            if a != b {
                return format!(
                    "{} ({} values on {first}) and {} ({} on {node})",
                    a.name, a.count, b.name, b.count
                );
            }
        }
    }
    if expected.parts.is_empty() { "the digests are empty".into() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mq_protocol::cluster::DigestPart;

    fn view(node: &str, node_id: u64, term: u64, leader_id: u64) -> NodeView {
        let state = if node_id == leader_id { "leader" } else { "follower" };
        let group = GroupStatus {
            node_id,
            term,
            leader_id,
            state: state.into(),
            leader_ready: true,
            ..Default::default()
        };
        NodeView { node: node.into(), group }
    }

    #[test]
    fn a_leader_needs_a_majority_that_sees_it() {
        let old = view("b1", 1, 4, 1);
        let new = view("b2", 2, 5, 2);
        let follower = view("b3", 3, 5, 2);
        let found = leader_of(&[old.clone(), new.clone(), follower], 3).expect("b2 and b3 agree");
        assert_eq!(found.node, "b2");
        assert!(leader_of(&[old, new], 3).is_none(), "each is alone");
    }

    #[test]
    fn the_first_different_part_is_named() {
        let answer = |byte: u8| {
            let part = DigestPart { name: "queue 1/1/0".into(), count: 3, digest: vec![byte].into() };
            ReadDigestResponse { index: 7, parts: vec![part], ..Default::default() }
        };
        let same = [("b1".to_owned(), answer(1)), ("b2".to_owned(), answer(1))];
        assert_eq!(difference(&same), "");
        let other = [("b1".to_owned(), answer(1)), ("b2".to_owned(), answer(2))];
        assert!(difference(&other).contains("queue 1/1/0"));
        assert!(
            !difference(&[("b1".to_owned(), ReadDigestResponse::default())]).is_empty(),
            "nothing compared"
        );
    }
}
