//! Who is connected: soft state from heartbeats and settings. It is never replicated and may vanish at any time;
//! no call depends on it. It serves metrics, and later the commands that a server sends through a client's stream.

use std::time::{Duration, Instant};

use mq_protocol::v2;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// A client is forgotten this long after its last sign of life (heartbeats come every 10 to 30 s).
const EXPIRY: Duration = Duration::from_secs(90);

/// What is known of one client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Text of the `x-mq-language` header.
    pub language: String,
    /// Text of the `x-mq-client-version` header.
    pub version: String,
    /// `apache.rocketmq.v2.ClientType`, as the client wrote it.
    pub client_type: i32,
    /// Subscription group of a consumer as `namespace%name`; empty for producers.
    pub group: String,
    /// Node that holds the client's connection when it is another one.
    pub node: Option<String>,
    seen: Instant,
}

impl Client {
    /// True for the client types that receive messages.
    pub fn is_consumer(&self) -> bool {
        use v2::ClientType as T;
        matches!(
            T::try_from(self.client_type),
            Ok(T::PushConsumer
                | T::SimpleConsumer
                | T::PullConsumer
                | T::LitePushConsumer
                | T::LiteSimpleConsumer)
        )
    }
}

/// The clients seen lately. Bounded: beyond the limit new ones are served, but not remembered.
#[derive(Debug)]
pub struct Clients {
    limit: usize,
    known: Mutex<FxHashMap<String, Client>>,
}

impl Clients {
    /// An empty table for at most `limit` clients.
    pub fn new(limit: usize) -> Self {
        Self { limit, known: Mutex::new(FxHashMap::default()) }
    }

    /// Notes a sign of life. A client that comes back with the same id replaces its former entry.
    pub fn seen(
        &self,
        id: &str,
        language: &str,
        version: &str,
        client_type: i32,
        group: &str,
        node: Option<&str>,
    ) {
        let mut known = self.known.lock();
        if known.len() >= self.limit && !known.contains_key(id) {
            let now = Instant::now();
            known.retain(|_, client| now.duration_since(client.seen) < EXPIRY);
            if known.len() >= self.limit {
                return;
            }
        }
        let client = Client {
            language: language.to_owned(),
            version: version.to_owned(),
            client_type,
            group: group.to_owned(),
            node: node.map(str::to_owned),
            seen: Instant::now(),
        };
        known.insert(id.to_owned(), client);
    }

    /// Forgets a client that said goodbye.
    pub fn gone(&self, id: &str) -> Option<Client> {
        self.known.lock().remove(id)
    }

    /// Drops what has expired and calls `each` for the rest.
    pub fn visit(&self, mut each: impl FnMut(&str, &Client)) {
        let now = Instant::now();
        let mut known = self.known.lock();
        known.retain(|_, client| now.duration_since(client.seen) < EXPIRY);
        for (id, client) in known.iter() {
            each(id, client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_a_returning_client_counts_once() {
        let clients = Clients::new(2);
        for id in ["a", "b", "a", "c"] {
            clients.seen(id, "JAVA", "5", v2::ClientType::Producer as i32, "", None);
        }
        let mut ids = Vec::new();
        clients.visit(|id, _| ids.push(id.to_owned()));
        ids.sort();
        assert_eq!(ids, ["a", "b"]);
        assert!(clients.gone("a").is_some() && clients.gone("a").is_none());
    }
}
