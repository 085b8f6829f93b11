//! What every part of a client shares: connections, identity, addresses, routes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::{cluster, v2};
use parking_lot::Mutex;
use tonic::transport::Channel;

use crate::connection::Pool;
use crate::error::Cause;
use crate::group::{Leader, Member, Sighting};
use crate::identity::Identity;
use crate::outcome::{code, status_of};
use crate::pursuit::{MessagingClient, status_text};
use crate::route::Routes;

/// Longest message that is accepted from a server: a body, its properties and room to spare.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Name servers that are remembered beside those given.
const LEARNED_MAX: usize = 16;
/// The next address is asked after this long without an answer from the one before.
const STAGGER: Duration = Duration::from_millis(150);

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) identity: Identity,
    pub(crate) pool: Pool,
    /// The addresses given, then those that name servers name: they may be added and replaced while a client runs.
    name_servers: Mutex<Arc<Vec<String>>>,
    given: usize,
    pub(crate) brokers: Vec<String>,
    pub(crate) routes: Routes,
    /// Which address answered last.
    preferred: AtomicUsize,
}

impl Core {
    pub(crate) fn new(
        identity: Identity,
        pool: Pool,
        name_servers: Vec<String>,
        brokers: Vec<String>,
    ) -> Self {
        Self {
            identity,
            pool,
            given: name_servers.len(),
            name_servers: Mutex::new(Arc::new(name_servers)),
            brokers,
            routes: Routes::default(),
            preferred: AtomicUsize::new(0),
        }
    }

    /// Where name servers are.
    pub(crate) fn name_servers(&self) -> Arc<Vec<String>> {
        Arc::clone(&self.name_servers.lock())
    }

    /// Takes over what a name server says of all of them.
    pub(crate) fn learn(&self, named: &[String]) {
        let mut known = self.name_servers.lock();
        let given = &known[..self.given];
        let new = |address: &&String| !address.is_empty() && !given.contains(address);
        let learned: Vec<String> = named.iter().filter(new).take(LEARNED_MAX).cloned().collect();
        if self.given > 0 && !learned.is_empty() && known[self.given..] != learned {
            *known = Arc::new(given.iter().cloned().chain(learned).collect());
        }
    }

    pub(crate) fn messaging(&self, channel: Channel) -> MessagingClient {
        MessagingClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// A call to one address. An error says whether the request can have left.
    pub(crate) async fn call<T, F, R>(
        &self,
        address: &str,
        timeout: Duration,
        call: F,
    ) -> Result<T, CallError>
    where
        F: FnOnce(Channel) -> R,
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let started = tokio::time::Instant::now();
        let lease = match tokio::time::timeout(timeout, self.pool.lease(address)).await {
            Ok(lease) => lease.map_err(CallError::NeverSent)?,
            Err(_) => return Err(CallError::NeverSent(Cause::Deadline { after: timeout })),
        };
        match tokio::time::timeout_at(started + timeout, call(lease.channel.clone())).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => Err(CallError::NotServed),
            Ok(Err(status)) => {
                lease.discard();
                Err(CallError::Lost(Cause::Transport {
                    address: address.to_owned(),
                    reason: status_text(&status),
                }))
            }
            Err(_) => {
                lease.discard();
                Err(CallError::Lost(Cause::Deadline { after: timeout }))
            }
        }
    }

    /// Asks addresses one after the other, the next one early when an answer is slow; the first answer counts.
    pub(crate) async fn first_of<'a, T, F, R>(&self, addresses: &'a [String], call: F) -> Result<T, CallError>
    where
        F: Fn(&'a str) -> R,
        R: Future<Output = Result<T, CallError>>,
    {
        let start = self.preferred.load(Ordering::Relaxed);
        let mut order = (0..addresses.len()).map(|i| (start + i) % addresses.len());
        let mut running = FuturesUnordered::new();
        let mut last = CallError::NeverSent(Cause::Closed);
        let begin = |index: usize| {
            let call = call(&addresses[index]);
            async move { (index, call.await) }
        };
        if let Some(index) = order.next() {
            running.push(begin(index));
        }
        while !running.is_empty() {
            let next = tokio::select! {
                answer = running.next() => match answer {
                    Some((index, Ok(answer))) => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Some((_, Err(error))) => { last = last.or_rather(error); order.next() }
                    None => None,
                },
                () = tokio::time::sleep(STAGGER), if order.len() > 0 => order.next(),
            };
            if let Some(index) = next {
                running.push(begin(index));
            }
        }
        Err(last)
    }

    /// What one broker says about a broker group.
    pub(crate) async fn group_status(
        &self,
        api_address: &str,
        group: &str,
        timeout: Duration,
    ) -> Result<Sighting, CallError> {
        let request = cluster::GetStatusRequest { group: group.to_owned() };
        let request = self.identity.request(request, timeout);
        let status = self
            .call(api_address, timeout, |channel| async move {
                BrokerAdminClient::new(channel).get_status(request).await
            })
            .await?;
        let found = status.groups.iter().find(|status| status.group == group);
        Ok(found.map_or(Sighting { leader: None, is_itself: false, members: Vec::new() }, sighting))
    }

    /// All broker groups that the cluster's name servers, or the brokers given, know of.
    pub(crate) async fn cluster(&self, timeout: Duration) -> Vec<(String, Sighting)> {
        let name_servers = self.name_servers();
        if !name_servers.is_empty() {
            let answer = self.first_of(&name_servers, |address| self.registered(address, timeout)).await;
            if let Ok(groups) = answer {
                return groups;
            }
        }
        let answers = self.brokers.iter().map(|address| self.hosted(address, timeout));
        futures::future::join_all(answers).await.into_iter().flatten().flatten().collect()
    }

    async fn registered(
        &self,
        address: &str,
        timeout: Duration,
    ) -> Result<Vec<(String, Sighting)>, CallError> {
        let request = self.identity.request(cluster::GetClusterRequest {}, timeout);
        let answer = self
            .call(address, timeout, |channel| async move {
                RegistryClient::new(channel).get_cluster(request).await
            })
            .await?;
        self.learn(&answer.name_servers);
        let groups = answer.groups.into_iter();
        Ok(groups
            .map(|group| {
                let leader = leader_of(group.leader_id, group.term, &group.members);
                let members = group.members.iter().filter_map(Member::from_status).collect();
                (group.broker_group, Sighting { leader, is_itself: false, members })
            })
            .collect())
    }

    async fn hosted(&self, address: &str, timeout: Duration) -> Result<Vec<(String, Sighting)>, CallError> {
        let request = self.identity.request(cluster::GetStatusRequest { group: String::new() }, timeout);
        let answer = self
            .call(address, timeout, |channel| async move {
                BrokerAdminClient::new(channel).get_status(request).await
            })
            .await?;
        Ok(answer.groups.iter().map(|group| (group.group.clone(), sighting(group))).collect())
    }

    /// Queues of a topic by one node, or the node's refusal.
    pub(crate) async fn query_route(
        &self,
        address: &str,
        topic: &v2::Resource,
        timeout: Duration,
    ) -> Result<Result<Vec<v2::MessageQueue>, Cause>, CallError> {
        let request =
            v2::QueryRouteRequest { topic: Some(topic.clone()), endpoints: Some(endpoints(address)) };
        let request = self.identity.request(request, timeout);
        let answer =
            self.call(address, timeout, |channel| async move {
                self.messaging(channel).query_route(request).await
            })
            .await?;
        let (status, message) = status_of(answer.status.as_ref());
        match status {
            code::OK => Ok(Ok(answer.message_queues)),
            // The node itself cannot tell now: another one may.
            50_000.. | ..=19_999 => {
                Err(CallError::Lost(Cause::Status { code: status, message, reason: None }))
            }
            status => Ok(Err(Cause::Status { code: status, message, reason: None })),
        }
    }

    /// Who leads a broker group by a route answer of one of its nodes.
    pub(crate) async fn leader_by_route(
        &self,
        address: &str,
        group: &str,
        topic: v2::Resource,
        timeout: Duration,
    ) -> Option<String> {
        let queues = self.query_route(address, &topic, timeout).await.ok()?.ok()?;
        queues
            .iter()
            .filter_map(|queue| queue.broker.as_ref())
            .find(|broker| broker.name == group)
            .and_then(address_of)
    }
}

/// Why a call to one address gave nothing.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// Nothing left this client.
    NeverSent(Cause),
    /// The node does not offer this call.
    NotServed,
    /// The request left, and no answer came.
    Lost(Cause),
}

impl CallError {
    pub(crate) fn cause(self, address: &str) -> Cause {
        match self {
            Self::NeverSent(cause) | Self::Lost(cause) => cause,
            Self::NotServed => Cause::Transport {
                address: address.to_owned(),
                reason: "it does not offer this call; administration is at a name server's 9876 and a broker's 10911".into(),
            },
        }
    }

    /// The one of two errors that says more: an unanswered call over an unopened connection.
    fn or_rather(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Lost(_), Self::NeverSent(_)) => self,
            _ => other,
        }
    }
}

fn sighting(status: &cluster::GroupStatus) -> Sighting {
    Sighting {
        leader: leader_of(status.leader_id, status.term, &status.members),
        is_itself: status.leader_id != 0 && status.leader_id == status.node_id && status.state == "leader",
        members: status.members.iter().filter_map(Member::from_status).collect(),
    }
}

fn leader_of(id: u64, term: u64, members: &[cluster::MemberStatus]) -> Option<Leader> {
    let member = members.iter().find(|member| id != 0 && member.node_id == id)?;
    Some(Leader { address: Member::from_status(member)?.client_address, term })
}

pub(crate) fn address_of(broker: &v2::Broker) -> Option<String> {
    let address = broker.endpoints.as_ref()?.addresses.first()?;
    let host = if address.host.contains(':') { format!("[{}]", address.host) } else { address.host.clone() };
    let text = format!("{host}:{}", address.port);
    crate::address::check_address(&text).ok().map(|()| text)
}

fn endpoints(address: &str) -> v2::Endpoints {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let host = host.trim_matches(['[', ']']);
    let scheme = match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => v2::AddressScheme::IPv4,
        Ok(std::net::IpAddr::V6(_)) => v2::AddressScheme::IPv6,
        Err(_) => v2::AddressScheme::DomainName,
    };
    let address = v2::Address { host: host.to_owned(), port: port.parse().unwrap_or(0) };
    v2::Endpoints { scheme: scheme.into(), addresses: vec![address] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_that_answers_name_are_known_beside_those_given() {
        let core = |given: &[&str]| {
            let given = given.iter().map(|address| (*address).to_owned()).collect();
            Core::new(Identity::new(None), Pool::new(Duration::from_secs(1), 1), given, Vec::new())
        };
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let known = core(&["a:1"]);
        known.learn(&named(&["a:1", "b:1", ""]));
        assert_eq!(*known.name_servers(), ["a:1", "b:1"]);
        known.learn(&named(&["c:1"]));
        assert_eq!(*known.name_servers(), ["a:1", "c:1"], "b was replaced");
        known.learn(&[]);
        assert_eq!(*known.name_servers(), ["a:1", "c:1"], "a server that knows nobody says nothing");
        let by_brokers = core(&[]);
        by_brokers.learn(&named(&["a:1"]));
        assert!(by_brokers.name_servers().is_empty(), "whoever gave none asks none");
    }
}
