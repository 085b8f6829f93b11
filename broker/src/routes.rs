//! Routes of other broker groups, as the name servers tell them. Refreshed in the background and kept while no name
//! server answers: running clients do not notice their absence. Routes of this process's own topics never come from
//! here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::cluster::{
    AdminResult, BrokerGroupInfo, GetClusterRequest, GetClusterResponse, GetTopicRouteRequest,
    GetTopicRouteResponse, ListTopicRoutesRequest, ListTopicRoutesResponse, ReportResponse, TopicRoute,
    TopicRouteGroup,
};
use mq_protocol::v2;
use mq_raft::{LeaderInfo, Leadership};
use mq_store::Term;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::forward::Forward;

const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// After a call that failed at a remote leader the refresh comes at once, but not more often than this.
const REFRESH_PAUSE: Duration = Duration::from_millis(200);
/// One name server has this long to answer before the next one is asked.
const ASK_MAX: Duration = Duration::from_millis(700);
const PAGE: u32 = 1_000;
/// One page of routes has this long.
const LIST_MAX: Duration = Duration::from_secs(2);
/// Topics that are remembered; a cluster with more is answered by its name servers.
const TOPICS_MAX: usize = 200_000;

/// Name servers that are remembered beside those of the settings.
const LEARNED_MAX: usize = 16;

/// What a name server says, with its verdict.
pub trait Answer {
    /// The verdict in the answer.
    fn result(&self) -> Option<&AdminResult>;

    /// The name servers that there are, where the answer tells.
    fn name_servers(&self) -> &[String] {
        &[]
    }

    /// The one asked has no contact to a majority: another one may have.
    fn is_cut_off(&self) -> bool {
        self.result().is_some_and(|result| result.code == v2::Code::HaNotAvailable as i32)
    }
}

macro_rules! answers {
    ($($answer:ty $(, $name_servers:ident)?;)*) => {$(
        impl Answer for $answer {
            fn result(&self) -> Option<&AdminResult> {
                self.result.as_ref()
            }

            $(fn name_servers(&self) -> &[String] {
                &self.$name_servers
            })?
        }
    )*};
}

answers! {
    ReportResponse, name_servers;
    GetClusterResponse, name_servers;
    GetTopicRouteResponse;
    ListTopicRoutesResponse;
}

/// The name servers, asked one after the other from the one that answered last. Those of the settings are how the others
/// are found: each answer names them all, so that they may be added and replaced while this process runs.
#[derive(Debug)]
pub struct NameServers {
    configured: Vec<String>,
    /// The configured ones, then those that answers name.
    known: Mutex<Arc<Vec<String>>>,
    good: Mutex<usize>,
    forward: Arc<Forward>,
}

impl NameServers {
    /// `addresses` may be empty: then nobody is asked.
    pub fn new(addresses: Vec<String>, forward: Arc<Forward>) -> Self {
        let known = Mutex::new(Arc::new(addresses.clone()));
        Self { configured: addresses, known, good: Mutex::new(0), forward }
    }

    /// Takes over who is there. The one that answered last keeps its place: it is known, or it would not have.
    fn learn(&self, named: &[String]) {
        let named = named.iter().filter(|address| !address.is_empty() && !self.configured.contains(address));
        let learned: Vec<String> = named.take(LEARNED_MAX).cloned().collect();
        let mut known = self.known.lock();
        // An empty answer is of a server that does not know yet.
        if !learned.is_empty() && known[self.configured.len()..] != learned {
            *known = Arc::new(self.configured.iter().cloned().chain(learned).collect());
        }
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.configured.is_empty()
    }

    /// Asks until one answers or `deadline` passes; `None` when none did. One that is cut off from the others has no
    /// answer: its empty one must not replace what is known here.
    pub async fn ask<T, F>(&self, deadline: Instant, call: impl Fn(RegistryClient<Channel>) -> F) -> Option<T>
    where
        T: Answer,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let first = *self.good.lock();
        let addresses = Arc::clone(&self.known.lock());
        for step in 0..addresses.len() {
            let at = (first + step) % addresses.len();
            let Ok(channel) = self.forward.channel(&addresses[at]) else { continue };
            let client =
                RegistryClient::new(channel).max_decoding_message_size(crate::forward::MESSAGE_BYTES_MAX);
            let until = deadline.min(Instant::now() + ASK_MAX);
            if let Ok(Ok(answer)) = tokio::time::timeout_at(until.into(), call(client)).await
                && !answer.get_ref().is_cut_off()
            {
                *self.good.lock() = at;
                self.learn(answer.get_ref().name_servers());
                return Some(answer.into_inner());
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
        None
    }
}

/// What is known of other broker groups.
#[derive(Debug)]
pub struct Routes {
    servers: Arc<NameServers>,
    own: Vec<String>,
    topics: Mutex<FxHashMap<(String, String), Vec<TopicRouteGroup>>>,
    /// Up to which change of the name servers `topics` shows all routes; 0 = not at all.
    shown: Mutex<u64>,
    leaders: Mutex<FxHashMap<String, watch::Sender<Leadership>>>,
    wanted: Notify,
}

impl Routes {
    /// `own` are the broker groups of this process.
    pub fn new(servers: Arc<NameServers>, own: Vec<String>) -> Self {
        Self {
            servers,
            own,
            topics: Mutex::new(FxHashMap::default()),
            shown: Mutex::new(0),
            leaders: Mutex::new(FxHashMap::default()),
            wanted: Notify::new(),
        }
    }

    /// Where other groups serve a topic, as far as known here.
    pub fn cached(&self, topic: &v2::Resource) -> Vec<TopicRouteGroup> {
        let topics = self.topics.lock();
        topics.get(&(topic.resource_namespace.clone(), topic.name.clone())).cloned().unwrap_or_default()
    }

    /// The same, asked of the name servers.
    pub async fn look_up(&self, topic: &v2::Resource, deadline: Instant) -> Vec<TopicRouteGroup> {
        let request = GetTopicRouteRequest {
            namespace: topic.resource_namespace.clone(),
            name: topic.name.clone(),
            linearizable: false,
        };
        let ask = |mut client: RegistryClient<Channel>| {
            let request = request.clone();
            async move { client.get_topic_route(request).await }
        };
        let Some(route) = self.servers.ask(deadline, ask).await.and_then(|answer| answer.route) else {
            return Vec::new();
        };
        let groups = self.of_others(route.groups);
        if !groups.is_empty() {
            self.wanted.notify_one();
            let key = (topic.resource_namespace.clone(), topic.name.clone());
            let mut topics = self.topics.lock();
            if topics.len() < TOPICS_MAX {
                topics.insert(key, groups.clone());
            }
        }
        groups
    }

    /// Who leads another broker group; `None` when no such group is known.
    pub fn leadership(&self, group: &str) -> Option<watch::Receiver<Leadership>> {
        self.leaders.lock().get(group).map(watch::Sender::subscribe)
    }

    /// Asks for a refresh soon: a call to another group failed.
    pub fn refresh_soon(&self) {
        self.wanted.notify_one();
    }

    /// Refreshes until stopped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        if self.servers.is_empty() {
            return;
        }
        loop {
            self.refresh().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(REFRESH_EVERY) => {}
                () = self.wanted.notified() => tokio::time::sleep(REFRESH_PAUSE).await,
            }
        }
    }

    async fn refresh(&self) {
        let ask = |mut client: RegistryClient<Channel>| async move {
            client.get_cluster(GetClusterRequest {}).await
        };
        let Some(cluster) = self.servers.ask(Instant::now() + LIST_MAX, ask).await else { return };
        let others: Vec<_> =
            cluster.groups.into_iter().filter(|group| !self.own.contains(&group.broker_group)).collect();
        self.note_leaders(&others);
        if others.is_empty() {
            // No group but ours: nothing to remember, and no topics to fetch.
            self.topics.lock().clear();
            *self.shown.lock() = 0;
            return;
        }
        self.refresh_topics().await;
    }

    /// Asks for the routes that changed since the last time, page by page. What changes between two pages is behind the
    /// first page's index, and so in the next round.
    async fn refresh_topics(&self) {
        let before = *self.shown.lock();
        let mut start_after = String::new();
        let mut routes = Vec::new();
        let mut first: Option<(u64, bool)> = None;
        loop {
            let ask = |mut client: RegistryClient<Channel>| {
                let start_after = start_after.clone();
                let request = ListTopicRoutesRequest { start_after, limit: PAGE, changed_after: before };
                async move { client.list_topic_routes(request).await }
            };
            let deadline = Instant::now() + LIST_MAX;
            let Some(page) = self.servers.ask(deadline, ask).await else { return };
            let (_, partial) = *first.get_or_insert((page.routes_index, page.partial));
            if partial != page.partial {
                // Another one answered, or everything changed meanwhile: from the beginning, next time.
                *self.shown.lock() = 0;
                return;
            }
            let last = page.routes.last().and_then(|route| route.topic.as_ref());
            start_after = last.map(|last| format!("{}%{}", last.namespace, last.name)).unwrap_or_default();
            routes.extend(page.routes);
            if !page.more || start_after.is_empty() || routes.len() >= TOPICS_MAX {
                break;
            }
        }
        let Some((index, partial)) = first else { return };
        self.take_over(routes, partial);
        let mut shown = self.shown.lock();
        *shown = if partial { before.max(index) } else { index };
    }

    fn take_over(&self, routes: Vec<TopicRoute>, partial: bool) {
        let mut topics = self.topics.lock();
        if !partial {
            topics.clear();
        }
        for TopicRoute { topic, groups } in routes {
            let Some(topic) = topic else { continue };
            let (key, groups) = ((topic.namespace, topic.name), self.of_others(groups));
            if groups.is_empty() {
                topics.remove(&key);
            } else if topics.len() < TOPICS_MAX || topics.contains_key(&key) {
                topics.insert(key, groups);
            }
        }
    }

    fn of_others(&self, groups: Vec<TopicRouteGroup>) -> Vec<TopicRouteGroup> {
        groups.into_iter().filter(|group| !self.own.contains(&group.broker_group)).collect()
    }

    fn note_leaders(&self, groups: &[BrokerGroupInfo]) {
        let mut leaders = self.leaders.lock();
        leaders.retain(|name, _| groups.iter().any(|group| group.broker_group == *name));
        for group in groups {
            let member = group.members.iter().find(|member| member.node_id == group.leader_id);
            let leader = member.map(|member| LeaderInfo {
                id: member.node_id,
                node: member.node.clone(),
                api_address: member.api_address.clone(),
                client_address: member.client_address.clone(),
            });
            let now = Leadership { term: Term(group.term), leader, me: false, ready: false };
            let known =
                leaders.entry(group.broker_group.clone()).or_insert_with(|| watch::Sender::new(now.clone()));
            known.send_if_modified(|before| {
                let changed = *before != now;
                *before = now;
                changed
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn verdict(code: v2::Code) -> GetClusterResponse {
        let result = Some(AdminResult { code: code as i32, ..AdminResult::default() });
        GetClusterResponse { result, ..GetClusterResponse::default() }
    }

    /// Asks two name servers, of which the first is cut off; the calls never leave this process.
    async fn ask(second: v2::Code) -> (Option<GetClusterResponse>, usize) {
        let addresses = vec!["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let servers = NameServers::new(addresses, Arc::new(Forward::new("n1".to_owned(), Duration::ZERO)));
        let asked = AtomicUsize::new(0);
        let call = |_| {
            let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
            async move { Ok(tonic::Response::new(verdict(if first { v2::Code::HaNotAvailable } else { second }))) }
        };
        let answer = servers.ask(Instant::now() + Duration::from_secs(5), call).await;
        (answer, asked.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn name_servers_that_answers_name_are_asked_when_the_configured_ones_are_gone() {
        let addresses = vec!["127.0.0.1:1".to_owned()];
        let servers = NameServers::new(addresses, Arc::new(Forward::new("n1".to_owned(), Duration::ZERO)));
        let named = |names: &[&str]| GetClusterResponse {
            name_servers: names.iter().map(|name| (*name).to_owned()).collect(),
            ..verdict(v2::Code::Ok)
        };
        let first = named(&["127.0.0.1:1", "127.0.0.1:2"]);
        let answers = |answer: GetClusterResponse| {
            move |_| std::future::ready(Ok(tonic::Response::new(answer.clone())))
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        assert_eq!(servers.ask(deadline, answers(first.clone())).await, Some(first));
        let asked = AtomicUsize::new(0);
        let second_answers = |_| {
            let gone = asked.fetch_add(1, Ordering::Relaxed) == 0;
            let answer =
                if gone { Err(tonic::Status::unavailable("gone")) } else { Ok(named(&["127.0.0.1:2"])) };
            std::future::ready(answer.map(tonic::Response::new))
        };
        assert!(servers.ask(deadline, second_answers).await.is_some(), "the learned one");
        let known = servers.known.lock().clone();
        assert_eq!(*known, ["127.0.0.1:1", "127.0.0.1:2"]);
    }

    #[test]
    fn changes_of_routes_are_laid_over_what_is_known() {
        let servers = NameServers::new(Vec::new(), Arc::new(Forward::new("n1".to_owned(), Duration::ZERO)));
        let routes = Routes::new(Arc::new(servers), vec!["own".to_owned()]);
        let route = |name: &str, groups: &[&str]| TopicRoute {
            topic: Some(mq_protocol::cluster::TopicInfo { name: name.into(), ..Default::default() }),
            groups: groups
                .iter()
                .map(|group| TopicRouteGroup { broker_group: (*group).into(), ..Default::default() })
                .collect(),
        };
        let known = |name: &str| {
            let topic = v2::Resource { name: name.into(), ..v2::Resource::default() };
            routes.cached(&topic).len()
        };
        routes.take_over(vec![route("a", &["x", "own"]), route("b", &["x"]), route("mine", &["own"])], false);
        assert_eq!([known("a"), known("b"), known("mine")], [1, 1, 0]);
        routes.take_over(vec![route("b", &[]), route("c", &["x", "y"])], true);
        assert_eq!([known("a"), known("b"), known("c")], [1, 0, 2]);
        routes.take_over(vec![route("c", &["x"])], false);
        assert_eq!([known("a"), known("c")], [0, 1], "everything is everything");
    }

    #[tokio::test]
    async fn a_name_server_that_is_cut_off_has_no_answer() {
        let (answer, asked) = ask(v2::Code::Ok).await;
        assert_eq!((answer, asked), (Some(verdict(v2::Code::Ok)), 2));
        assert_eq!(ask(v2::Code::HaNotAvailable).await, (None, 2));
    }
}
