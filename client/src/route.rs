//! Which broker groups hold a topic: a cache in front of the name servers.
//!
//! A route is used until it is [`ROUTE_AGE`] old and refreshed beside the calls after that; a leader's change needs
//! no new route (see `group.rs`), a topic's move does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mq_protocol::v2;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::core::{Core, address_of};
use crate::error::Cause;
use crate::group::{BrokerGroup, Leader, Member};
use crate::outcome::code;

/// A route older than this is refreshed when it is used.
const ROUTE_AGE: Duration = Duration::from_secs(30);
/// Time for one node's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before all addresses are asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// Topics kept; beyond that the cache starts anew.
const TOPICS_MAX: usize = 10_000;
/// Broker groups kept.
const GROUPS_MAX: usize = 1_024;

/// Broker groups of one topic, in the order of the route.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) groups: Vec<RouteGroup>,
    fetched: Instant,
    /// Spreads calls over the groups.
    turn: AtomicUsize,
    refreshing: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct RouteGroup {
    pub(crate) group: Arc<BrokerGroup>,
    /// Queues that take messages.
    pub(crate) writable: Vec<i32>,
    pub(crate) readable: bool,
}

impl Route {
    /// The next queue that takes messages, in turn over the groups and over each group's queues.
    pub(crate) fn next_writable(&self) -> Option<(&Arc<BrokerGroup>, i32)> {
        let writable: Vec<_> = self.groups.iter().filter(|group| !group.writable.is_empty()).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let group = writable.get(turn.checked_rem(writable.len())?)?;
        let queue = group.writable.get((turn / writable.len()) % group.writable.len())?;
        Some((&group.group, *queue))
    }

    pub(crate) fn readable(&self) -> impl Iterator<Item = &Arc<BrokerGroup>> {
        self.groups.iter().filter(|group| group.readable).map(|group| &group.group)
    }
}

type TopicKey = (String, String);

#[derive(Debug, Default)]
pub(crate) struct Routes {
    topics: Mutex<HashMap<TopicKey, Arc<Route>>>,
    groups: Mutex<HashMap<String, Arc<BrokerGroup>>>,
    /// Held while asking: one question serves everybody who waits.
    asking: tokio::sync::Mutex<()>,
}

impl Routes {
    fn cached(&self, topic: &v2::Resource) -> Option<Arc<Route>> {
        self.topics.lock().get(&key(topic)).cloned()
    }

    pub(crate) fn forget(&self, topic: &v2::Resource) {
        self.topics.lock().remove(&key(topic));
    }

    pub(crate) fn group(&self, name: &str) -> Arc<BrokerGroup> {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(name) {
            return Arc::clone(group);
        }
        if groups.len() >= GROUPS_MAX {
            groups.clear();
        }
        let group = Arc::new(BrokerGroup::new(name));
        groups.insert(name.to_owned(), Arc::clone(&group));
        group
    }

    fn members(&self) -> Vec<String> {
        let groups: Vec<_> = self.groups.lock().values().cloned().collect();
        groups.iter().flat_map(|group| group.members()).map(|member| member.client_address).collect()
    }
}

fn key(topic: &v2::Resource) -> TopicKey {
    (topic.resource_namespace.clone(), topic.name.clone())
}

impl Core {
    /// The route of a topic, from the cache or from the servers until the deadline.
    pub(crate) async fn route(
        self: &Arc<Self>,
        topic: &v2::Resource,
        deadline: Instant,
    ) -> Result<Arc<Route>, Cause> {
        if let Some(route) = self.routes.cached(topic) {
            if route.fetched.elapsed() >= ROUTE_AGE && !route.refreshing.swap(true, Ordering::Relaxed) {
                let (core, topic) = (Arc::clone(self), topic.clone());
                crate::spawn("route-refresh", async move { core.refresh_route(&topic).await });
            }
            return Ok(route);
        }
        let mut last = Cause::Closed;
        while Instant::now() < deadline {
            let asked = async {
                let _one = self.routes.asking.lock().await;
                match self.routes.cached(topic) {
                    Some(route) => Ok(Ok(route)),
                    None => self.fetch(topic).await,
                }
            };
            match tokio::time::timeout_at(deadline, asked).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(cause)) => last = cause,
                Err(_) => break,
            }
            tokio::time::sleep_until(deadline.min(Instant::now() + PAUSE)).await;
        }
        Err(Cause::NoRoute { topic: topic.name.clone(), reason: last.to_string() })
    }

    /// Asks for a route again, unless somebody does already; what is known stays when nobody answers.
    pub(crate) async fn refresh_route(&self, topic: &v2::Resource) {
        if let Ok(_one) = self.routes.asking.try_lock() {
            // Nobody answers or the topic is refused: the next call finds out; the old route serves until then.
            let _ = self.fetch(topic).await;
        }
        if let Some(route) = self.routes.cached(topic) {
            route.refreshing.store(false, Ordering::Relaxed);
        }
    }

    /// One round over the addresses. The outer error is worth another round, the inner one is a verdict.
    async fn fetch(&self, topic: &v2::Resource) -> Result<Result<Arc<Route>, Cause>, Cause> {
        let addresses: Vec<String> = self.name_servers().iter().chain(&self.brokers).cloned().collect();
        let ask = |address| self.query_route(address, topic, ANSWER_TIMEOUT);
        let (queues, cluster) = tokio::join!(self.first_of(&addresses, ask), self.cluster(ANSWER_TIMEOUT));
        for (name, sighting) in cluster {
            let group = self.routes.group(&name);
            group.set_members(sighting.members);
            if let Some(leader) = sighting.leader {
                group.learn(&leader, sighting.is_itself);
            }
        }
        let first = addresses.first().map_or("", String::as_str);
        let verdict = match queues.map_err(|error| error.cause(first))? {
            // A topic made just now is known to its brokers before the name servers hear of it.
            Err(cause) if cause.code() == Some(code::TOPIC_NOT_FOUND) => {
                let members = self.routes.members();
                match self.first_of(&members, |address| self.found_route(address, topic)).await {
                    Ok(queues) => Ok(queues),
                    Err(_) => Err(cause),
                }
            }
            verdict => verdict,
        };
        Ok(verdict.map(|queues| self.adopt(topic, &queues)))
    }

    /// A route, or an error when this node has none.
    async fn found_route(
        &self,
        address: &str,
        topic: &v2::Resource,
    ) -> Result<Vec<v2::MessageQueue>, crate::core::CallError> {
        let verdict = self.query_route(address, topic, ANSWER_TIMEOUT).await?;
        verdict.map_err(crate::core::CallError::Lost)
    }

    fn adopt(&self, topic: &v2::Resource, queues: &[v2::MessageQueue]) -> Arc<Route> {
        let mut groups: Vec<RouteGroup> = Vec::new();
        for queue in queues {
            let Some(broker) = &queue.broker else { continue };
            let permission = queue.permission();
            let writable = matches!(permission, v2::Permission::Write | v2::Permission::ReadWrite);
            let readable = matches!(permission, v2::Permission::Read | v2::Permission::ReadWrite);
            if !groups.iter().any(|known| known.group.name == broker.name) {
                let group = self.routes.group(&broker.name);
                group.set_topic(topic.clone());
                self.adopt_leader(&group, broker);
                groups.push(RouteGroup { group, writable: Vec::new(), readable: false });
            }
            let known = groups.iter_mut().find(|known| known.group.name == broker.name);
            if let Some(known) = known {
                known.readable |= readable;
                if writable {
                    known.writable.push(queue.id);
                }
            }
        }
        let route = Arc::new(Route {
            groups,
            fetched: Instant::now(),
            turn: AtomicUsize::new(0),
            refreshing: AtomicBool::new(false),
        });
        let mut topics = self.routes.topics.lock();
        if topics.len() >= TOPICS_MAX {
            topics.clear();
        }
        topics.insert(key(topic), Arc::clone(&route));
        route
    }

    fn adopt_leader(&self, group: &BrokerGroup, broker: &v2::Broker) {
        let Some(address) = address_of(broker) else { return };
        if group.members().is_empty() {
            let mut known: Vec<&String> = self.brokers.iter().collect();
            if !known.contains(&&address) {
                known.push(&address);
            }
            let member =
                |address: &&String| Member { client_address: (*address).clone(), api_address: String::new() };
            group.set_members(known.iter().map(member).collect());
        }
        // A route has no term: it fills a gap, it does not overrule what a member said.
        if group.leader().is_none() {
            group.learn(&Leader { address, term: 0 }, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(groups: &[(&str, &[i32])]) -> Route {
        let group = |(name, writable): &(&str, &[i32])| RouteGroup {
            group: Arc::new(BrokerGroup::new(name)),
            writable: writable.to_vec(),
            readable: true,
        };
        Route {
            groups: groups.iter().map(group).collect(),
            fetched: Instant::now(),
            turn: AtomicUsize::new(0),
            refreshing: AtomicBool::new(false),
        }
    }

    #[test]
    fn every_writable_queue_of_every_group_gets_its_turn() {
        let route = route(&[("a", &[0, 1]), ("read-only", &[]), ("b", &[0, 1, 2])]);
        let next =
            || route.next_writable().map(|(group, queue)| (group.name.clone(), queue)).expect("writable");
        let turns: Vec<_> = (0..12).map(|_| next()).collect();
        for (name, queues) in [("a", 2), ("b", 3)] {
            let times = |queue| turns.iter().filter(|turn| **turn == (name.to_owned(), queue)).count();
            assert!((0..queues).all(|queue| times(queue) == 6 / usize::try_from(queues).expect("small")));
        }
    }

    #[test]
    fn a_route_without_a_writable_queue_has_none() {
        assert!(route(&[("a", &[])]).next_writable().is_none());
        assert!(route(&[]).next_writable().is_none());
    }
}
