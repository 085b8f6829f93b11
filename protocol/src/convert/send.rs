//! A message of the protocol becomes a record.

use std::net::SocketAddr;

use crate::convert::{duration, timestamp_ms};
use crate::message::properties::{PropertiesBuilder, name};
use crate::message::record::{FLAG_COMPRESSED, FLAG_TRANSACTION_PREPARED, RecordBuilder};
use crate::message::tag::tag_hash;
use crate::message::trailer::Trailer;
use crate::names::resource_key;
use crate::{FormatError, v2};

/// What the server knows about a send beside the message.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Queue that the message goes to.
    pub queue_id: u32,
    /// Wall clock, ms: born timestamp of a message that names none.
    pub received_ms: u64,
    /// Other end of the connection.
    pub peer: SocketAddr,
    /// This node.
    pub store_host: SocketAddr,
}

/// Body of a message item, in two parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedMessage {
    /// The record.
    pub record: Vec<u8>,
    /// The trailer.
    pub trailer: Vec<u8>,
    /// Flags of the item.
    pub flags: u8,
    /// Tag hash of the unit.
    pub tag_hash: i64,
}

impl EncodedMessage {
    /// Both parts, as they lie in the item.
    #[must_use]
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.record, &self.trailer]
    }
}

/// Type that a message's content says; the type it names counts for transactions only, as in RocketMQ.
#[must_use]
pub fn content_type(message: &v2::Message) -> v2::MessageType {
    let Some(system) = &message.system_properties else {
        return v2::MessageType::Normal;
    };
    if system.message_type() == v2::MessageType::Transaction {
        v2::MessageType::Transaction
    } else if system.delivery_timestamp.is_some() {
        v2::MessageType::Delay
    } else if !system.message_group().is_empty() {
        v2::MessageType::Fifo
    } else if system.priority.is_some() {
        v2::MessageType::Priority
    } else if !system.lite_topic().is_empty() {
        v2::MessageType::Lite
    } else {
        v2::MessageType::Normal
    }
}

/// Encodes a message that [`super::check_message`] accepts, with its trailer.
pub fn encode_message(
    message: &v2::Message,
    arrival: &Arrival,
    trailer: &Trailer,
) -> Result<EncodedMessage, FormatError> {
    let tag = message.system_properties.as_ref().map(|system| system.tag()).filter(|tag| !tag.is_empty());
    Ok(EncodedMessage {
        record: encode_record(message, arrival)?,
        trailer: trailer.encode(),
        flags: trailer.flags(),
        tag_hash: tag_hash(tag),
    })
}

/// Encodes the record of a message that [`super::check_message`] accepts. Of one that it does not accept, a
/// property with a separator and too long properties are errors; nothing else is looked at.
pub fn encode_record(message: &v2::Message, arrival: &Arrival) -> Result<Vec<u8>, FormatError> {
    let none = v2::SystemProperties::default();
    let system = message.system_properties.as_ref().unwrap_or(&none);
    let topic = message.topic.as_ref();
    let topic = topic.map_or_else(String::new, |topic| resource_key(&topic.resource_namespace, &topic.name));
    let properties = properties(message, system)?;
    let mut system_flag = 0;
    if system.body_encoding() == v2::Encoding::Gzip {
        system_flag |= FLAG_COMPRESSED;
    }
    if system.message_type() == v2::MessageType::Transaction {
        system_flag |= FLAG_TRANSACTION_PREPARED;
    }
    let received = i64::try_from(arrival.received_ms).unwrap_or(i64::MAX);
    RecordBuilder {
        queue_id: arrival.queue_id,
        flag: 0,
        system_flag,
        born_timestamp: system.born_timestamp.as_ref().and_then(timestamp_ms).unwrap_or(received),
        born_host: arrival.peer,
        store_host: arrival.store_host,
        reconsume_times: 0,
        prepared_offset: 0,
        body: &message.body,
        topic: &topic,
        properties: &properties,
    }
    .encode()
}

fn properties(message: &v2::Message, system: &v2::SystemProperties) -> Result<Vec<u8>, FormatError> {
    let mut out = PropertiesBuilder::new();
    let mut text = |key: &str, value: &str| if value.is_empty() { Ok(()) } else { out.push(key, value) };
    text(name::UNIQ_KEY, &system.message_id)?;
    text(name::TAGS, system.tag())?;
    text(name::SHARDING_KEY, system.message_group())?;
    text(name::TRACE_CONTEXT, system.trace_context())?;
    text(name::BORN_HOST, &system.born_host)?;
    text(name::LITE_TOPIC, system.lite_topic())?;
    if !system.keys.is_empty() {
        out.push(name::KEYS, &system.keys.join(" "))?;
        if system.keys.iter().any(|key| key.contains(' ')) {
            let lengths: Vec<_> = system.keys.iter().map(|key| key.chars().count().to_string()).collect();
            out.push(name::KEY_LENGTHS, &lengths.join(" "))?;
        }
    }
    if let Some(ms) = system.delivery_timestamp.as_ref().and_then(timestamp_ms) {
        out.push(name::TIMER_DELIVER_MS, &ms.to_string())?;
    }
    if let Some(priority) = system.priority {
        out.push(name::PRIORITY, &priority.to_string())?;
    }
    if system.message_type() == v2::MessageType::Transaction {
        out.push(name::TRAN_MSG, "true")?;
    }
    if let Some(age) = system.orphaned_transaction_recovery_duration.as_ref().and_then(duration) {
        let seconds = age.as_secs().saturating_add(u64::from(age.subsec_nanos() > 0));
        out.push(name::CHECK_IMMUNITY_TIME, &seconds.to_string())?;
    }
    // By rising key, so that equal messages give equal records.
    let mut user: Vec<_> = message.user_properties.iter().collect();
    user.sort_unstable();
    for (key, value) in user {
        out.push(key, value)?;
    }
    Ok(out.finish())
}
