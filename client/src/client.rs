//! The client: addresses in, producers and consumers out.

use std::sync::Arc;
use std::time::Duration;

use crate::address::check_address;
use crate::admin::Admin;
use crate::connection::Pool;
use crate::consumer::SimpleConsumerBuilder;
use crate::core::Core;
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::producer::ProducerBuilder;

/// A client of one cluster. Cheap to clone; all clones share connections and routes.
///
/// Needs a running tokio runtime from the first call on; building it does no I/O.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

/// Settings of a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    name_servers: Vec<String>,
    brokers: Vec<String>,
    client_id: Option<String>,
    connect_timeout: Duration,
    connections_per_node: usize,
}

impl Client {
    /// Starts with no address and shipped settings.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            name_servers: Vec::new(),
            brokers: Vec::new(),
            client_id: None,
            connect_timeout: Duration::from_millis(200),
            connections_per_node: 3,
        }
    }

    /// A producer with its own identity for repeats.
    #[must_use]
    pub fn producer(&self) -> ProducerBuilder {
        ProducerBuilder::new(self.clone())
    }

    /// A consumer of a subscription group that asks for messages itself.
    #[must_use]
    pub fn simple_consumer(&self, subscription_group: impl Into<String>) -> SimpleConsumerBuilder {
        SimpleConsumerBuilder::new(self.clone(), subscription_group.into())
    }

    /// Typed administration of this cluster.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// The id that every call of this client carries.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.core.identity.client_id
    }
}

impl ClientBuilder {
    /// Adds name servers, `host:port` (9876).
    #[must_use]
    pub fn name_servers<I: IntoIterator<Item = S>, S: Into<String>>(mut self, addresses: I) -> Self {
        self.name_servers.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// Adds brokers, `host:port` of their port for clients (8081) or for nodes (10911).
    #[must_use]
    pub fn brokers<I: IntoIterator<Item = S>, S: Into<String>>(mut self, addresses: I) -> Self {
        self.brokers.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// Sets the client's id; by default it is made of host, process and a random number.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Longest time for one connection to come up; 200 ms by default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Most connections to one node, 3 by default; the second is made only when the first is busy.
    #[must_use]
    pub fn connections_per_node(mut self, count: usize) -> Self {
        self.connections_per_node = count;
        self
    }

    /// Checks the settings.
    pub fn build(self) -> Result<Client, ConfigError> {
        if self.name_servers.is_empty() && self.brokers.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        self.name_servers.iter().chain(&self.brokers).try_for_each(|address| check_address(address))?;
        self.client_id.iter().try_for_each(|id| mq_protocol::names::client_id(id))?;
        in_range("connections per node", self.connections_per_node as u64, 1, 16)?;
        in_range("connect timeout in ms", millis(self.connect_timeout), 1, 60_000)?;
        let identity = Identity::new(self.client_id);
        let pool = Pool::new(self.connect_timeout, self.connections_per_node);
        Ok(Client { core: Arc::new(Core::new(identity, pool, self.name_servers, self.brokers)) })
    }
}

/// Longest time limit of a call.
const TIMEOUT_MS_MAX: u64 = 24 * 3_600_000;

/// Checks a call's time limit. Within the range a deadline made of it cannot overflow.
pub(crate) fn timeout_in_range(what: &'static str, timeout: Duration) -> Result<(), ConfigError> {
    in_range(what, millis(timeout), 1, TIMEOUT_MS_MAX)
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn in_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::Range { what, value, min, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        assert_eq!(Client::builder().build().err(), Some(ConfigError::NoAddress));
        let wrong = Client::builder().brokers(["localhost"]).build();
        assert_eq!(wrong.err(), Some(ConfigError::Address("localhost".into())));
        let wrong = Client::builder().brokers(["localhost:1"]).connections_per_node(0).build();
        assert!(matches!(wrong.err(), Some(ConfigError::Range { value: 0, min: 1, max: 16, .. })));
    }
}
