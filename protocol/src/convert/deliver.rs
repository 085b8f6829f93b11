//! A record becomes a message for a consumer.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use crate::convert::timestamp;
use crate::message::digest::md5_upper_hex;
use crate::message::properties::{Properties, name};
use crate::message::record::{FLAG_COMPRESSED, Record};
use crate::{FormatError, v2};

/// What a delivery adds to the record.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Topic as the consumer names it.
    pub topic: v2::Resource,
    /// Queue that it was read from.
    pub queue_id: u32,
    /// Position in that queue.
    pub queue_offset: u64,
    /// Store time of the frame, ms.
    pub store_time_ms: u64,
    /// Name of this delivery.
    pub receipt_handle: String,
    /// Granted invisible time.
    pub invisible: Duration,
    /// 1 on the first delivery.
    pub attempt: u32,
    /// Properties that a pointer lays over the record's, encoded; empty for none.
    pub overlay: Bytes,
}

/// Makes the message. Its body shares the record's bytes; MD5 is computed over it.
pub fn deliver(record: &Bytes, delivery: Delivery) -> Result<v2::Message, FormatError> {
    let parsed = Record::parse(record)?;
    let mut properties = Properties::parse(parsed.properties)?;
    properties.overlay(Properties::parse(&delivery.overlay)?);
    let user_properties: HashMap<String, String> =
        properties.user().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let system_properties = system_properties(&parsed, &properties, &delivery);
    Ok(v2::Message {
        topic: Some(delivery.topic),
        user_properties,
        system_properties: Some(system_properties),
        body: record.slice_ref(parsed.body),
    })
}

fn system_properties(
    record: &Record<'_>,
    properties: &Properties<'_>,
    delivery: &Delivery,
) -> v2::SystemProperties {
    let text = |key: &str| properties.get(key).map(str::to_owned);
    let compressed = record.system_flag & FLAG_COMPRESSED != 0;
    let body_encoding = if compressed { v2::Encoding::Gzip } else { v2::Encoding::Identity };
    let digest = v2::Digest { r#type: v2::DigestType::Md5.into(), checksum: md5_upper_hex(record.body) };
    let seconds = properties.get(name::CHECK_IMMUNITY_TIME).and_then(|value| value.parse().ok());
    v2::SystemProperties {
        tag: text(name::TAGS),
        keys: keys(properties),
        message_id: text(name::UNIQ_KEY).unwrap_or_default(),
        body_digest: Some(digest),
        body_encoding: body_encoding.into(),
        message_type: message_type(properties).into(),
        born_timestamp: Some(timestamp(record.born_timestamp)),
        born_host: text(name::BORN_HOST).unwrap_or_else(|| record.born_host.ip().to_string()),
        store_timestamp: Some(timestamp(signed(delivery.store_time_ms))),
        store_host: record.store_host.to_string(),
        delivery_timestamp: number(properties, name::TIMER_DELIVER_MS).map(timestamp),
        receipt_handle: Some(delivery.receipt_handle.clone()),
        queue_id: i32::try_from(delivery.queue_id).unwrap_or(i32::MAX),
        queue_offset: Some(signed(delivery.queue_offset)),
        invisible_duration: Some(prost_types::Duration {
            seconds: signed(delivery.invisible.as_secs()),
            nanos: delivery.invisible.subsec_nanos().cast_signed(),
        }),
        delivery_attempt: Some(i32::try_from(delivery.attempt.max(1)).unwrap_or(i32::MAX)),
        message_group: text(name::SHARDING_KEY),
        trace_context: text(name::TRACE_CONTEXT),
        orphaned_transaction_recovery_duration: seconds
            .map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
        dead_letter_queue: text(name::DLQ_ORIGIN_TOPIC).map(|topic| v2::DeadLetterQueue {
            topic,
            message_id: text(name::DLQ_ORIGIN_MESSAGE_ID).unwrap_or_default(),
        }),
        lite_topic: text(name::LITE_TOPIC),
        priority: number(properties, name::PRIORITY).and_then(|priority| i32::try_from(priority).ok()),
    }
}

/// Same order as [`super::content_type`].
fn message_type(properties: &Properties<'_>) -> v2::MessageType {
    let has = |key| properties.get(key).is_some();
    if properties.get(name::TRAN_MSG) == Some("true") {
        v2::MessageType::Transaction
    } else if has(name::TIMER_DELIVER_MS) {
        v2::MessageType::Delay
    } else if has(name::SHARDING_KEY) {
        v2::MessageType::Fifo
    } else if has(name::PRIORITY) {
        v2::MessageType::Priority
    } else if has(name::LITE_TOPIC) {
        v2::MessageType::Lite
    } else {
        v2::MessageType::Normal
    }
}

fn keys(properties: &Properties<'_>) -> Vec<String> {
    let Some(joined) = properties.get(name::KEYS) else {
        return Vec::new();
    };
    let by_length = properties.get(name::KEY_LENGTHS).and_then(|lengths| split_by_length(joined, lengths));
    by_length.unwrap_or_else(|| joined.split(' ').map(str::to_owned).collect())
}

/// None if the lengths do not describe the text.
fn split_by_length(joined: &str, lengths: &str) -> Option<Vec<String>> {
    let mut rest = joined.chars();
    let mut keys = Vec::new();
    for length in lengths.split(' ') {
        if !keys.is_empty() && rest.next() != Some(' ') {
            return None;
        }
        let length: usize = length.parse().ok()?;
        let key: String = rest.by_ref().take(length).collect();
        if key.chars().count() != length {
            return None;
        }
        keys.push(key);
    }
    rest.next().is_none().then_some(keys)
}

fn number(properties: &Properties<'_>, key: &str) -> Option<i64> {
    properties.get(key)?.parse().ok()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
