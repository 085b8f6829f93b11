//! What the headers of a call say: who calls, until when, and how it may be served.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mq_protocol::headers::{self, HeaderError, ProducerNumbers};
use mq_protocol::{names, v2};
use tonic::metadata::MetadataMap;

use crate::produce::admit;
use crate::refusal::Refusal;

/// A call without a deadline of its own gets the official clients' one.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(3);
/// No call runs longer, whatever its header says.
const LONGEST_DEADLINE: Duration = Duration::from_secs(120);

/// The listener that a connection came in on; put into the request's extensions by the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Clients.
    Client,
    /// Nodes and administrators: only here a call can be a forwarded one.
    Api,
}

/// Where a connection came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// The other side's address.
    pub address: SocketAddr,
    /// Our listener.
    pub port: Port,
}

/// Client implementations that need answers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Understands a customized back-off list only.
    Python,
    /// Its crate 5.0.0 panics on codes that it does not know.
    Rust500,
    /// Everything else.
    Other,
}

/// The headers of one call, parsed once.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// `x-mq-client-id`; may be blank (then [`CallContext::admit`] refuses).
    pub client_id: String,
    /// `x-mq-language` as sent.
    pub language_text: String,
    /// `x-mq-client-version` as sent.
    pub version: String,
    /// Which special rules hold for the client.
    pub language: Language,
    /// The caller waits until here.
    pub deadline: Instant,
    /// True when the caller named a deadline.
    pub has_deadline: bool,
    /// Node that forwarded the call.
    pub forwarded: Option<String>,
    /// The caller goes to leaders itself: refuse instead of forwarding.
    pub no_forward: bool,
    /// Numbers of a native producer (P14).
    pub producer: Option<ProducerNumbers>,
    /// The other side of the connection.
    pub peer: Option<SocketAddr>,
}

impl CallContext {
    /// Reads the headers of a request.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Self, Refusal> {
        let peer = request.extensions().get::<Peer>().copied();
        let port = peer.map_or(Port::Client, |peer| peer.port);
        Self::parse(request.metadata(), port, peer.map(|peer| peer.address))
    }

    fn parse(metadata: &MetadataMap, port: Port, peer: Option<SocketAddr>) -> Result<Self, Refusal> {
        let text =
            |name: &str| metadata.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        let language_text = text(headers::LANGUAGE);
        let version = text(headers::CLIENT_VERSION);
        let language = match language_text.as_str() {
            "PYTHON" => Language::Python,
            "RUST" if version == "5.0.0" => Language::Rust500,
            _ => Language::Other,
        };
        let timeout =
            match metadata.get("grpc-timeout") {
                None => None,
                Some(value) => Some(value.to_str().ok().and_then(parse_timeout).ok_or_else(|| {
                    Refusal::BadRequest("grpc-timeout is not 1 to 8 digits and a unit".into())
                })?),
            };
        let now = Instant::now();
        let deadline = now + timeout.unwrap_or(DEFAULT_DEADLINE).min(LONGEST_DEADLINE);
        let producer = match text(headers::PRODUCER) {
            empty if empty.is_empty() => None,
            numbers => {
                Some(numbers.parse().map_err(|error: HeaderError| Refusal::BadRequest(error.to_string()))?)
            }
        };
        let forwarded = match port {
            Port::Api => Some(text(headers::FORWARDED)).filter(|node| !node.is_empty()),
            Port::Client => None,
        };
        let no_forward = text(headers::NO_FORWARD) == "1";
        let client_id = text(headers::CLIENT_ID);
        let has_deadline = timeout.is_some();
        Ok(Self {
            client_id,
            language_text,
            version,
            language,
            deadline,
            has_deadline,
            forwarded,
            no_forward,
            producer,
            peer,
        })
    }

    /// Refuses calls without a client id and calls whose time is over.
    pub fn admit(&self) -> Result<(), Refusal> {
        names::client_id(&self.client_id)?;
        if self.deadline <= Instant::now() {
            return Err(Refusal::Expired);
        }
        Ok(())
    }

    /// When the answer has to be ready, so that it reaches the caller before its deadline.
    pub fn answer_by(&self) -> Instant {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.deadline - (left / 10).min(Duration::from_millis(150))
    }

    /// True when this node must answer itself, whoever leads.
    pub fn stays_here(&self) -> bool {
        self.no_forward || self.forwarded.is_some()
    }
}

/// `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3_600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

/// `namespace%name`, as logs and metrics show it.
pub fn resource_text(resource: Option<&v2::Resource>) -> String {
    resource.map_or_else(String::new, |resource| {
        names::resource_key(&resource.resource_namespace, &resource.name)
    })
}

/// The same of the subscription group that a client says it belongs to; empty when it names none.
pub fn own_group(group: Option<&v2::Resource>) -> Result<String, Refusal> {
    let Some(group) = group.filter(|group| !group.name.is_empty()) else { return Ok(String::new()) };
    admit::group_name(group)?;
    Ok(resource_text(Some(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&'static str, &str)]) -> MetadataMap {
        let mut map = MetadataMap::new();
        for (name, value) in pairs {
            map.insert(*name, value.parse().expect("ASCII"));
        }
        map
    }

    #[test]
    fn timeouts_of_grpc_are_read() {
        assert_eq!(parse_timeout("3000m"), Some(Duration::from_secs(3)));
        assert_eq!(parse_timeout("0n"), Some(Duration::ZERO));
        assert_eq!(parse_timeout("2H"), Some(Duration::from_secs(7_200)));
        for bad in ["", "m", "123456789m", "1.5S", "10", "5é"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_client_cannot_pretend_to_be_a_node() {
        let map = metadata(&[("x-mq-forwarded", "b2"), ("x-mq-client-id", "c")]);
        let of = |port| CallContext::parse(&map, port, None).expect("valid headers");
        assert_eq!(of(Port::Client).forwarded, None);
        assert_eq!(of(Port::Api).forwarded.as_deref(), Some("b2"));
    }

    #[test]
    fn a_clients_group_is_none_or_a_valid_one() {
        let of = |namespace: &str, name: &str| {
            own_group(Some(&v2::Resource { resource_namespace: namespace.into(), name: name.into() }))
        };
        assert_eq!(own_group(None), Ok(String::new()));
        assert_eq!(
            of(&"n".repeat(1_000), ""),
            Ok(String::new()),
            "nothing is kept of a group without a name"
        );
        assert_eq!(of("", "g"), Ok("g".to_owned()));
        assert!(of("", "a b").is_err() && of("", &"g".repeat(1_000)).is_err() && of("a b", "g").is_err());
    }

    #[test]
    fn missing_client_id_and_expired_deadline_are_refused() {
        let of =
            |pairs: &[_]| CallContext::parse(&metadata(pairs), Port::Client, None).expect("valid headers");
        assert!(matches!(of(&[]).admit(), Err(Refusal::Invalid(_))));
        assert!(matches!(of(&[("x-mq-client-id", " ")]).admit(), Err(Refusal::Invalid(_))));
        let expired = of(&[("x-mq-client-id", "c"), ("grpc-timeout", "0n")]);
        assert!(matches!(expired.admit(), Err(Refusal::Expired)));
        assert!(of(&[("x-mq-client-id", "c")]).admit().is_ok());
    }
}
