//! What others ask of a name server: the registry, and route queries of the RocketMQ service, on one port.

pub mod call;
mod listener;
mod registry;
mod report;
mod rocketmq;
mod status;

use std::sync::Arc;

use mq_protocol::cluster::registry_server::RegistryServer;
use mq_protocol::v2::messaging_service_server::MessagingServiceServer;
use tonic::service::Routes;

use crate::node::Node;

pub use listener::Api;

/// Largest request: a full report's part.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Both services.
pub(crate) fn routes(node: &Arc<Node>) -> Routes {
    let registry = RegistryServer::new(registry::RegistryApi { node: node.clone() });
    let messaging = MessagingServiceServer::new(rocketmq::RouteApi { node: node.clone() });
    Routes::new(registry.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(messaging.max_decoding_message_size(REQUEST_BYTES_MAX))
}
