//! QueryRoute: where a topic's queues are served. Only leaders are listed, each as broker id 0 with one address;
//! while a group has no leader its last known address stays, because any node serves any call.

use std::net::IpAddr;

use mq_protocol::cluster::TopicRouteGroup;
use mq_protocol::names::Field;
use mq_protocol::v2;
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use tonic::{Request, Response};

use super::MessagingApi;
use super::context::CallContext;
use crate::api::status;
use crate::error::BrokerError;
use crate::forward::{Answer as _, respond};
use crate::group::{BrokerGroup, Lookup};
use crate::produce::admit;
use crate::refusal::CallError;
use crate::state::Topic;

impl MessagingApi {
    pub(super) async fn query_route_call(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, tonic::Status> {
        let call = match self.admitted(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(*refused),
        };
        let request = request.into_inner();
        let checked = admit::present(request.topic.as_ref(), Field::Topic)
            .and_then(|topic| admit::topic_name(topic).map(|()| topic.clone()));
        let topic = match checked {
            Ok(topic) => topic,
            Err(refusal) => return Ok(respond(&call, None, Err(refusal.into()))),
        };
        let known = self.route(&topic);
        if !known.is_empty() {
            return Ok(respond(&call, None, Ok(found(known))));
        }
        Ok(self.ask_leaders(&call, &request, &topic).await)
    }

    /// A topic that is not known here: the leaders decide, then the name servers.
    async fn ask_leaders(
        &self,
        call: &CallContext,
        request: &v2::QueryRouteRequest,
        topic: &v2::Resource,
    ) -> Response<v2::QueryRouteResponse> {
        let asked: Vec<_> = match call.stays_here() {
            true => self.groups.iter().filter(|group| group.leads()).cloned().collect(),
            false => self.groups.iter().cloned().collect(),
        };
        let mut unsure = None;
        for (at, group) in asked.iter().enumerate() {
            let create = self.auto.topics && at + 1 == asked.len();
            let response = self
                .forward
                .at_leader(
                    call,
                    group.leadership(),
                    |term| async move {
                        let deadline = call.answer_by();
                        let (namespace, name) = (&topic.resource_namespace, &topic.name);
                        group.require_topic(Lookup { namespace, name, create, term, deadline }).await?;
                        Ok(found(self.route(topic)))
                    },
                    |channel, headers| async move {
                        let mut client = MessagingServiceClient::new(channel);
                        let request = Request::from_parts(headers, tonic::Extensions::new(), request.clone());
                        client.query_route(request).await
                    },
                )
                .await;
            match response.get_ref().code() {
                code if code == v2::Code::Ok as i32 => return response,
                code if code == v2::Code::TopicNotFound as i32 => {}
                _ => unsure = Some(response),
            }
        }
        if let Some(unsure) = unsure {
            return unsure;
        }
        let elsewhere = self.routes.look_up(topic, call.answer_by()).await;
        let queues = queues_elsewhere(topic, &elsewhere);
        if queues.is_empty() {
            let unknown = match asked.is_empty() {
                true => BrokerError::NotLeader { leader: None },
                false => BrokerError::UnknownTopic { topic: topic.name.clone() },
            };
            return respond(call, None, Err(CallError::from(unknown)));
        }
        respond(call, None, Ok(found(queues)))
    }

    /// The queues that this node knows, by broker group name, then queue number: the order never changes between
    /// calls, clients hash over it.
    fn route(&self, topic: &v2::Resource) -> Vec<v2::MessageQueue> {
        let mut groups: Vec<(&str, Vec<v2::MessageQueue>)> = Vec::new();
        for group in self.groups.iter() {
            if let Some(known) = group.topic(&topic.resource_namespace, &topic.name) {
                groups.push((&group.name, self.queues_here(topic, group, &known)));
            }
        }
        let elsewhere = self.routes.cached(topic);
        for group in &elsewhere {
            if self.groups.named(&group.broker_group).is_none() {
                groups.push((&group.broker_group, queues_elsewhere(topic, std::slice::from_ref(group))));
            }
        }
        groups.sort_by(|a, b| a.0.cmp(b.0));
        groups.into_iter().flat_map(|(_, queues)| queues).collect()
    }

    fn queues_here(&self, topic: &v2::Resource, group: &BrokerGroup, known: &Topic) -> Vec<v2::MessageQueue> {
        let here = group.leadership().borrow().me;
        let leader = group.leader_client_address().filter(|_| !here);
        let address = leader.unwrap_or_else(|| self.client_address.to_string());
        queues(topic, &group.name, &address, known.queues, known.permission, known.message_type)
    }
}

fn found(message_queues: Vec<v2::MessageQueue>) -> v2::QueryRouteResponse {
    v2::QueryRouteResponse { status: Some(status::ok()), message_queues }
}

fn queues_elsewhere(topic: &v2::Resource, groups: &[TopicRouteGroup]) -> Vec<v2::MessageQueue> {
    let of = |group: &TopicRouteGroup| {
        let address = &group.leader_client_address;
        queues(topic, &group.broker_group, address, group.queues, group.permission, group.message_type)
    };
    groups.iter().filter(|group| !group.leader_client_address.is_empty()).flat_map(of).collect()
}

fn queues(
    topic: &v2::Resource,
    broker: &str,
    address: &str,
    count: u32,
    permission: u32,
    message_type: u32,
) -> Vec<v2::MessageQueue> {
    let broker = v2::Broker { name: broker.to_owned(), id: 0, endpoints: Some(endpoints(address)) };
    let permission = match permission & 6 {
        6 => v2::Permission::ReadWrite,
        4 => v2::Permission::Read,
        2 => v2::Permission::Write,
        _ => v2::Permission::None,
    };
    let queue = |id| v2::MessageQueue {
        topic: Some(topic.clone()),
        id: i32::try_from(id).unwrap_or(i32::MAX),
        permission: permission as i32,
        broker: Some(broker.clone()),
        accept_message_types: vec![admit::topic_message_type(message_type) as i32],
    };
    (0..count).map(queue).collect()
}

/// One address with its kind; clients cannot use an unspecified one.
pub(super) fn endpoints(address: &str) -> v2::Endpoints {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let scheme = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => v2::AddressScheme::IPv4,
        Ok(IpAddr::V6(_)) => v2::AddressScheme::IPv6,
        Err(_) => v2::AddressScheme::DomainName,
    };
    let address = v2::Address { host: host.to_owned(), port: port.parse().unwrap_or(0) };
    v2::Endpoints { scheme: scheme as i32, addresses: vec![address] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_has_one_address_and_a_kind() {
        for (address, scheme, host, port) in [
            ("10.0.0.1:8081", v2::AddressScheme::IPv4, "10.0.0.1", 8081),
            ("b1.example.net:80", v2::AddressScheme::DomainName, "b1.example.net", 80),
            ("[::1]:8081", v2::AddressScheme::IPv6, "::1", 8081),
        ] {
            let made = endpoints(address);
            assert_eq!(made.scheme, scheme as i32);
            assert_eq!(made.addresses, [v2::Address { host: host.into(), port }]);
        }
    }

    #[test]
    fn queues_are_numbered_from_zero_and_never_unspecified() {
        let topic = v2::Resource { resource_namespace: String::new(), name: "t".into() };
        let made = queues(&topic, "broker-a", "10.0.0.1:8081", 3, 6, 0);
        assert_eq!(made.iter().map(|queue| queue.id).collect::<Vec<_>>(), [0, 1, 2]);
        for queue in made {
            assert_eq!(queue.permission, v2::Permission::ReadWrite as i32);
            assert_eq!(queue.accept_message_types, [v2::MessageType::Normal as i32]);
            assert_eq!(queue.broker.map(|broker| broker.id), Some(0));
        }
    }
}
