//! What others ask of a name server: the registry, settings, and route queries of the RocketMQ service, on one port.

pub mod call;
mod kv;
mod kv_watch;
mod listener;
mod registry;
mod report;
mod rocketmq;
mod status;

use std::sync::Arc;

use mq_protocol::cluster::kv_server::KvServer;
use mq_protocol::cluster::registry_server::RegistryServer;
use mq_protocol::v2::messaging_service_server::MessagingServiceServer;
use tokio::sync::Semaphore;
use tonic::service::Routes;

use crate::node::Node;

pub use listener::Api;

/// Largest request: a full report's part.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Places for watchers of settings.
pub(crate) fn watchers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(kv_watch::WATCHERS_MAX))
}

/// All services.
pub(crate) fn routes(node: &Arc<Node>) -> Routes {
    let registry = RegistryServer::new(registry::RegistryApi { node: node.clone() });
    let messaging = MessagingServiceServer::new(rocketmq::RouteApi { node: node.clone() });
    let kv = KvServer::new(kv::KvApi { node: node.clone() });
    Routes::new(registry.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(kv.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(messaging.max_decoding_message_size(REQUEST_BYTES_MAX))
}
