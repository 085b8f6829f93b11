//! Who this client is: its id, the headers of every call, and the ids of its messages.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mq_protocol::headers;
use mq_protocol::message::id::{CLIENT_ID_EPOCH_S, client_message_id};
use mq_runtime::clock::{Clock, SystemClock};
use mq_runtime::random;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

/// Fixed for the life of a client.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) client_id: String,
    pub(crate) host: String,
    headers: MetadataMap,
    ids: MessageIds,
    clock: SystemClock,
}

impl Identity {
    pub(crate) fn new(client_id: Option<String>) -> Self {
        let host = host_name();
        let client_id =
            client_id.unwrap_or_else(|| format!("{host}@{}@{:016x}", std::process::id(), random::u64()));
        let mut map = MetadataMap::new();
        put(&mut map, headers::CLIENT_ID, &client_id);
        put(&mut map, headers::LANGUAGE, "RUST");
        put(&mut map, headers::CLIENT_VERSION, concat!("raftmq-", env!("CARGO_PKG_VERSION")));
        put(&mut map, headers::PROTOCOL, "v2");
        Self { client_id, host, headers: map, ids: MessageIds::new(), clock: SystemClock::new() }
    }

    /// A request with the headers that every call carries, and the time that is left for it.
    pub(crate) fn request<T>(&self, body: T, timeout: Duration) -> tonic::Request<T> {
        let mut request = tonic::Request::new(body);
        *request.metadata_mut() = self.headers.clone();
        request.set_timeout(timeout);
        request
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    pub(crate) fn message_id(&self) -> String {
        self.ids.next(self.now_ms())
    }
}

pub(crate) fn put(map: &mut MetadataMap, key: &'static str, value: &str) {
    // A value that is no header text (a client id with a line feed) is left out: the server then says so.
    if let Ok(value) = AsciiMetadataValue::try_from(value) {
        map.insert(key, value);
    }
}

fn host_name() -> String {
    let name = std::env::var("HOSTNAME").unwrap_or_default();
    let known = !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic());
    if known { name } else { "localhost".to_owned() }
}

/// Ids of the messages of one client. The part for the machine is random: containers share their MAC addresses
/// and process numbers.
#[derive(Debug)]
struct MessageIds {
    machine: [u8; 6],
    sequence: AtomicU32,
}

impl MessageIds {
    fn new() -> Self {
        let [a, b, c, d, e, f, ..] = random::u64().to_le_bytes();
        Self { machine: [a, b, c, d, e, f], sequence: AtomicU32::new(0) }
    }

    fn next(&self, now_ms: u64) -> String {
        let seconds = (now_ms / 1000).saturating_sub(CLIENT_ID_EPOCH_S);
        // The id has 32 bits for the seconds and 16 for the process: the rest is cut off on purpose.
        let (seconds, process) = (seconds & 0xFFFF_FFFF, std::process::id() & 0xFFFF);
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (seconds, process) =
            (u32::try_from(seconds).unwrap_or_default(), u16::try_from(process).unwrap_or_default());
        client_message_id(self.machine, process, seconds, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_have_34_upper_hex_digits_and_differ() {
        let ids = MessageIds::new();
        let first = ids.next((CLIENT_ID_EPOCH_S + 1) * 1000);
        let second = ids.next((CLIENT_ID_EPOCH_S + 1) * 1000);
        assert_eq!(first.len(), 34);
        assert!(first.starts_with("01"));
        assert!(first.chars().all(|c| c.is_ascii_digit() || ('A'..='F').contains(&c)), "{first}");
        assert_eq!(&first[18..], "0000000100000000");
        assert_eq!(&second[18..], "0000000100000001");
    }

    #[test]
    fn every_call_names_the_client() {
        let identity = Identity::new(Some("me".to_owned()));
        let request = identity.request((), Duration::from_secs(1));
        assert_eq!(request.metadata().get(headers::CLIENT_ID).expect("set"), "me");
        assert!(request.metadata().contains_key("grpc-timeout"));
    }
}
