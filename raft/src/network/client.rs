//! Calls to one member: openraft's network, plus what openraft knows nothing of.
#![expect(clippy::result_large_err, reason = "the error type is openraft's")]

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use mq_protocol::cluster as wire;
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{SnapshotResponse, TransferLeaderRequest};
use openraft::type_config::alias::SnapshotOf;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tonic::{Code, Request, Status};

use super::convert;
use super::endpoint::Endpoint;
use super::local::Uuid;
use super::peers::Peer;
use crate::config::NodeId;
use crate::membership::Malformed;
use crate::state_machine::NoSnapshot;
use crate::types::{
    AppendRequest, AppendResponse, AppendResult, Node, TypeConfig, VoteRequest, VoteResponse,
};

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

/// Makes clients; openraft asks for one per purpose.
#[derive(Clone)]
pub(crate) struct Network {
    pub endpoint: Arc<Endpoint>,
}

/// One purpose's client of one member. Cheap: connections are shared.
pub(crate) struct MemberClient {
    endpoint: Arc<Endpoint>,
    target: NodeId,
    peer: Result<Arc<Peer>, String>,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Entries: a long-lived stream on the append connection.
    Replication,
    /// Single requests on the control connection.
    Heartbeat,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = MemberClient;

    async fn new_client(&mut self, target: NodeId, node: &Node) -> MemberClient {
        MemberClient::new(&self.endpoint, target, node, Purpose::Replication)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &Node) -> MemberClient {
        MemberClient::new(&self.endpoint, target, node, Purpose::Heartbeat)
    }
}

fn unreachable(text: impl ToString) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(text))
}

fn broken(text: impl ToString) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(text))
}

fn malformed(error: Malformed) -> RPCError<TypeConfig> {
    broken(error)
}

/// A member that does not listen, or refuses to be the one meant, is left alone for a while (back-off).
fn of_status(status: &Status) -> RPCError<TypeConfig> {
    match status.code() {
        Code::Unavailable | Code::FailedPrecondition | Code::NotFound | Code::Unimplemented => {
            unreachable(status)
        }
        _ => broken(status),
    }
}

impl MemberClient {
    fn new(endpoint: &Arc<Endpoint>, target: NodeId, node: &Node, purpose: Purpose) -> Self {
        let peer = endpoint.peers.get(&node.raft_address);
        Self { endpoint: endpoint.clone(), target, peer, purpose }
    }

    fn peer(&self) -> RpcResult<Arc<Peer>> {
        self.peer.clone().map_err(unreachable)
    }

    /// One call on the control connection, with its deadline and both checks.
    async fn call<Answer>(
        &self,
        deadline: Duration,
        call: impl Future<Output = Result<tonic::Response<Answer>, Status>>,
        header: impl Fn(&Answer) -> Option<&wire::RaftHeader>,
    ) -> RpcResult<Answer> {
        if self.endpoint.is_closed() {
            return Err(unreachable("this node left the network of the group"));
        }
        let sent = async {
            self.endpoint.faults.pass(self.target).await;
            call.await
        };
        let answer = tokio::time::timeout(deadline, sent)
            .await
            .map_err(|_| broken(format!("node {}: no answer within {deadline:?}", self.target)))?
            .map_err(|status| of_status(&status))?
            .into_inner();
        self.endpoint.local.check_answer(header(&answer), self.target, Uuid::Equal).map_err(|mismatch| {
            tracing::warn!("{mismatch}");
            unreachable(mismatch)
        })?;
        Ok(answer)
    }

    fn header(&self) -> wire::RaftHeader {
        self.endpoint.local.header(self.target)
    }

    async fn any_vote(
        &self,
        request: &VoteRequest,
        option: &RPCOption,
        pre: bool,
    ) -> RpcResult<VoteResponse> {
        let mut control = self.peer()?.control();
        let request = convert::vote_request_to_wire(request, self.header());
        let call = async {
            if pre { control.request_pre_vote(request).await } else { control.request_vote(request).await }
        };
        let answer = self.call(option.soft_ttl(), call, |a| a.header.as_ref()).await?;
        self.endpoint.clock.observe_voter(answer.lease_time);
        convert::vote_response_from_wire(answer).map_err(malformed)
    }
}

impl RaftNetworkV2<TypeConfig> for MemberClient {
    type SnapshotData = NoSnapshot;

    async fn append_entries(&mut self, rpc: AppendRequest, option: RPCOption) -> RpcResult<AppendResponse> {
        let mut control = self.peer()?.control();
        let times = self.endpoint.clock.times_to_send();
        let request = convert::append_to_wire(rpc, self.header(), times).map_err(malformed)?;
        let answer = self.call(option.soft_ttl(), control.heartbeat(request), |a| a.header.as_ref()).await?;
        self.endpoint.clock.observe_wall(self.target, answer.wall_time);
        convert::append_result_from_wire(answer).map(AppendResponse::from).map_err(malformed)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<BoxStream<'s, RpcResult<AppendResult>>>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        match self.purpose {
            Purpose::Heartbeat => stream_append_sequential(self, input, option),
            Purpose::Replication => Box::pin(self.open_stream(input)),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest, option: RPCOption) -> RpcResult<VoteResponse> {
        self.any_vote(&rpc, &option, false).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest, option: RPCOption) -> RpcResult<VoteResponse> {
        self.any_vote(&rpc, &option, true).await
    }

    async fn full_snapshot(
        &mut self,
        _vote: crate::types::Vote,
        _snapshot: SnapshotOf<TypeConfig, NoSnapshot>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Network(NetworkError::from_string("this version sends no snapshots")))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<convert::TransferOutcome> {
        let mut control = self.peer()?.control();
        let request = convert::transfer_to_wire(&request, self.header());
        let answer =
            self.call(option.soft_ttl(), control.transfer_leader(request), |a| a.header.as_ref()).await?;
        convert::transfer_outcome_from_wire(answer).map_err(malformed)
    }
}

/// A link is at least this fast, in bytes a second: on a slower one a large frame would be sent again and again.
const SLOWEST_LINK: u64 = 1 << 20;

/// Requests of one stream that were sent and not answered: when, and how many bytes.
#[derive(Default)]
struct InFlight {
    sent: Mutex<VecDeque<(Instant, u64)>>,
    added: Notify,
}

impl InFlight {
    /// When the oldest was sent, and how long all of them may take on the slowest link.
    fn oldest(&self) -> Option<(Instant, Duration)> {
        let sent = self.sent.lock();
        let bytes: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
        sent.front().map(|(at, _)| (*at, Duration::from_millis(bytes * 1_000 / SLOWEST_LINK)))
    }
}

impl MemberClient {
    /// Opens the long-lived stream: requests leave while fewer than the window are unacknowledged. openraft reads
    /// the log when the stream is polled, so a closed window makes the next request larger.
    ///
    /// The first request is taken before the stream is opened: openraft waits for its back-off where requests are
    /// taken, and a member that is away would otherwise be tried again without a pause.
    async fn open_stream<'s, S>(&'s self, mut input: S) -> RpcResult<BoxStream<'s, RpcResult<AppendResult>>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let Some(first) = input.next().await else { return Ok(Box::pin(futures::stream::empty())) };
        if self.endpoint.is_closed() {
            return Err(unreachable("this node left the network of the group"));
        }
        let input = futures::stream::iter([first]).chain(input);
        let stall = self.endpoint.append_stall;
        let mut append = self.peer()?.append();
        let window = Arc::new(Semaphore::new(self.endpoint.append_window));
        let in_flight = Arc::new(InFlight::default());
        let outgoing = self.outgoing(input, window.clone(), in_flight.clone());
        let opened = async {
            self.endpoint.faults.pass(self.target).await;
            append.append(Request::new(outgoing)).await
        };
        let answers = tokio::time::timeout(stall, opened)
            .await
            .map_err(|_| broken(format!("node {}: no stream within {stall:?}", self.target)))?
            .map_err(|status| of_status(&status))?
            .into_inner();
        let incoming = futures::stream::unfold(Some((answers, Instant::now())), move |state| {
            let (window, in_flight) = (window.clone(), in_flight.clone());
            async move {
                let (mut answers, last_ack) = state?;
                match self.next_answer(&mut answers, &in_flight, last_ack, stall).await {
                    Ok(None) => None,
                    Ok(Some(result)) => {
                        in_flight.sent.lock().pop_front();
                        window.add_permits(1);
                        // After a refusal the stream is over: openraft starts another one.
                        let state = result.is_ok().then(|| (answers, Instant::now()));
                        Some((Ok(result), state))
                    }
                    Err(error) => Some((Err(error), None)),
                }
            }
        });
        let incoming: BoxStream<'s, _> = Box::pin(incoming);
        Ok(incoming)
    }

    fn outgoing<S>(
        &self,
        input: S,
        window: Arc<Semaphore>,
        in_flight: Arc<InFlight>,
    ) -> impl Stream<Item = wire::AppendRequest> + Send + 'static
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let (endpoint, target) = (self.endpoint.clone(), self.target);
        futures::stream::unfold(input, move |mut input| {
            let (endpoint, window, in_flight) = (endpoint.clone(), window.clone(), in_flight.clone());
            async move {
                window.acquire().await.ok()?.forget();
                let request = input.next().await?;
                if endpoint.is_closed() {
                    return None;
                }
                endpoint.faults.pass(target).await;
                let (header, times) = (endpoint.local.header(target), endpoint.clock.times_to_send());
                let request = match convert::append_to_wire(request, header, times) {
                    Ok(request) => request,
                    Err(error) => {
                        tracing::error!("append to node {target}: {error}");
                        return None;
                    }
                };
                in_flight.sent.lock().push_back((Instant::now(), request.encoded_len() as u64));
                in_flight.added.notify_one();
                Some((request, input))
            }
        })
    }

    /// The next answer; an error when something is on the way and nothing came for too long.
    async fn next_answer(
        &self,
        answers: &mut tonic::Streaming<wire::AppendResponse>,
        in_flight: &InFlight,
        last_ack: Instant,
        stall: Duration,
    ) -> RpcResult<Option<AppendResult>> {
        let answer = loop {
            let deadline = in_flight.oldest().map(|(sent, transfer)| sent.max(last_ack) + stall + transfer);
            let expired = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => in_flight.added.notified().await,
                }
            };
            tokio::select! {
                answer = answers.message() => break answer,
                () = expired => if deadline.is_some() {
                    return Err(broken(format!("node {}: no acknowledgement for {stall:?}", self.target)));
                },
            }
        };
        let Some(answer) = answer.map_err(|status| of_status(&status))? else { return Ok(None) };
        self.endpoint
            .local
            .check_answer(answer.header.as_ref(), self.target, Uuid::Equal)
            .map_err(unreachable)?;
        self.endpoint.clock.observe_wall(self.target, answer.wall_time);
        convert::append_result_from_wire(answer).map(Some).map_err(malformed)
    }
}
