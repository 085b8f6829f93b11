//! Route queries of RocketMQ 5 clients. Everything else of that service belongs to the brokers and is answered
//! NOT_IMPLEMENTED, in the body, as clients expect it.

use std::net::IpAddr;
use std::sync::Arc;

use mq_protocol::cluster::TopicRouteGroup;
use mq_protocol::v2::messaging_service_server::MessagingService;
use mq_protocol::{names, v2};
use tonic::{Request, Response, Status, Streaming};

use super::call::Call;
use super::status;
use crate::error::NameError;
use crate::node::Node;
use crate::route_table::resource;

/// The service.
pub(crate) struct RouteApi {
    pub node: Arc<Node>,
}

type OneAnswer<T> = tokio_stream::Once<Result<T, Status>>;

fn one_answer<T>(answer: T) -> Response<OneAnswer<T>> {
    Response::new(tokio_stream::once(Ok(answer)))
}

fn not_here() -> v2::Status {
    let message = "name servers answer route queries only; brokers serve this call".to_owned();
    v2::Status { code: v2::Code::NotImplemented as i32, message }
}

impl RouteApi {
    fn queues(&self, request: &Request<v2::QueryRouteRequest>) -> Result<Vec<v2::MessageQueue>, NameError> {
        Call::of(request.metadata())?;
        let topic = request.get_ref().topic.as_ref();
        let topic = topic.ok_or_else(|| NameError::BadRequest("the request names no topic".to_owned()))?;
        names::namespace(&topic.resource_namespace)?;
        names::topic(&topic.name)?;
        self.node.fresh()?;
        let route = self.node.state.read().table.route(&topic.resource_namespace, &topic.name);
        let unknown = || NameError::UnknownTopic(resource(&topic.resource_namespace, &topic.name));
        let groups = route.ok_or_else(unknown)?.groups;
        let queues: Vec<v2::MessageQueue> = groups.iter().flat_map(|group| queues_of(topic, group)).collect();
        if queues.is_empty() { Err(NameError::NoLeader) } else { Ok(queues) }
    }
}

/// The queues of one broker group, as its leader serves them. Only leaders are listed, each as broker id 0.
fn queues_of(topic: &v2::Resource, group: &TopicRouteGroup) -> Vec<v2::MessageQueue> {
    if group.leader_client_address.is_empty() {
        return Vec::new();
    }
    let endpoints = endpoints(&group.leader_client_address);
    let broker = v2::Broker { name: group.broker_group.clone(), id: 0, endpoints: Some(endpoints) };
    let permission = match group.permission & 6 {
        6 => v2::Permission::ReadWrite,
        4 => v2::Permission::Read,
        2 => v2::Permission::Write,
        _ => v2::Permission::None,
    };
    // Clients cannot use an unspecified type.
    let message_type = match v2::MessageType::try_from(i32::try_from(group.message_type).unwrap_or_default())
    {
        Ok(v2::MessageType::Unspecified) | Err(_) => v2::MessageType::Normal,
        Ok(message_type) => message_type,
    };
    let queue = |id| v2::MessageQueue {
        topic: Some(topic.clone()),
        id: i32::try_from(id).unwrap_or(i32::MAX),
        permission: permission as i32,
        broker: Some(broker.clone()),
        accept_message_types: vec![message_type as i32],
    };
    (0..group.queues).map(queue).collect()
}

/// One address with its kind; clients cannot use an unspecified one.
fn endpoints(address: &str) -> v2::Endpoints {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let scheme = match host.parse() {
        Ok(IpAddr::V4(_)) => v2::AddressScheme::IPv4,
        Ok(IpAddr::V6(_)) => v2::AddressScheme::IPv6,
        Err(_) => v2::AddressScheme::DomainName,
    };
    let address = v2::Address { host: host.to_owned(), port: port.parse().unwrap_or(0) };
    v2::Endpoints { scheme: scheme as i32, addresses: vec![address] }
}

/// An answer that only says no.
macro_rules! no {
    ($response:ident) => {{
        let mut answer = v2::$response::default();
        answer.status = Some(not_here());
        Ok(Response::new(answer))
    }};
}

#[tonic::async_trait]
impl MessagingService for RouteApi {
    async fn query_route(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, Status> {
        let answer = match self.queues(&request) {
            Ok(message_queues) => v2::QueryRouteResponse { status: Some(status::ok()), message_queues },
            Err(error) => {
                v2::QueryRouteResponse { status: Some(status::of(&error)), message_queues: Vec::new() }
            }
        };
        self.node.metrics.routed(answer.status.as_ref().map_or(0, |status| status.code));
        Ok(Response::new(answer))
    }

    type ReceiveMessageStream = OneAnswer<v2::ReceiveMessageResponse>;

    async fn receive_message(
        &self,
        _request: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<Self::ReceiveMessageStream>, Status> {
        let content = v2::receive_message_response::Content::Status(not_here());
        Ok(one_answer(v2::ReceiveMessageResponse { content: Some(content) }))
    }

    type PullMessageStream = OneAnswer<v2::PullMessageResponse>;

    async fn pull_message(
        &self,
        _request: Request<v2::PullMessageRequest>,
    ) -> Result<Response<Self::PullMessageStream>, Status> {
        let content = v2::pull_message_response::Content::Status(not_here());
        Ok(one_answer(v2::PullMessageResponse { content: Some(content) }))
    }

    type TelemetryStream = OneAnswer<v2::TelemetryCommand>;

    async fn telemetry(
        &self,
        _request: Request<Streaming<v2::TelemetryCommand>>,
    ) -> Result<Response<Self::TelemetryStream>, Status> {
        Ok(one_answer(v2::TelemetryCommand { status: Some(not_here()), ..Default::default() }))
    }

    async fn heartbeat(
        &self,
        _request: Request<v2::HeartbeatRequest>,
    ) -> Result<Response<v2::HeartbeatResponse>, Status> {
        no!(HeartbeatResponse)
    }

    async fn send_message(
        &self,
        _request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, Status> {
        no!(SendMessageResponse)
    }

    async fn query_assignment(
        &self,
        _request: Request<v2::QueryAssignmentRequest>,
    ) -> Result<Response<v2::QueryAssignmentResponse>, Status> {
        no!(QueryAssignmentResponse)
    }

    async fn ack_message(
        &self,
        _request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, Status> {
        no!(AckMessageResponse)
    }

    async fn forward_message_to_dead_letter_queue(
        &self,
        _request: Request<v2::ForwardMessageToDeadLetterQueueRequest>,
    ) -> Result<Response<v2::ForwardMessageToDeadLetterQueueResponse>, Status> {
        no!(ForwardMessageToDeadLetterQueueResponse)
    }

    async fn update_offset(
        &self,
        _request: Request<v2::UpdateOffsetRequest>,
    ) -> Result<Response<v2::UpdateOffsetResponse>, Status> {
        no!(UpdateOffsetResponse)
    }

    async fn get_offset(
        &self,
        _request: Request<v2::GetOffsetRequest>,
    ) -> Result<Response<v2::GetOffsetResponse>, Status> {
        no!(GetOffsetResponse)
    }

    async fn query_offset(
        &self,
        _request: Request<v2::QueryOffsetRequest>,
    ) -> Result<Response<v2::QueryOffsetResponse>, Status> {
        no!(QueryOffsetResponse)
    }

    async fn end_transaction(
        &self,
        _request: Request<v2::EndTransactionRequest>,
    ) -> Result<Response<v2::EndTransactionResponse>, Status> {
        no!(EndTransactionResponse)
    }

    async fn notify_client_termination(
        &self,
        _request: Request<v2::NotifyClientTerminationRequest>,
    ) -> Result<Response<v2::NotifyClientTerminationResponse>, Status> {
        no!(NotifyClientTerminationResponse)
    }

    async fn change_invisible_duration(
        &self,
        _request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, Status> {
        no!(ChangeInvisibleDurationResponse)
    }

    async fn recall_message(
        &self,
        _request: Request<v2::RecallMessageRequest>,
    ) -> Result<Response<v2::RecallMessageResponse>, Status> {
        no!(RecallMessageResponse)
    }

    async fn sync_lite_subscription(
        &self,
        _request: Request<v2::SyncLiteSubscriptionRequest>,
    ) -> Result<Response<v2::SyncLiteSubscriptionResponse>, Status> {
        no!(SyncLiteSubscriptionResponse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(address: &str) -> TopicRouteGroup {
        TopicRouteGroup {
            broker_group: "broker-a".into(),
            leader_client_address: address.into(),
            queues: 3,
            permission: 6,
            message_type: 0,
        }
    }

    #[test]
    fn queues_have_what_clients_need() {
        let topic = v2::Resource { resource_namespace: "ns".into(), name: "t".into() };
        let queues = queues_of(&topic, &group("10.0.0.1:8081"));
        assert_eq!(queues.iter().map(|queue| queue.id).collect::<Vec<_>>(), [0, 1, 2]);
        for queue in queues {
            assert_eq!(queue.topic.as_ref(), Some(&topic), "the request's resource comes back");
            assert_eq!(queue.permission, v2::Permission::ReadWrite as i32);
            assert_eq!(queue.accept_message_types, [v2::MessageType::Normal as i32], "never unspecified");
            let broker = queue.broker.expect("a broker");
            assert_eq!((broker.id, broker.name.as_str()), (0, "broker-a"));
            assert_eq!(broker.endpoints.expect("endpoints").addresses.len(), 1, "exactly one address");
        }
        assert!(queues_of(&topic, &group("")).is_empty(), "no address, no queue");
    }

    #[test]
    fn addresses_say_their_kind() {
        for (address, scheme, host) in [
            ("10.0.0.1:8081", v2::AddressScheme::IPv4, "10.0.0.1"),
            ("b1.example.net:8081", v2::AddressScheme::DomainName, "b1.example.net"),
            ("[::1]:8081", v2::AddressScheme::IPv6, "::1"),
        ] {
            let made = endpoints(address);
            assert_eq!(made.scheme, scheme as i32);
            assert_eq!(made.addresses, [v2::Address { host: host.into(), port: 8081 }]);
        }
    }
}
