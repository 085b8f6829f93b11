//! Three name servers in this process, over real sockets on loopback.

#![allow(dead_code, reason = "each test file uses another part of this one")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_namesrv::{Config, Deps, Limits, MemberSection, NameSection, NameServer, TimerProfile, TimersSection};
use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::cluster::{
    FullReport, GetClusterRequest, GetClusterResponse, GetTopicRouteRequest, GetTopicRouteResponse,
    MemberStatus, ReportRequest, ReportResponse, TopicInfo,
};
use mq_runtime::clock::SystemClock;
use mq_runtime::random::Random;
use mq_runtime::shutdown::Shutdown;
use mq_store::{Backend, OsFileSystem};
use tonic::transport::{Channel, Endpoint};

const PATIENCE: Duration = Duration::from_secs(60);

/// Three nodes, of which some run.
pub struct Cluster {
    dir: tempfile::TempDir,
    members: Vec<MemberSection>,
    limits: Limits,
    pub nodes: Vec<Option<NameServer>>,
}

fn free_address() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

impl Cluster {
    /// Starts three nodes and waits until one leads.
    pub async fn start(limits: Limits) -> Self {
        let held: Vec<_> = (0..6).map(|_| free_address()).collect();
        let member = |n: usize| MemberSection {
            node: format!("n{}", n + 1),
            raft: held[2 * n].1.clone(),
            api: held[2 * n + 1].1.clone(),
        };
        let members = (0..3).map(member).collect();
        drop(held);
        let dir = tempfile::tempdir().expect("temp dir");
        let mut cluster = Self { dir, members, limits, nodes: vec![None, None, None] };
        for n in 0..3 {
            cluster.run(n).await;
        }
        cluster.leader().await;
        cluster
    }

    pub fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(&self.members[n].node)
    }

    pub fn config(&self, n: usize) -> Config {
        Config {
            cluster: "test".into(),
            node: self.members[n].node.clone(),
            data: self.data(n),
            api_listen: self.members[n].api.clone(),
            raft_listen: self.members[n].raft.clone(),
            name: NameSection { members: self.members.clone() },
            timers: TimersSection { profile: TimerProfile::Test },
            limits: self.limits.clone(),
            ..Config::default()
        }
    }

    /// Starts node `n` on what its folder holds.
    pub async fn run(&mut self, n: usize) {
        let config = self.config(n);
        config.validate().expect("usable settings");
        let started = NameServer::start(&config, deps(), Shutdown::new()).await;
        self.nodes[n] = Some(started.expect("the node starts"));
    }

    pub async fn kill(&mut self, n: usize) {
        self.nodes[n].take().expect("runs").kill().await;
    }

    pub async fn stop(&mut self, n: usize) {
        self.nodes[n].take().expect("runs").stop().await;
    }

    pub fn running(&self) -> Vec<usize> {
        (0..3).filter(|n| self.nodes[*n].is_some()).collect()
    }

    /// The running node that the running ones agree on.
    pub async fn leader(&self) -> usize {
        let nodes = || self.nodes.iter().flatten();
        let started = Instant::now();
        loop {
            let seen: Vec<_> = nodes().map(|node| node.leader().map(|leader| leader.node)).collect();
            if let Some(Some(name)) = seen.first().filter(|first| seen.iter().all(|other| other == *first)) {
                let n = self.members.iter().position(|member| member.node == *name).expect("a member");
                if self.nodes[n].is_some() {
                    return n;
                }
            }
            assert!(started.elapsed() < PATIENCE, "no leader: {seen:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn channel(&self, n: usize) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.members[n].api)).expect("an address").connect_lazy()
    }

    pub fn registry(&self, n: usize) -> RegistryClient<Channel> {
        RegistryClient::new(self.channel(n))
    }

    /// Reports through node `n` until the name group has decided.
    pub async fn report(&self, n: usize, report: &ReportRequest) -> ReportResponse {
        let started = Instant::now();
        loop {
            let answer =
                self.registry(n).report(report.clone()).await.expect("an answer in the body").into_inner();
            let code = answer.result.as_ref().expect("a result").code;
            if !matches!(code, 50_002 | 50_400) {
                return answer;
            }
            assert!(started.elapsed() < PATIENCE, "not decided: {answer:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What node `n` says of a topic, behind everything that was confirmed before.
    pub async fn route(&self, n: usize, name: &str) -> GetTopicRouteResponse {
        let request =
            GetTopicRouteRequest { namespace: String::new(), name: name.to_owned(), linearizable: true };
        let started = Instant::now();
        loop {
            let asked = self.registry(n).get_topic_route(request.clone()).await;
            let answer = asked.expect("an answer in the body").into_inner();
            if answer.result.as_ref().expect("a result").code != 50_002 {
                return answer;
            }
            assert!(started.elapsed() < PATIENCE, "no route: {answer:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn cluster(&self, n: usize) -> GetClusterResponse {
        self.registry(n).get_cluster(GetClusterRequest {}).await.expect("an answer").into_inner()
    }
}

pub fn deps() -> Deps {
    Deps {
        fs: Arc::new(OsFileSystem),
        clock: Arc::new(SystemClock::new()),
        random: Random::from_os(),
        backend: Backend::Rocks,
    }
}

/// The leader of a broker group says who it is; its topics are as they were.
pub fn keep_alive(term: u64, applied: u64) -> ReportRequest {
    let member = |id: u64| MemberStatus {
        node_id: id,
        node: format!("b{id}"),
        client_address: format!("10.0.0.{id}:8081"),
        role: "data".into(),
        voter: true,
        // Differs from report to report, and is no news.
        matched_index: Some(applied),
        ..MemberStatus::default()
    };
    ReportRequest {
        cluster: "test".into(),
        broker_group: "broker-a".into(),
        group_uuid: "uuid-a".into(),
        term,
        applied_index: applied,
        leader_id: term % 3 + 1,
        members: (1..=3).map(member).collect(),
        ..ReportRequest::default()
    }
}

/// All its topics, in one part.
pub fn full(term: u64, to: u64, topics: &[&str]) -> ReportRequest {
    let topic = |name: &&str| TopicInfo {
        name: (*name).into(),
        queues: 4,
        permission: 6,
        message_type: 1,
        ..TopicInfo::default()
    };
    let full = FullReport { to, part: 0, of: 1, topics: topics.iter().map(topic).collect() };
    ReportRequest { full: Some(full), ..keep_alive(term, to) }
}

/// The code of a route answer, and the address that it names.
pub fn shown(answer: &GetTopicRouteResponse) -> (i32, String) {
    let code = answer.result.as_ref().map_or(0, |result| result.code);
    let groups = answer.route.iter().flat_map(|route| &route.groups);
    (code, groups.map(|group| group.leader_client_address.clone()).collect::<Vec<_>>().join(" "))
}
