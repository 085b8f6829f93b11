//! Typed administration: topics, subscription groups, state of the groups, digests, leadership.
//!
//! Every node serves every call, so a call goes to whichever node answers. All changes here may be repeated without
//! harm, and are, until the deadline.

mod digest;
mod kv;
mod objects;
mod queues;
mod status;

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster;
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::names;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::client::{Client, timeout_in_range};
use crate::core::{CallError, Core};
use crate::error::{Cause, ConfigError};
use crate::outcome::Verdict;

pub use digest::{Difference, DigestReport, MemberDigest};
pub use kv::{KvChange, KvListing};
pub use status::{ClusterStatus, GroupView, MemberView};

/// Time for one node's answer to a change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for one node's answer to a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// Why a call of [`Admin`] failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdminError {
    /// The call is wrong as it was made; no change.
    #[error("{0}")]
    Invalid(String),
    /// What is named does not exist.
    #[error("not found: {0}")]
    NotFound(Cause),
    /// Not allowed, or fenced by something newer.
    #[error("refused: {0}")]
    Refused(Cause),
    /// No node could answer in time: no connection, no leader, no majority. May be repeated.
    #[error("unavailable: {0}")]
    Unavailable(Cause),
    /// Everything else.
    #[error("failed: {0}")]
    Failed(Cause),
}

impl From<names::Invalid> for AdminError {
    fn from(invalid: names::Invalid) -> Self {
        Self::Invalid(invalid.to_string())
    }
}

impl From<ConfigError> for AdminError {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// A broker group as it was found: its members and who leads.
#[derive(Debug, Clone)]
pub struct BrokerGroupEntry {
    /// Its name.
    pub name: String,
    /// Id of its leader; 0 = not known.
    pub leader_id: u64,
    /// Its term.
    pub term: u64,
    /// Its members in id order.
    pub members: Vec<cluster::MemberStatus>,
    /// The name servers have not heard of it for too long.
    pub lost: bool,
}

/// Administration of one cluster.
#[derive(Debug, Clone)]
pub struct Admin {
    core: Arc<Core>,
    timeout: Duration,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Self {
        Self { core: client.core, timeout: Duration::from_secs(5) }
    }

    /// Sets how long a call may last, retries included: 1 ms to 24 h, 5 s by default. Checked by the calls.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn deadline(&self) -> Result<Instant, AdminError> {
        timeout_in_range("timeout in ms", self.timeout)?;
        Ok(Instant::now() + self.timeout)
    }

    /// The broker groups of the cluster, ordered by name.
    pub async fn broker_groups(&self) -> Result<Vec<BrokerGroupEntry>, AdminError> {
        let mut groups = if self.core.name_servers().is_empty() {
            self.groups_by_brokers().await?
        } else {
            self.groups_by_name_servers().await?
        };
        groups.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(groups)
    }

    async fn groups_by_name_servers(&self) -> Result<Vec<BrokerGroupEntry>, AdminError> {
        let answer = self.ask_name_server(|mut registry, core| async move {
            let request = core.identity.request(cluster::GetClusterRequest {}, ANSWER_TIMEOUT);
            registry.get_cluster(request).await
        });
        let answer = answer.await?;
        check(answer.result.as_ref())?;
        self.core.learn(&answer.name_servers);
        let entry = |group: cluster::BrokerGroupInfo| BrokerGroupEntry {
            name: group.broker_group,
            leader_id: group.leader_id,
            term: group.term,
            members: group.members,
            lost: group.lost,
        };
        Ok(answer.groups.into_iter().map(entry).collect())
    }

    async fn groups_by_brokers(&self) -> Result<Vec<BrokerGroupEntry>, AdminError> {
        let asked = self.core.brokers.iter().map(|address| self.broker_status(address, ""));
        let mut groups: Vec<BrokerGroupEntry> = Vec::new();
        let mut last = None;
        for answer in futures::future::join_all(asked).await {
            match answer {
                Ok(answer) => answer.groups.into_iter().for_each(|status| merge(&mut groups, status)),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if groups.is_empty() => Err(error),
            _ => Ok(groups),
        }
    }

    /// State of the broker groups that one node hosts (`group` empty = all of them).
    pub async fn broker_status(
        &self,
        api_address: &str,
        group: &str,
    ) -> Result<cluster::GetStatusResponse, AdminError> {
        let request = cluster::GetStatusRequest { group: group.to_owned() };
        let request = self.core.identity.request(request, ANSWER_TIMEOUT);
        let call = |channel| async move { BrokerAdminClient::new(channel).get_status(request).await };
        self.core
            .call(api_address, ANSWER_TIMEOUT, call)
            .await
            .map_err(|error| unanswered(error, api_address))
    }

    /// A question that any name server answers.
    async fn ask_name_server<T, R>(
        &self,
        ask: impl Fn(RegistryClient<Channel>, Arc<Core>) -> R,
    ) -> Result<T, AdminError>
    where
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let servers = self.core.name_servers();
        let Some(first) = servers.first() else {
            return Err(AdminError::Invalid("this needs a name server's address".to_owned()));
        };
        let ask = |address| {
            self.core
                .call(address, ANSWER_TIMEOUT, |channel| ask(RegistryClient::new(channel), self.core.clone()))
        };
        self.core.first_of(&servers, ask).await.map_err(|error| unanswered(error, first))
    }

    async fn change<R>(
        &self,
        group: &str,
        call: impl Fn(BrokerAdminClient<Channel>, Arc<Core>) -> R,
    ) -> Result<bool, AdminError>
    where
        R: Future<Output = Result<tonic::Response<cluster::AdminResult>, tonic::Status>>,
    {
        let result = self
            .ask_group(group, |broker, core| {
                let call = call(broker, core);
                async move { Ok(call.await?.map(|result| (Some(result.clone()), result))) }
            })
            .await?;
        Ok(result.changed)
    }

    /// A call to a broker group: its leader first, then the others, again and again until one answers for good.
    async fn ask_group<T, R>(
        &self,
        group: &str,
        call: impl Fn(BrokerAdminClient<Channel>, Arc<Core>) -> R,
    ) -> Result<T, AdminError>
    where
        R: Future<Output = Result<tonic::Response<(Option<cluster::AdminResult>, T)>, tonic::Status>>,
    {
        let deadline = self.deadline()?;
        let mut last = AdminError::Unavailable(Cause::NoLeader { broker_group: group.to_owned() });
        while Instant::now() < deadline {
            match self.api_addresses(group).await {
                Ok(addresses) => {
                    for address in addresses {
                        let time = CHANGE_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
                        let made = |channel| call(BrokerAdminClient::new(channel), self.core.clone());
                        let outcome = match self.core.call(&address, time, made).await {
                            Ok((result, answer)) => check(result.as_ref()).map(|()| answer),
                            Err(error) => Err(unanswered(error, &address)),
                        };
                        match outcome {
                            // A server's word says more than a connection that did not come up.
                            Err(AdminError::Unavailable(Cause::Connect { .. })) if is_said(&last) => {}
                            Err(error @ AdminError::Unavailable(_)) => last = error,
                            outcome => return outcome,
                        }
                    }
                }
                Err(error @ AdminError::Unavailable(_)) => last = error,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(last)
    }

    /// Where the members of a group answer administrators, the leader first. An empty name means the only group.
    async fn api_addresses(&self, group: &str) -> Result<Vec<String>, AdminError> {
        let groups = self.broker_groups().await?;
        let found: Vec<_> = groups.iter().filter(|entry| group.is_empty() || entry.name == group).collect();
        let entry = match found.as_slice() {
            [entry] => *entry,
            [] if group.is_empty() => {
                return Err(AdminError::Unavailable(said(0, "no broker group is registered")));
            }
            [] => return Err(AdminError::NotFound(said(0, &format!("broker group {group}")))),
            _ => return Err(AdminError::Invalid("several broker groups: name one".to_owned())),
        };
        let mut members: Vec<_> =
            entry.members.iter().filter(|member| !member.api_address.is_empty()).collect();
        members.sort_by_key(|member| member.node_id != entry.leader_id);
        Ok(members.into_iter().map(|member| member.api_address.clone()).collect())
    }
}

/// Takes over what one node says of a group, if it is newer.
fn merge(groups: &mut Vec<BrokerGroupEntry>, status: cluster::GroupStatus) {
    let entry = BrokerGroupEntry {
        name: status.group,
        leader_id: status.leader_id,
        term: status.term,
        members: status.members,
        lost: false,
    };
    match groups.iter_mut().find(|known| known.name == entry.name) {
        Some(known) if (entry.term, entry.leader_id != 0) > (known.term, known.leader_id != 0) => {
            *known = entry
        }
        Some(_) => {}
        None => groups.push(entry),
    }
}

fn said(code: i32, message: &str) -> Cause {
    Cause::Status { code, message: message.to_owned(), reason: None }
}

fn is_said(error: &AdminError) -> bool {
    matches!(error, AdminError::Unavailable(Cause::Status { .. }))
}

fn unanswered(error: CallError, address: &str) -> AdminError {
    match error {
        CallError::NotServed => AdminError::Failed(CallError::NotServed.cause(address)),
        error => AdminError::Unavailable(error.cause(address)),
    }
}

/// Sorts an answer's code by what the caller can do.
fn check(result: Option<&cluster::AdminResult>) -> Result<(), AdminError> {
    let Some(result) = result else { return Err(AdminError::Failed(said(0, "answer without a result"))) };
    let cause = said(result.code, &result.message);
    match (Verdict::of(result.code), result.code) {
        (Verdict::Done, _) => Ok(()),
        (Verdict::NotLeader | Verdict::Busy | Verdict::Unknown, _) => Err(AdminError::Unavailable(cause)),
        (Verdict::Refused, 40_400..=40_499) => Err(AdminError::NotFound(cause)),
        (Verdict::Refused, 40_100..=40_399) => Err(AdminError::Refused(cause)),
        (Verdict::Refused, 40_000..=40_099) => Err(AdminError::Invalid(cause.to_string())),
        (Verdict::Refused, _) => Err(AdminError::Failed(cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(code: i32) -> Result<(), AdminError> {
        check(Some(&cluster::AdminResult { code, message: String::new(), changed: false }))
    }

    #[test]
    fn codes_are_sorted_by_what_can_be_done() {
        assert!(result(20_000).is_ok());
        assert!(matches!(result(40_402), Err(AdminError::NotFound(_))));
        assert!(matches!(result(40_300), Err(AdminError::Refused(_))));
        assert!(matches!(result(40_002), Err(AdminError::Invalid(_))));
        assert!(matches!(result(42_800), Err(AdminError::Failed(_))));
        for code in [50_002, 42_900, 50_400, 50_001] {
            assert!(matches!(result(code), Err(AdminError::Unavailable(_))), "{code}");
        }
        assert!(matches!(check(None), Err(AdminError::Failed(_))));
    }
}
