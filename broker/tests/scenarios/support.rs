//! Brokers in this process, on free ports, and a raw client.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_broker::config::{GroupSection, MemberSection, TimerProfile};
use mq_broker::{Broker, Config, Deps};
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::{
    DigestPart, MarkDigestRequest, PutSubscriptionGroupRequest, PutTopicRequest, ReadDigestRequest,
};
use mq_protocol::v2;
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_protocol::v2::receive_message_response::Content;
use mq_runtime::clock::SystemClock;
use mq_runtime::random::Random;
use mq_runtime::shutdown::Shutdown;
use mq_store::{Backend, OsFileSystem};
use tonic::transport::{Channel, Endpoint};

pub const OK: i32 = 20_000;

/// A scenario's turn: few at the same time, because they measure times on a machine that others use as well.
pub async fn turn() -> tokio::sync::SemaphorePermit<'static> {
    static TURNS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);
    TURNS.acquire().await.expect("never closed")
}

/// Ports that were free a moment ago.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let sockets = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("bound").port())
}

pub fn deps() -> Deps {
    Deps {
        fs: Arc::new(OsFileSystem),
        clock: Arc::new(SystemClock::new()),
        random: Random::from_os(),
        backend: Backend::Memory,
    }
}

/// Settings of `count` nodes that are the members of one broker group, without name servers.
pub fn cluster(folder: &Path, count: usize) -> Vec<Config> {
    let members: Vec<_> = (1..=count)
        .map(|number| {
            let [raft, api, client] = free_ports::<3>().map(|port| format!("127.0.0.1:{port}"));
            MemberSection { node: format!("b{number}"), raft, api, client }
        })
        .collect();
    let config = |member: &MemberSection| {
        let mut config = Config {
            cluster: "test".into(),
            node: member.node.clone(),
            data: folder.join(&member.node),
            client_listen: member.client.clone(),
            api_listen: member.api.clone(),
            raft_listen: member.raft.clone(),
            ..Config::default()
        };
        config.broker.group = vec![GroupSection { name: "broker-a".into(), members: members.clone() }];
        config.timers.profile = TimerProfile::Test;
        config.log.segment_size = 64 << 20;
        config
    };
    members.iter().map(config).collect()
}

/// One node that makes topics and groups at first use.
pub fn dev(folder: &Path) -> Config {
    let mut config = cluster(folder, 1).remove(0);
    config.auto_create_topics = true;
    config.auto_create_groups = true;
    config
}

/// Starts the brokers of a group and waits until one of them leads.
pub async fn start(configs: &[Config]) -> Vec<Broker> {
    let brokers = join(configs).await;
    until("a leader is ready", async || leader(&brokers).is_some()).await;
    brokers
}

/// Starts brokers and waits until all of them know a leader.
pub async fn join(configs: &[Config]) -> Vec<Broker> {
    let mut brokers = Vec::new();
    for config in configs {
        brokers.push(Broker::start(config.clone(), deps(), Shutdown::new()).await.expect("starts"));
    }
    for broker in &brokers {
        until("a broker is ready", async || broker.readiness()().ready).await;
    }
    brokers
}

/// Place of the leader among the brokers.
pub fn leader(brokers: &[Broker]) -> Option<usize> {
    brokers.iter().position(|broker| broker.groups().iter().all(|group| group.leads()))
}

/// Waits until a condition holds, at most 20 s.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < Duration::from_secs(20), "waited 20 s until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}

pub fn admin(config: &Config) -> BrokerAdminClient<Channel> {
    BrokerAdminClient::new(channel(&config.api_listen)).max_decoding_message_size(64 << 20)
}

pub async fn put_topic(config: &Config, name: &str, message_type: v2::MessageType) {
    let request = PutTopicRequest {
        name: name.into(),
        queues: Some(4),
        message_type: Some(message_type as u32),
        ..PutTopicRequest::default()
    };
    let result = admin(config).put_topic(request).await.expect("answered").into_inner();
    assert_eq!(result.code, OK, "{}", result.message);
}

pub async fn put_group(config: &Config, name: &str) {
    let request = PutSubscriptionGroupRequest { name: name.into(), ..Default::default() };
    let result = admin(config).put_subscription_group(request).await.expect("answered").into_inner();
    assert_eq!(result.code, OK, "{}", result.message);
}

/// The digest of each member at one mark.
pub async fn digests(configs: &[Config]) -> Vec<BTreeMap<String, DigestPart>> {
    let marked =
        admin(&configs[0]).mark_digest(MarkDigestRequest::default()).await.expect("answered").into_inner();
    assert_eq!(marked.result.as_ref().map(|result| result.code), Some(OK), "{:?}", marked.result);
    let mut all = Vec::new();
    for config in configs {
        let began = Instant::now();
        loop {
            let request = ReadDigestRequest { mark: marked.mark, ..Default::default() };
            let read = admin(config).read_digest(request).await.expect("answered").into_inner();
            if read.result.as_ref().is_some_and(|result| result.code == OK) {
                all.push(read.parts.into_iter().map(|part| (part.name.clone(), part)).collect());
                break;
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "no digest from {}: {:?}",
                config.node,
                read.result
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    all
}

pub fn resource(name: &str) -> Option<v2::Resource> {
    Some(v2::Resource { resource_namespace: String::new(), name: name.into() })
}

/// A message with a fresh id.
pub fn message(topic: &str, body: impl Into<bytes::Bytes>) -> v2::Message {
    let id = format!("01{:032X}", u128::from(mq_runtime::random::u64()));
    let system = v2::SystemProperties {
        message_id: id,
        message_type: v2::MessageType::Normal as i32,
        born_host: "test".into(),
        ..v2::SystemProperties::default()
    };
    v2::Message {
        topic: resource(topic),
        system_properties: Some(system),
        body: body.into(),
        ..v2::Message::default()
    }
}

/// A client without any intelligence.
#[derive(Clone)]
pub struct Client {
    pub stub: MessagingServiceClient<Channel>,
    pub id: String,
    pub headers: Vec<(&'static str, String)>,
    pub timeout: Duration,
}

impl Client {
    pub fn new(address: &str) -> Self {
        let stub = MessagingServiceClient::new(channel(address))
            .max_decoding_message_size(64 << 20)
            .max_encoding_message_size(64 << 20);
        let id = format!("test@1@{address}");
        Self { stub, id, headers: Vec::new(), timeout: Duration::from_secs(3) }
    }

    pub fn of(config: &Config) -> Self {
        Self::new(&config.client_listen)
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if !self.id.is_empty() {
            request.metadata_mut().insert("x-mq-client-id", self.id.parse().expect("ASCII"));
        }
        for (name, value) in &self.headers {
            request.metadata_mut().insert(*name, value.parse().expect("ASCII"));
        }
        if !self.headers.iter().any(|(name, _)| *name == "grpc-timeout") {
            request.set_timeout(self.timeout);
        }
        request
    }

    pub async fn send(&self, message: v2::Message) -> v2::SendMessageResponse {
        self.send_all(vec![message]).await.into_inner()
    }

    pub async fn send_all(&self, messages: Vec<v2::Message>) -> tonic::Response<v2::SendMessageResponse> {
        let request = self.request(v2::SendMessageRequest { messages });
        self.stub.clone().send_message(request).await.expect("answered")
    }

    /// Sends and expects OK; the queue offset.
    pub async fn store(&self, message: v2::Message) -> i64 {
        let answer = self.send(message).await;
        assert_eq!(code(&answer.status), OK, "{:?}", answer.status);
        assert_eq!(answer.entries.len(), 1);
        answer.entries[0].offset
    }

    /// One receive: its code and its messages.
    pub async fn receive(&self, receive: v2::ReceiveMessageRequest) -> (i32, Vec<v2::Message>) {
        let mut stream =
            self.stub.clone().receive_message(self.request(receive)).await.expect("answered").into_inner();
        let first = stream.message().await.expect("a stream").expect("a status");
        let Some(Content::Status(status)) = first.content else { panic!("the first item is {first:?}") };
        let mut messages = Vec::new();
        let mut ended = false;
        while let Some(item) = stream.message().await.expect("a stream") {
            assert!(!ended, "the delivery time is the last item");
            match item.content {
                Some(Content::Message(message)) => messages.push(message),
                Some(Content::DeliveryTimestamp(_)) => ended = true,
                other => panic!("unexpected {other:?}"),
            }
        }
        assert!(ended, "the delivery time is there");
        (status.code, messages)
    }

    pub async fn ack(&self, group: &str, message: &v2::Message) -> v2::AckMessageResponse {
        let system = message.system_properties.clone().unwrap_or_default();
        let entry = v2::AckMessageEntry {
            message_id: system.message_id,
            receipt_handle: system.receipt_handle.unwrap_or_default(),
            lite_topic: None,
        };
        let request = v2::AckMessageRequest {
            group: resource(group),
            topic: message.topic.clone(),
            entries: vec![entry],
        };
        self.stub.clone().ack_message(self.request(request)).await.expect("answered").into_inner()
    }

    pub async fn change(
        &self,
        group: &str,
        message: &v2::Message,
        handle: &str,
        seconds: i64,
    ) -> v2::ChangeInvisibleDurationResponse {
        let request = v2::ChangeInvisibleDurationRequest {
            group: resource(group),
            topic: message.topic.clone(),
            receipt_handle: handle.into(),
            invisible_duration: Some(prost_types::Duration { seconds, nanos: 0 }),
            message_id: message.system_properties.clone().unwrap_or_default().message_id,
            ..Default::default()
        };
        self.stub
            .clone()
            .change_invisible_duration(self.request(request))
            .await
            .expect("answered")
            .into_inner()
    }

    pub async fn route(&self, topic: &str) -> v2::QueryRouteResponse {
        let request = v2::QueryRouteRequest { topic: resource(topic), endpoints: None };
        self.stub.clone().query_route(self.request(request)).await.expect("answered").into_inner()
    }
}

pub fn code(status: &Option<v2::Status>) -> i32 {
    status.as_ref().map_or(0, |status| status.code)
}

pub fn handle(message: &v2::Message) -> String {
    message.system_properties.clone().unwrap_or_default().receipt_handle.unwrap_or_default()
}

pub fn attempt(message: &v2::Message) -> i32 {
    message.system_properties.clone().unwrap_or_default().delivery_attempt.unwrap_or_default()
}

/// A receive of a simple consumer with 10 s invisible time.
pub fn receive(group: &str, topic: &str, poll_ms: u64) -> v2::ReceiveMessageRequest {
    v2::ReceiveMessageRequest {
        group: resource(group),
        message_queue: Some(v2::MessageQueue { topic: resource(topic), ..Default::default() }),
        batch_size: 32,
        invisible_duration: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
        long_polling_timeout: Some(prost_types::Duration {
            seconds: i64::try_from(poll_ms / 1_000).expect("small"),
            nanos: i32::try_from(poll_ms % 1_000 * 1_000_000).expect("small"),
        }),
        ..Default::default()
    }
}

/// A connection that sends `grpc-timeout` as it stands; the usual one would enforce it itself.
#[derive(Clone)]
pub struct RawConnection(hyper::client::conn::http2::SendRequest<tonic::body::Body>);

impl RawConnection {
    pub async fn open(address: &str) -> Self {
        let stream = tokio::net::TcpStream::connect(address).await.expect("listens");
        let executor = hyper_util::rt::TokioExecutor::new();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.expect("speaks HTTP/2");
        mq_runtime::tasks::spawn("raw connection", async move {
            let _ = connection.await;
        });
        Self(sender)
    }
}

impl tonic::codegen::Service<http::Request<tonic::body::Body>> for RawConnection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        *request.uri_mut() = format!("http://raw{path}").parse().expect("a URI");
        Box::pin(self.0.send_request(request))
    }
}
