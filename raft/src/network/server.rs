//! Handlers of the Raft port: check who is speaking, translate, hand over.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use mq_protocol::cluster as wire;
use mq_protocol::cluster::raft_append_server::RaftAppend;
use mq_protocol::cluster::raft_bulk_server::RaftBulk;
use mq_protocol::cluster::raft_control_server::RaftControl;
use mq_store::LogOffset;
use openraft::raft::ReadPolicy;
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::endpoint::Endpoint;
use super::local::{Uuid, refusal};
use super::transport::Groups;
use crate::config::NodeId;
use crate::election;
use crate::membership::Malformed;
use crate::types::{AppendRequest, AppendResult};

type Answer<T> = Result<Response<T>, Status>;

/// All groups of this process behind one listener.
#[derive(Clone)]
pub(crate) struct Handlers {
    pub groups: Arc<Groups>,
}

fn malformed(error: Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("raft stopped: {error}"))
}

impl Handlers {
    /// The group that a message is for, and its sender.
    fn group(
        &self,
        header: Option<&wire::RaftHeader>,
        uuid: Uuid,
    ) -> Result<(Arc<Endpoint>, NodeId), Status> {
        let name = header.map_or("", |h| h.group.as_str());
        let endpoint =
            self.groups.get(name).ok_or_else(|| Status::not_found(format!("no group {name:?} here")))?;
        let from = endpoint.local.check(header, uuid).map_err(|mismatch| {
            tracing::warn!("refused: {mismatch}");
            refusal(&mismatch)
        })?;
        Ok((endpoint, from))
    }

    async fn vote(&self, request: wire::VoteRequest, pre: bool) -> Answer<wire::VoteResponse> {
        let (endpoint, from) = self.group(request.header.as_ref(), Uuid::Equal)?;
        let raft = endpoint.running()?;
        let request = convert::vote_request_from_wire(request).map_err(malformed)?;
        let answer = if pre { raft.pre_vote(request).await } else { raft.vote(request).await };
        let answer = answer.map_err(stopped)?;
        endpoint.faults.pass(from).await;
        let (header, lease) = (endpoint.local.header(from), endpoint.clock.lease_now());
        Ok(Response::new(convert::vote_response_to_wire(&answer, header, lease)))
    }
}

/// Frames in one answer, bytes.
const FETCH_BYTES: u64 = 1 << 20;

#[tonic::async_trait]
impl RaftBulk for Handlers {
    async fn fetch_frames(
        &self,
        request: Request<wire::FetchFramesRequest>,
    ) -> Answer<wire::FetchFramesResponse> {
        let wire::FetchFramesRequest { header, from: offset, max_bytes } = request.into_inner();
        let (endpoint, from) = self.group(header.as_ref(), Uuid::Equal)?;
        let log = endpoint.log().ok_or_else(|| Status::unavailable("the group does not run here"))?;
        let max = usize::try_from(max_bytes.clamp(1, FETCH_BYTES)).unwrap_or(1);
        let run = tokio::task::spawn_blocking(move || log.read_frames(LogOffset(offset), max)).await;
        let run = run.map_err(stopped)?.map_err(|e| Status::out_of_range(e.to_string()))?;
        endpoint.faults.pass(from).await;
        let header = Some(endpoint.local.header(from));
        let (start, next) = (run.start.0, run.next.0);
        Ok(Response::new(wire::FetchFramesResponse { header, start, frames: run.bytes, next }))
    }
}

#[tonic::async_trait]
impl RaftControl for Handlers {
    async fn heartbeat(&self, request: Request<wire::AppendRequest>) -> Answer<wire::AppendResponse> {
        let request = request.into_inner();
        let (endpoint, from) = self.group(request.header.as_ref(), Uuid::Equal)?;
        let raft = endpoint.running()?;
        let times = (request.lease_time, request.due_time);
        let request = convert::append_from_wire(request).map_err(malformed)?;
        let AppendRequest { vote: _, prev_log_id, entries, leader_commit: _ } = &request;
        let previous = *prev_log_id;
        let last = entries.last().map(|e| e.log_id).or(previous);
        let answer = raft.append_entries(request).await.map_err(stopped)?;
        if answer.is_success() {
            endpoint.clock.observe_leader(times);
        }
        let result = match answer.is_conflict() && previous.is_none() {
            true => return Err(Status::internal("conflict at the start of the log")),
            false => answer.into_stream_result(previous, last),
        };
        endpoint.faults.pass(from).await;
        let (header, wall) = (endpoint.local.header(from), endpoint.clock.wall_now());
        Ok(Response::new(convert::append_result_to_wire(result, header, wall)))
    }

    async fn request_vote(&self, request: Request<wire::VoteRequest>) -> Answer<wire::VoteResponse> {
        self.vote(request.into_inner(), false).await
    }

    async fn request_pre_vote(&self, request: Request<wire::VoteRequest>) -> Answer<wire::VoteResponse> {
        self.vote(request.into_inner(), true).await
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Answer<wire::TransferLeaderResponse> {
        let request = request.into_inner();
        let (endpoint, from) = self.group(request.header.as_ref(), Uuid::Equal)?;
        let raft = endpoint.running()?;
        let request = convert::transfer_from_wire(request).map_err(malformed)?;
        let outcome = raft.handle_transfer_leader(request).await.map_err(stopped)?;
        endpoint.faults.pass(from).await;
        Ok(Response::new(convert::transfer_outcome_to_wire(&outcome, endpoint.local.header(from))))
    }

    async fn read_index(&self, request: Request<wire::ReadIndexRequest>) -> Answer<wire::ReadIndexResponse> {
        use openraft::errors::{LinearizableReadError, RaftError};
        use wire::read_index_response::Outcome;
        let wire::ReadIndexRequest { header } = request.into_inner();
        let (endpoint, from) = self.group(header.as_ref(), Uuid::Equal)?;
        let raft = endpoint.running()?;
        let (outcome, read) = match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(confirmed) => (Outcome::Confirmed, Some(*confirmed.read_log_id().log_id())),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => (Outcome::NotLeader, None),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => (Outcome::NoQuorum, None),
            Err(RaftError::Fatal(fatal)) => return Err(stopped(fatal)),
        };
        endpoint.faults.pass(from).await;
        let read = read.as_ref().map(convert::log_id_to_wire);
        let header = Some(endpoint.local.header(from));
        Ok(Response::new(wire::ReadIndexResponse { header, outcome: outcome.into(), read }))
    }

    async fn leader_gone(
        &self,
        request: Request<wire::LeaderGoneRequest>,
    ) -> Answer<wire::LeaderGoneResponse> {
        let wire::LeaderGoneRequest { header, vote, last: _ } = request.into_inner();
        let (endpoint, from) = self.group(header.as_ref(), Uuid::Equal)?;
        let raft = endpoint.running()?;
        let vote = convert::vote_from_wire(vote).map_err(malformed)?;
        let (gone, last) = election::confirm_gone(&endpoint, &raft, vote).await;
        endpoint.faults.pass(from).await;
        let last = last.as_ref().map(convert::log_id_to_wire);
        Ok(Response::new(wire::LeaderGoneResponse { header: Some(endpoint.local.header(from)), gone, last }))
    }

    type HoldStream = Pin<Box<dyn Stream<Item = Result<wire::HoldEvent, Status>> + Send>>;

    async fn hold(&self, request: Request<wire::HoldRequest>) -> Answer<Self::HoldStream> {
        let wire::HoldRequest { header } = request.into_inner();
        let (endpoint, from) = self.group(header.as_ref(), Uuid::Equal)?;
        endpoint.faults.pass(from).await;
        let first = wire::HoldEvent { header: Some(endpoint.local.header(from)) };
        let first = futures::stream::once(async { Ok(first) });
        let rest = futures::stream::unfold(endpoint, |endpoint| async move {
            endpoint.closed().await;
            None
        });
        Ok(Response::new(Box::pin(first.chain(rest))))
    }

    async fn probe(&self, request: Request<wire::ProbeRequest>) -> Answer<wire::ProbeResponse> {
        let wire::ProbeRequest { header, members: _ } = request.into_inner();
        let (endpoint, from) = self.group(header.as_ref(), Uuid::Any)?;
        endpoint.faults.pass(from).await;
        Ok(Response::new(endpoint.formation.answer_probe(endpoint.local.header(from))))
    }

    async fn propose_identity(
        &self,
        request: Request<wire::ProposeIdentityRequest>,
    ) -> Answer<wire::ProposeIdentityResponse> {
        let wire::ProposeIdentityRequest { header, identity } = request.into_inner();
        let (endpoint, from) = self.group(header.as_ref(), Uuid::Any)?;
        let identity = identity.ok_or_else(|| Status::invalid_argument("no identity"))?;
        let refused = endpoint.formation.accept(identity, &endpoint.local).await;
        endpoint.faults.pass(from).await;
        let header = Some(endpoint.local.header(from));
        let (ready, refused) = (refused.is_none(), refused.unwrap_or_default());
        Ok(Response::new(wire::ProposeIdentityResponse { header, ready, refused }))
    }
}

/// (lease time, due time) of a stream's requests that Raft has not answered, in order. As many as Raft takes in advance.
type Leases = Arc<Mutex<VecDeque<(u64, u64)>>>;

/// Why the incoming half of a stream ended before its time; told on the outgoing half.
type BadInput = Arc<Mutex<Option<Status>>>;

impl Handlers {
    /// Requests of one stream, checked one by one; the first bad one ends it.
    fn incoming(
        self,
        stream: Streaming<wire::AppendRequest>,
        first: wire::AppendRequest,
        bad: BadInput,
        leases: Leases,
    ) -> impl Stream<Item = AppendRequest> + Send + 'static {
        futures::stream::unfold((stream, Some(first)), move |(mut stream, first)| {
            let (handlers, bad, leases) = (self.clone(), bad.clone(), leases.clone());
            async move {
                let request = match first {
                    Some(first) => first,
                    None => stream.message().await.ok().flatten()?,
                };
                let checked = handlers.group(request.header.as_ref(), Uuid::Equal);
                let converted = checked.and_then(|_| {
                    let times = (request.lease_time, request.due_time);
                    let request = convert::append_from_wire(request).map_err(malformed)?;
                    Ok((times, request))
                });
                match converted {
                    Ok((times, request)) => {
                        leases.lock().push_back(times);
                        Some((request, (stream, None)))
                    }
                    Err(status) => {
                        tracing::warn!("append stream ended: {status}");
                        *bad.lock() = Some(status);
                        None
                    }
                }
            }
        })
    }
}

#[tonic::async_trait]
impl RaftAppend for Handlers {
    type AppendStream = Pin<Box<dyn Stream<Item = Result<wire::AppendResponse, Status>> + Send>>;

    async fn append(&self, request: Request<Streaming<wire::AppendRequest>>) -> Answer<Self::AppendStream> {
        let handlers = self.clone();
        let mut requests = request.into_inner();
        // The answer's headers leave before the first request comes: the sender waits for them.
        let answers = async move {
            let Some(first) = requests.message().await? else { return Ok(None) };
            let (endpoint, from) = handlers.group(first.header.as_ref(), Uuid::Equal)?;
            let raft = endpoint.running()?;
            let bad = BadInput::default();
            let leases = Leases::default();
            let incoming = handlers.incoming(requests, first, bad.clone(), leases.clone());
            // Boxed, because the plain type would seem to borrow `raft`.
            let results: Results<_> = Box::pin(raft.stream_append(incoming));
            Ok::<_, Status>(Some(outgoing(endpoint, from, results, bad, leases)))
        };
        let answers = futures::stream::once(answers).flat_map(|opened| match opened {
            Ok(Some(answers)) => answers.left_stream(),
            Ok(None) => futures::stream::empty().left_stream().right_stream(),
            Err(status) => futures::stream::iter([Err(status)]).right_stream().right_stream(),
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

type Results<E> = Pin<Box<dyn Stream<Item = Result<AppendResult, E>> + Send>>;

fn outgoing<E: std::fmt::Display + Send + 'static>(
    endpoint: Arc<Endpoint>,
    from: NodeId,
    results: Results<E>,
    bad: BadInput,
    leases: Leases,
) -> impl Stream<Item = Result<wire::AppendResponse, Status>> + Send + 'static {
    futures::stream::unfold(Some(results), move |results| {
        let (endpoint, bad, leases) = (endpoint.clone(), bad.clone(), leases.clone());
        async move {
            let mut results = results?;
            let next = tokio::select! {
                next = results.next() => next,
                () = endpoint.closed() => return Some((Err(stopped("the group closes")), None)),
            };
            match next {
                Some(Ok(result)) => {
                    // Only a leader that Raft accepted says what time it is.
                    let times = leases.lock().pop_front();
                    if let (Ok(_), Some(times)) = (&result, times) {
                        endpoint.clock.observe_leader(times);
                    }
                    endpoint.faults.pass(from).await;
                    let (header, wall) = (endpoint.local.header(from), endpoint.clock.wall_now());
                    Some((Ok(convert::append_result_to_wire(result, header, wall)), Some(results)))
                }
                Some(Err(fatal)) => Some((Err(stopped(fatal)), None)),
                None => bad.lock().take().map(|status| (Err(status), None)),
            }
        }
    })
}
