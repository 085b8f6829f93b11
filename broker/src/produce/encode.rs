//! A message becomes an item of the log, once: record, trailer, item header with its CRC.

use std::net::{Ipv4Addr, SocketAddr};

use mq_protocol::convert::{Arrival, encode_message};
use mq_protocol::headers::ProducerNumbers;
use mq_protocol::message::send_key::{SendIdentity, send_key};
use mq_protocol::message::trailer::{NativeSend, Origin, Trailer};
use mq_protocol::names::{Field, Invalid, Problem};
use mq_protocol::{FormatError, command, v2};
use mq_store::item::EncodedItem;

use super::Produce;
use crate::error::BrokerError;
use crate::refusal::{CallError, Refusal};

/// The born host of a call that came from nowhere we know.
const UNKNOWN_HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The `at`-th message of a call as an item.
pub fn item(
    call: &Produce<'_>,
    at: u64,
    message: &v2::Message,
    queue: u32,
) -> Result<EncodedItem, CallError> {
    let arrival = Arrival {
        queue_id: queue,
        received_ms: call.received_ms,
        peer: call.born_host.unwrap_or(UNKNOWN_HOST),
        store_host: call.store_host,
    };
    let trailer = Trailer {
        topic_id: call.topic.id,
        incarnation: call.topic.incarnation,
        origin: match call.producer {
            Some(numbers) => native(numbers, at),
            None => Origin::SendKey(key(call, message)),
        },
    };
    let encoded = encode_message(message, &arrival, &trailer).map_err(refused)?;
    Ok(EncodedItem::new(command::MESSAGE, encoded.flags, command::VERSION, &encoded.parts()))
}

fn native(numbers: ProducerNumbers, at: u64) -> Origin {
    Origin::Native(NativeSend {
        producer_id: numbers.producer_id,
        epoch: numbers.epoch,
        floor: numbers.floor,
        sequence: numbers.first_sequence + at,
    })
}

/// Made by the leader, so that a call means the same whichever node it came through (P15).
fn key(call: &Produce<'_>, message: &v2::Message) -> [u8; 16] {
    let message_id = message.system_properties.as_ref().map_or("", |system| &system.message_id);
    send_key(&SendIdentity {
        client_id: call.client_id,
        message_id,
        namespace: &call.topic.namespace,
        topic: &call.topic.name,
        topic_id: call.topic.id,
        incarnation: call.topic.incarnation,
        body: &message.body,
    })
}

/// What the checks on the request let pass and a record cannot hold.
fn refused(error: FormatError) -> CallError {
    match error {
        FormatError::TooLong { value, limit, .. } => {
            Refusal::Invalid(Invalid::new(Field::Properties, "", Problem::TooLong { value, limit })).into()
        }
        FormatError::Separator { key } => {
            let problem = Problem::Character { found: '\u{1}', position: 0 };
            Refusal::Invalid(Invalid::new(Field::PropertyKey, &key, problem)).into()
        }
        other => BrokerError::Internal { detail: other.to_string() }.into(),
    }
}
