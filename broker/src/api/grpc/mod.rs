//! The RocketMQ 5 service, on the client port and, for forwarded calls, on the API port. Handlers translate: headers
//! and request to a call of `produce` or `consume`, its outcome to a reply. A file per request family.

pub mod answer;
pub mod context;
mod heartbeat;
mod receive;
mod route;
mod send;
mod settle;
mod telemetry;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use mq_protocol::v2;
use mq_protocol::v2::messaging_service_server::MessagingService;
use mq_raft::Leadership;
use mq_runtime::clock::Clock;
use mq_runtime::tasks::Tasks;
use tokio::sync::{Semaphore, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use self::context::CallContext;
use self::receive::ReceiveStream;
use super::status;
use crate::clients::Clients;
use crate::config::Limits;
use crate::error::BrokerError;
use crate::forward::{Answer, Forward, respond};
use crate::group::{BrokerGroup, Groups};
use crate::metrics::Metrics;
use crate::refusal::{CallError, Refusal};
use crate::routes::Routes;

/// What is made at first use.
#[derive(Debug, Clone, Copy)]
pub struct AutoCreate {
    /// Topics, at a route query, send or receive.
    pub topics: bool,
    /// Subscription groups, at a receive.
    pub groups: bool,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct MessagingApi {
    /// Broker groups of this process.
    pub groups: Arc<Groups>,
    /// Way to other nodes.
    pub forward: Arc<Forward>,
    /// Broker groups elsewhere.
    pub routes: Arc<Routes>,
    /// Who is connected.
    pub clients: Arc<Clients>,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// Bounds.
    pub limits: Arc<Limits>,
    /// What is made at first use.
    pub auto: AutoCreate,
    /// Where clients reach this node.
    pub client_address: Arc<str>,
    /// Store host of messages.
    pub store_host: SocketAddr,
    /// Wall clock of born times and delivery times.
    pub clock: Arc<dyn Clock>,
    /// Heartbeats on their way to leaders.
    pub copies: Arc<Semaphore>,
    /// Receives that wait.
    pub waiting: Arc<Semaphore>,
    /// Open Telemetry streams.
    pub streams: Arc<Semaphore>,
    /// Tasks that calls leave behind.
    pub tasks: Tasks,
    /// Cancelled when the server stops: ends polls and streams.
    pub stopping: CancellationToken,
}

/// Where a call is served.
#[derive(Debug)]
enum Target {
    /// A broker group of this process.
    Here(Arc<BrokerGroup>),
    /// Another one.
    Elsewhere(watch::Receiver<Leadership>),
}

impl Target {
    fn leadership(&self) -> watch::Receiver<Leadership> {
        match self {
            Self::Here(group) => group.leadership(),
            Self::Elsewhere(leadership) => leadership.clone(),
        }
    }

    fn group(&self) -> Option<&Arc<BrokerGroup>> {
        match self {
            Self::Here(group) => Some(group),
            Self::Elsewhere(_) => None,
        }
    }
}

impl MessagingApi {
    /// The call's headers, or the reply that refuses it.
    fn admitted<T, A: Answer>(&self, request: &Request<T>) -> Result<CallContext, Box<Response<A>>> {
        let refused = |refusal: Refusal| Box::new(Response::new(A::refused(status::of(&refusal.into()))));
        let call = CallContext::of(request).map_err(refused)?;
        call.admit().map_err(refused)?;
        Ok(call)
    }

    /// The broker group for a topic: the named one, else one that has it, else the one that decides about it.
    async fn target_of_topic(
        &self,
        topic: &v2::Resource,
        broker: Option<&str>,
        deadline: Instant,
    ) -> Result<Target, CallError> {
        if let Some(target) = broker.and_then(|name| self.target_of_broker(name).ok()) {
            return Ok(target);
        }
        if let Some(group) = self.groups.with_topic(&topic.resource_namespace, &topic.name) {
            return Ok(Target::Here(Arc::clone(group)));
        }
        let mut elsewhere = self.routes.cached(topic);
        if elsewhere.is_empty() {
            elsewhere = self.routes.look_up(topic, deadline).await;
        }
        if let Some(leadership) =
            elsewhere.iter().find_map(|route| self.routes.leadership(&route.broker_group))
        {
            return Ok(Target::Elsewhere(leadership));
        }
        let group = self.groups.to_ask().ok_or(BrokerError::NotLeader { leader: None })?;
        Ok(Target::Here(Arc::clone(group)))
    }

    fn target_of_broker(&self, name: &str) -> Result<Target, Refusal> {
        if let Some(group) = self.groups.named(name) {
            return Ok(Target::Here(Arc::clone(group)));
        }
        let leadership = self.routes.leadership(name).map(Target::Elsewhere);
        leadership.ok_or_else(|| Refusal::UnknownBrokerGroup(name.to_owned()))
    }

    /// A failed call to another group makes its route be asked for again.
    fn after<A: Answer>(&self, target: &Target, response: &Response<A>) {
        let code = response.get_ref().code();
        if matches!(target, Target::Elsewhere(_)) && (status::not_proposed(code) || status::unknown(code)) {
            self.routes.refresh_soon();
        }
    }

    /// Until when a commit is waited for.
    fn commit_by(&self, call: &CallContext) -> Instant {
        call.answer_by().min(Instant::now() + Duration::from_millis(self.limits.commit_wait_ms_max))
    }

    /// An rpc that this version does not have.
    fn not_offered<T, A: Answer>(&self, request: &Request<T>, rpc: &str) -> Result<Response<A>, Status> {
        match self.admitted(request) {
            Ok(call) => Ok(respond(&call, None, Err(Refusal::NotOffered(rpc.to_owned()).into()))),
            Err(refused) => Ok(*refused),
        }
    }

    async fn measured<A: Answer>(
        &self,
        rpc: &'static str,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<Response<A>, Status> {
        let began = Instant::now();
        let outcome = call.await;
        let code = outcome.as_ref().map_or(0, |response| response.get_ref().code());
        self.metrics.rpc(rpc, code, false, began.elapsed());
        outcome
    }
}

type PullStream = Pin<Box<dyn Stream<Item = Result<v2::PullMessageResponse, Status>> + Send>>;

#[tonic::async_trait]
impl MessagingService for MessagingApi {
    async fn query_route(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, Status> {
        self.measured("QueryRoute", self.query_route_call(request)).await
    }

    async fn heartbeat(
        &self,
        request: Request<v2::HeartbeatRequest>,
    ) -> Result<Response<v2::HeartbeatResponse>, Status> {
        self.measured("Heartbeat", self.heartbeat_call(request)).await
    }

    async fn send_message(
        &self,
        request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, Status> {
        self.measured("SendMessage", self.send_message_call(request)).await
    }

    async fn query_assignment(
        &self,
        request: Request<v2::QueryAssignmentRequest>,
    ) -> Result<Response<v2::QueryAssignmentResponse>, Status> {
        self.not_offered(&request, "QueryAssignment")
    }

    type ReceiveMessageStream = ReceiveStream;

    async fn receive_message(
        &self,
        request: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<Self::ReceiveMessageStream>, Status> {
        self.receive_message_call(request).await
    }

    async fn ack_message(
        &self,
        request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, Status> {
        self.measured("AckMessage", self.ack_message_call(request)).await
    }

    async fn forward_message_to_dead_letter_queue(
        &self,
        request: Request<v2::ForwardMessageToDeadLetterQueueRequest>,
    ) -> Result<Response<v2::ForwardMessageToDeadLetterQueueResponse>, Status> {
        self.not_offered(&request, "ForwardMessageToDeadLetterQueue")
    }

    type PullMessageStream = PullStream;

    async fn pull_message(
        &self,
        request: Request<v2::PullMessageRequest>,
    ) -> Result<Response<Self::PullMessageStream>, Status> {
        let refused: Response<v2::UpdateOffsetResponse> = self.not_offered(&request, "PullMessage")?;
        let status = refused.into_inner().status.unwrap_or_default();
        let item =
            v2::PullMessageResponse { content: Some(v2::pull_message_response::Content::Status(status)) };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(item)]))))
    }

    async fn update_offset(
        &self,
        request: Request<v2::UpdateOffsetRequest>,
    ) -> Result<Response<v2::UpdateOffsetResponse>, Status> {
        self.not_offered(&request, "UpdateOffset")
    }

    async fn get_offset(
        &self,
        request: Request<v2::GetOffsetRequest>,
    ) -> Result<Response<v2::GetOffsetResponse>, Status> {
        self.not_offered(&request, "GetOffset")
    }

    async fn query_offset(
        &self,
        request: Request<v2::QueryOffsetRequest>,
    ) -> Result<Response<v2::QueryOffsetResponse>, Status> {
        self.not_offered(&request, "QueryOffset")
    }

    async fn end_transaction(
        &self,
        request: Request<v2::EndTransactionRequest>,
    ) -> Result<Response<v2::EndTransactionResponse>, Status> {
        self.not_offered(&request, "EndTransaction")
    }

    type TelemetryStream = ReceiverStream<Result<v2::TelemetryCommand, Status>>;

    async fn telemetry(
        &self,
        request: Request<Streaming<v2::TelemetryCommand>>,
    ) -> Result<Response<Self::TelemetryStream>, Status> {
        self.telemetry_call(request).await
    }

    async fn notify_client_termination(
        &self,
        request: Request<v2::NotifyClientTerminationRequest>,
    ) -> Result<Response<v2::NotifyClientTerminationResponse>, Status> {
        self.measured("NotifyClientTermination", self.termination_call(request)).await
    }

    async fn change_invisible_duration(
        &self,
        request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, Status> {
        self.measured("ChangeInvisibleDuration", self.change_invisible_call(request)).await
    }

    async fn recall_message(
        &self,
        request: Request<v2::RecallMessageRequest>,
    ) -> Result<Response<v2::RecallMessageResponse>, Status> {
        self.not_offered(&request, "RecallMessage")
    }

    async fn sync_lite_subscription(
        &self,
        request: Request<v2::SyncLiteSubscriptionRequest>,
    ) -> Result<Response<v2::SyncLiteSubscriptionResponse>, Status> {
        self.not_offered(&request, "SyncLiteSubscription")
    }
}
