//! Metadata keys of calls, and the values of ours.

use std::fmt;
use std::str::FromStr;

/// Identity of a client instance.
pub const CLIENT_ID: &str = "x-mq-client-id";
/// Language of a client.
pub const LANGUAGE: &str = "x-mq-language";
/// Version of a client.
pub const CLIENT_VERSION: &str = "x-mq-client-version";
/// Protocol of a client.
pub const PROTOCOL: &str = "x-mq-protocol";
/// Namespace of a client; the one in each resource counts.
pub const NAMESPACE: &str = "x-mq-namespace";
/// Time text that a signature covers.
pub const DATE_TIME: &str = "x-mq-date-time";
/// Id of a call.
pub const REQUEST_ID: &str = "x-mq-request-id";
/// Token of a temporary identity.
pub const SESSION_TOKEN: &str = "x-mq-session-token";
/// Signature of a call.
pub const AUTHORIZATION: &str = "authorization";

/// Set on a call that a node has passed on; its value is that node. Such a call is never passed on again.
pub const FORWARDED: &str = "x-mq-forwarded";
/// `1`: a node that is not the leader answers 50002 with [`LEADER`] instead of passing the call on.
pub const NO_FORWARD: &str = "x-mq-no-forward";
/// Leader of the broker group: [`LeaderHint`].
pub const LEADER: &str = "x-mq-leader";
/// Numbers of a native producer's send: [`ProducerNumbers`].
pub const PRODUCER: &str = "x-mq-producer";
/// Why a send is *unknown*: [`REASON_BELOW_FLOOR`], [`REASON_OLDER_EPOCH`].
pub const REASON: &str = "x-mq-reason";
/// The sequence lies below the floor: its result is no longer kept.
pub const REASON_BELOW_FLOOR: &str = "below-floor";
/// A higher epoch of the same producer exists.
pub const REASON_OLDER_EPOCH: &str = "older-epoch";

/// A header of ours that does not have its form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{header}: `{value}` is not {expected}")]
pub struct HeaderError {
    /// Its key.
    pub header: &'static str,
    /// Its value, shortened.
    pub value: String,
    /// Its form.
    pub expected: &'static str,
}

impl HeaderError {
    fn new(header: &'static str, value: &str, expected: &'static str) -> Self {
        Self { header, value: value.chars().take(64).flat_map(char::escape_debug).collect(), expected }
    }
}

/// Value of [`PRODUCER`]: numbers of the first message of a send; the others follow by one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerNumbers {
    /// Random, not 0.
    pub producer_id: u64,
    /// A higher one ends the lower ones.
    pub epoch: u32,
    /// Lowest sequence that is still outstanding.
    pub floor: u64,
    /// Sequence of the first message, not below the floor.
    pub first_sequence: u64,
}

impl fmt::Display for ProducerNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{}", self.producer_id, self.epoch, self.floor, self.first_sequence)
    }
}

impl FromStr for ProducerNumbers {
    type Err = HeaderError;

    /// Accepts a sequence below the floor: what that means is the server's answer, not the header's form.
    fn from_str(value: &str) -> Result<Self, HeaderError> {
        let error = || HeaderError::new(PRODUCER, value, "id,epoch,floor,first-sequence with id not 0");
        let parts: Vec<&str> = value.split(',').map(str::trim).collect();
        let [producer_id, epoch, floor, first_sequence] = parts[..] else {
            return Err(error());
        };
        let numbers = Self {
            producer_id: producer_id.parse().map_err(|_| error())?,
            epoch: epoch.parse().map_err(|_| error())?,
            floor: floor.parse().map_err(|_| error())?,
            first_sequence: first_sequence.parse().map_err(|_| error())?,
        };
        if numbers.producer_id == 0 { Err(error()) } else { Ok(numbers) }
    }
}

/// Value of [`LEADER`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderHint {
    /// Node id within the group.
    pub id: u64,
    /// Term it leads.
    pub term: u64,
    /// Where clients reach it, host:port.
    pub address: String,
}

impl fmt::Display for LeaderHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.id, self.term, self.address)
    }
}

impl FromStr for LeaderHint {
    type Err = HeaderError;

    fn from_str(value: &str) -> Result<Self, HeaderError> {
        let error = || HeaderError::new(LEADER, value, "id,term,host:port");
        let mut parts = value.splitn(3, ',').map(str::trim);
        let (Some(id), Some(term), Some(address)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(error());
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(error)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(error());
        }
        Ok(Self {
            id: id.parse().map_err(|_| error())?,
            term: term.parse().map_err(|_| error())?,
            address: address.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_values_are_refused() {
        for value in ["", "1,2,3", "1,2,3,4,5", "0,1,1,1", "1,-1,1,1", "x,1,1,1", "1,4294967296,1,1"] {
            assert!(value.parse::<ProducerNumbers>().is_err(), "{value}");
        }
        for value in ["", "1,2", "1,2,host", "1,2,:1", "1,2,host:x", "1,2,host:70000", "a,2,host:1"] {
            assert!(value.parse::<LeaderHint>().is_err(), "{value}");
        }
    }

    #[test]
    fn values_have_the_documented_form() {
        let numbers = ProducerNumbers { producer_id: 9, epoch: 1, floor: 5, first_sequence: 7 };
        assert_eq!(numbers.to_string(), "9,1,5,7");
        let hint = LeaderHint { id: 2, term: 11, address: "[::1]:8081".to_owned() };
        assert_eq!(hint.to_string(), "2,11,[::1]:8081");
        assert_eq!("2,11,[::1]:8081".parse(), Ok(hint));
    }

    proptest! {
        #[test]
        fn numbers_round_trip(producer_id in 1..=u64::MAX, epoch in any::<u32>(), floor in any::<u64>(), first_sequence in any::<u64>()) {
            let numbers = ProducerNumbers { producer_id, epoch, floor, first_sequence };
            prop_assert_eq!(numbers.to_string().parse(), Ok(numbers));
        }

        #[test]
        fn any_text_gets_an_answer(value in any::<String>()) {
            let _ = value.parse::<ProducerNumbers>();
            let _ = value.parse::<LeaderHint>();
        }
    }
}
