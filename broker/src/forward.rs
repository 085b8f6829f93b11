//! Any node serves any call (D19): a call that the leader has to decide is served here while this node leads, else
//! forwarded once to the leader's API address.
//!
//! What always holds: a node sends a call a second time only when the first one certainly had no effect: the
//! connection failed, or the answer says "refused before proposing". Everything else after the bytes left is
//! *unknown* and goes back to the caller as such. A forwarded call is never forwarded again.

use std::error::Error as _;
use std::future::Future;
use std::time::{Duration, Instant};

use mq_protocol::{headers, v2};
use mq_raft::{LeaderInfo, Leadership};
use mq_store::Term;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

use crate::api::grpc::context::CallContext;
use crate::api::status;
use crate::error::BrokerError;
use crate::refusal::CallError;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// Pause before a call is tried again when no change of leadership wakes it.
const PAUSE: Duration = Duration::from_millis(30);
/// How long an answer of a leader that was replaced is still waited for.
const REPLACED_GRACE: Duration = Duration::from_millis(200);
/// Connections to other nodes; addresses come from memberships, so that this is never reached in practice.
const CHANNELS_MAX: usize = 256;
/// Largest request: what fits into one frame of the log, with what a request has around it.
pub const REQUEST_BYTES_MAX: usize = 9 << 20;
/// Largest answer between nodes: bodies of 4 MiB with everything around them, several in a batch.
pub const MESSAGE_BYTES_MAX: usize = 130 << 20;

/// A reply that carries a status of the protocol.
pub trait Answer: Sized {
    /// The reply of a call that was not done.
    fn refused(status: v2::Status) -> Self;
    /// Code of its status; 0 when it has none.
    fn code(&self) -> i32;
    /// Replaces codes inside that the caller cannot know.
    fn map_codes(&mut self, map: fn(i32) -> i32);
}

/// Connections to other nodes and the rule by which calls go there.
#[derive(Debug)]
pub struct Forward {
    node: String,
    leader_wait: Duration,
    channels: Mutex<FxHashMap<String, Channel>>,
}

/// What became of a call that was sent to another node.
enum Sent<A> {
    Answered(tonic::Response<A>),
    /// It never left this node.
    NeverLeft,
    /// It may have been done.
    Unknown(&'static str),
}

impl Forward {
    /// `node` is this node's name; `leader_wait` bounds the wait for a leader within one call.
    pub fn new(node: String, leader_wait: Duration) -> Self {
        Self { node, leader_wait, channels: Mutex::new(FxHashMap::default()) }
    }

    /// This node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// A connection to an API address; it connects when it is first used.
    pub fn channel(&self, address: &str) -> Result<Channel, BrokerError> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| BrokerError::Internal { detail: format!("{address} is not an address") })?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20);
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        let channel = endpoint.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Serves a call at the leader: `local` while this node leads in that term, else `remote` with a connection to
    /// the leader and the headers of a forwarded call. Waits for a leader while the caller's time allows.
    pub async fn at_leader<A, LF, RF>(
        &self,
        call: &CallContext,
        mut leadership: watch::Receiver<Leadership>,
        local: impl Fn(Term) -> LF,
        remote: impl Fn(Channel, MetadataMap) -> RF,
    ) -> tonic::Response<A>
    where
        A: Answer,
        LF: Future<Output = Result<A, CallError>>,
        RF: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let give_up = call.answer_by().min(Instant::now() + self.leader_wait);
        loop {
            let now_leads = leadership.borrow_and_update().clone();
            let failure = if now_leads.me && now_leads.ready {
                match local(now_leads.term).await {
                    Err(CallError::Failed(error)) if may_pass_later(&error) => error,
                    result => return respond(call, None, result),
                }
            } else if !now_leads.me && call.stays_here() {
                let error = BrokerError::NotLeader { leader: now_leads.leader.clone() };
                return respond(call, Some(&now_leads), Err(error.into()));
            } else if let Some(leader) = now_leads.leader.as_ref().filter(|_| !now_leads.me) {
                match self.send(call, leader, &leadership, &remote).await {
                    Sent::Answered(response) if !status::not_proposed(response.get_ref().code()) => {
                        return response;
                    }
                    Sent::Answered(_) => BrokerError::NotLeader { leader: None },
                    Sent::NeverLeft => BrokerError::NotLeader { leader: now_leads.leader.clone() },
                    Sent::Unknown(reason) => {
                        return respond(call, None, Err(BrokerError::Unknown { reason }.into()));
                    }
                }
            } else {
                BrokerError::NotLeader { leader: None }
            };
            if Instant::now() + PAUSE >= give_up {
                return respond(call, None, Err(failure.into()));
            }
            // A changed leadership ends the pause early; an ended one (the group stops) must not make a busy loop.
            if !matches!(tokio::time::timeout(PAUSE, leadership.changed()).await, Ok(Ok(()))) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn send<A, RF>(
        &self,
        call: &CallContext,
        leader: &LeaderInfo,
        leadership: &watch::Receiver<Leadership>,
        remote: &impl Fn(Channel, MetadataMap) -> RF,
    ) -> Sent<A>
    where
        RF: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let Ok(channel) = self.channel(&leader.api_address) else { return Sent::NeverLeft };
        let answer = remote(channel, self.headers(call));
        tokio::pin!(answer);
        let outcome = tokio::select! {
            biased;
            outcome = &mut answer => outcome,
            () = replaced(leadership.clone(), leader.id) => {
                match tokio::time::timeout(REPLACED_GRACE, answer).await {
                    Ok(outcome) => outcome,
                    Err(_) => return Sent::Unknown("the leader was replaced before it answered"),
                }
            }
            () = tokio::time::sleep_until(call.answer_by().into()) => {
                return Sent::Unknown("the leader did not answer in time");
            }
        };
        match outcome {
            Ok(response) => Sent::Answered(response),
            Err(status) if never_left(&status) => Sent::NeverLeft,
            Err(status) => {
                tracing::debug!(leader = leader.node, %status, "forwarded call failed");
                Sent::Unknown("the connection to the leader failed")
            }
        }
    }

    /// The headers of a forwarded call: who the client is, who forwards, and the time that is left.
    pub fn headers(&self, call: &CallContext) -> MetadataMap {
        let mut map = MetadataMap::new();
        let left = call.deadline.saturating_duration_since(Instant::now());
        let producer = call.producer.map(|numbers| numbers.to_string());
        for (name, value) in [
            (headers::CLIENT_ID, call.client_id.as_str()),
            (headers::LANGUAGE, &call.language_text),
            (headers::CLIENT_VERSION, &call.version),
            (headers::FORWARDED, &self.node),
            (headers::PRODUCER, producer.as_deref().unwrap_or("")),
            ("grpc-timeout", &format!("{}m", left.as_millis().clamp(1, 99_999_999))),
        ] {
            if let (false, Ok(value)) = (value.is_empty(), value.parse()) {
                map.insert(name, value);
            }
        }
        map
    }
}

/// Refusals after which the same node may try the call again: nothing was proposed.
fn may_pass_later(error: &BrokerError) -> bool {
    matches!(error, BrokerError::NotLeader { .. } | BrokerError::NoQuorum)
}

/// Ends when somebody else than `leader` leads.
async fn replaced(mut leadership: watch::Receiver<Leadership>, leader: u64) {
    let other = |seen: &Leadership| seen.leader.as_ref().is_some_and(|now| now.id != leader);
    if leadership.wait_for(other).await.is_err() {
        // The group stops here; the answer may still come.
        std::future::pending::<()>().await;
    }
}

/// True when no byte of the call can have reached the other side.
fn never_left(status: &tonic::Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The reply of a call that was served here, with the headers that go with its outcome.
pub fn respond<A: Answer>(
    call: &CallContext,
    leadership: Option<&Leadership>,
    result: Result<A, CallError>,
) -> tonic::Response<A> {
    let mut reason = None;
    let body = result.unwrap_or_else(|error| {
        reason = status::reason(&error);
        A::refused(status::of(&error))
    });
    let mut response = tonic::Response::new(body);
    if let Some(leader) = leadership.and_then(|seen| seen.leader.as_ref().map(|leader| (seen.term, leader))) {
        let (term, leader) = leader;
        if let Ok(value) = format!("{},{},{}", leader.id, term, leader.client_address).parse() {
            response.metadata_mut().insert(headers::LEADER, value);
        }
    }
    if let Some(reason) = reason {
        response.metadata_mut().insert(headers::REASON, tonic::metadata::MetadataValue::from_static(reason));
    }
    if call.language == crate::api::grpc::context::Language::Rust500 {
        response.get_mut().map_codes(status::for_rust_5_0_0);
    }
    response
}
