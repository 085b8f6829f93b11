//! A message to send, a message received, and what is checked before a server is asked.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use mq_protocol::names::{self, Field, Invalid, Problem};
use mq_protocol::v2;

use crate::error::InvalidMessage;

/// Longest body in bytes.
pub const BODY_BYTES_MAX: usize = mq_protocol::message::BODY_LIMIT;
/// Greatest total length of properties, tag and keys in bytes.
pub const PROPERTY_BYTES_MAX: usize = 16 * 1024;
/// Greatest number of properties.
pub const PROPERTIES_MAX: usize = 128;

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub(crate) namespace: String,
    pub(crate) topic: String,
    pub(crate) body: Bytes,
    pub(crate) tag: Option<String>,
    pub(crate) keys: Vec<String>,
    pub(crate) properties: BTreeMap<String, String>,
}

impl Message {
    /// A message with a body for a topic.
    pub fn new(topic: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            namespace: String::new(),
            topic: topic.into(),
            body: body.into(),
            tag: None,
            keys: Vec::new(),
            properties: BTreeMap::new(),
        }
    }

    /// Puts the topic into a namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the tag, by which consumers filter.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Adds a key, by which the message can be looked up.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Sets a property.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Everything that a server would refuse for the message's own sake.
    pub(crate) fn check(&self) -> Result<(), InvalidMessage> {
        names::namespace(&self.namespace)?;
        names::topic(&self.topic)?;
        if self.body.is_empty() {
            return Err(InvalidMessage::BodyEmpty);
        }
        if self.body.len() > BODY_BYTES_MAX {
            return Err(InvalidMessage::BodyTooLarge { size: self.body.len(), limit: BODY_BYTES_MAX });
        }
        let problem = |problem| Invalid::new(Field::Properties, "", problem);
        let (count, size) = (self.properties.len(), self.property_bytes());
        if count > PROPERTIES_MAX {
            return Err(problem(Problem::TooMany { value: count, limit: PROPERTIES_MAX }).into());
        }
        if size > PROPERTY_BYTES_MAX {
            return Err(problem(Problem::TooLong { value: size, limit: PROPERTY_BYTES_MAX }).into());
        }
        self.tag.iter().try_for_each(|tag| names::tag(tag))?;
        self.keys.iter().try_for_each(|key| names::key(key))?;
        self.properties.iter().try_for_each(|(name, value)| names::property(name, value))?;
        Ok(())
    }

    fn property_bytes(&self) -> usize {
        self.properties.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            + self.tag.as_ref().map_or(0, String::len)
            + self.keys.iter().map(String::len).sum::<usize>()
    }

    /// About how many bytes it takes in a request.
    pub(crate) fn wire_bytes(&self) -> usize {
        self.body.len() + self.property_bytes() + self.topic.len() + 128
    }

    pub(crate) fn into_wire(
        self,
        queue_id: i32,
        message_id: String,
        born_host: &str,
        born_ms: u64,
    ) -> v2::Message {
        v2::Message {
            topic: Some(v2::Resource { resource_namespace: self.namespace, name: self.topic }),
            user_properties: self.properties.into_iter().collect(),
            system_properties: Some(v2::SystemProperties {
                tag: self.tag,
                keys: self.keys,
                message_id,
                queue_id,
                body_encoding: v2::Encoding::Identity.into(),
                message_type: v2::MessageType::Normal.into(),
                born_timestamp: Some(timestamp(born_ms)),
                born_host: born_host.to_owned(),
                ..Default::default()
            }),
            body: self.body,
        }
    }
}

fn timestamp(ms: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(ms % 1000 * 1_000_000).unwrap_or(0),
    }
}

/// What a consumer wants of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterExpression {
    pub(crate) kind: v2::FilterType,
    pub(crate) expression: String,
}

impl FilterExpression {
    /// Every message.
    #[must_use]
    pub fn all() -> Self {
        Self::tag("*")
    }

    /// Messages with one of the tags, joined by `||`; `*` = all.
    pub fn tag(expression: impl Into<String>) -> Self {
        Self { kind: v2::FilterType::Tag, expression: expression.into() }
    }

    /// Messages whose properties satisfy an SQL92 condition.
    pub fn sql(expression: impl Into<String>) -> Self {
        Self { kind: v2::FilterType::Sql, expression: expression.into() }
    }
}

/// A delivered message, with the handle that settles this delivery.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageView {
    message: v2::Message,
    broker_group: String,
}

impl MessageView {
    pub(crate) fn new(message: v2::Message, broker_group: &str) -> Self {
        Self { message, broker_group: broker_group.to_owned() }
    }

    fn system(&self) -> Option<&v2::SystemProperties> {
        self.message.system_properties.as_ref()
    }

    pub(crate) fn resource(&self) -> Option<&v2::Resource> {
        self.message.topic.as_ref()
    }

    /// The broker group that holds it.
    #[must_use]
    pub fn broker_group(&self) -> &str {
        &self.broker_group
    }

    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.resource().map_or("", |topic| &topic.name)
    }

    /// Its body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.message.body
    }

    /// Its id, as its sender made it.
    #[must_use]
    pub fn message_id(&self) -> &str {
        self.system().map_or("", |system| &system.message_id)
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.system().and_then(|system| system.tag.as_deref())
    }

    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        self.system().map_or(&[], |system| &system.keys)
    }

    /// Value of one of its properties.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        self.message.user_properties.get(name).map(String::as_str)
    }

    /// Its properties, in no particular order.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        self.message.user_properties.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Number of its queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.system().map_or(0, |system| u32::try_from(system.queue_id).unwrap_or(0))
    }

    /// Its offset in the queue.
    #[must_use]
    pub fn queue_offset(&self) -> u64 {
        self.system()
            .and_then(|system| system.queue_offset)
            .map_or(0, |offset| u64::try_from(offset).unwrap_or(0))
    }

    /// Which delivery this is, counted from 1.
    #[must_use]
    pub fn delivery_attempt(&self) -> u32 {
        self.system()
            .and_then(|system| system.delivery_attempt)
            .map_or(0, |attempt| u32::try_from(attempt).unwrap_or(0))
    }

    /// How long nobody else gets it, counted from the delivery.
    #[must_use]
    pub fn invisible_duration(&self) -> Option<Duration> {
        let duration = self.system()?.invisible_duration.as_ref()?;
        Some(Duration::new(u64::try_from(duration.seconds).ok()?, u32::try_from(duration.nanos).ok()?))
    }

    /// When it was stored, by the clock of the node that led its broker group.
    #[must_use]
    pub fn store_time(&self) -> Option<SystemTime> {
        let stamp = self.system()?.store_timestamp.as_ref()?;
        let after = Duration::new(u64::try_from(stamp.seconds).ok()?, u32::try_from(stamp.nanos).ok()?);
        UNIX_EPOCH.checked_add(after)
    }

    /// The opaque handle of this delivery.
    #[must_use]
    pub fn receipt_handle(&self) -> &str {
        self.system().and_then(|system| system.receipt_handle.as_deref()).unwrap_or("")
    }

    pub(crate) fn with_receipt_handle(&self, handle: String) -> Self {
        let mut changed = self.clone();
        if let Some(system) = changed.message.system_properties.as_mut() {
            system.receipt_handle = Some(handle);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("demo", "body")
    }

    #[test]
    fn a_plain_message_passes() {
        assert_eq!(message().tag("a").key("k1").property("color", "blue").check(), Ok(()));
    }

    #[test]
    fn bodies_are_checked_at_both_ends() {
        assert_eq!(Message::new("demo", "").check(), Err(InvalidMessage::BodyEmpty));
        assert_eq!(Message::new("demo", vec![0; BODY_BYTES_MAX]).check(), Ok(()));
        assert_eq!(
            Message::new("demo", vec![0; BODY_BYTES_MAX + 1]).check(),
            Err(InvalidMessage::BodyTooLarge { size: BODY_BYTES_MAX + 1, limit: BODY_BYTES_MAX })
        );
    }

    fn refused(message: &Message) -> Field {
        match message.check() {
            Err(InvalidMessage::Text(invalid)) => invalid.field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_and_values_are_checked() {
        assert_eq!(refused(&Message::new("de mo", "x")), Field::Topic);
        assert_eq!(refused(&message().namespace("a%b")), Field::Namespace);
        assert_eq!(refused(&message().tag("a|b")), Field::Tag);
        assert_eq!(refused(&message().tag("  ")), Field::Tag);
        assert_eq!(refused(&message().key("a\nb")), Field::Key);
        assert_eq!(refused(&message().property("TAGS", "x")), Field::PropertyKey);
        assert_eq!(refused(&message().property("p", "a\nb")), Field::PropertyValue);
        assert_eq!(refused(&message().property("p", "v".repeat(PROPERTY_BYTES_MAX))), Field::Properties);
        let many = (0..=PROPERTIES_MAX).fold(message(), |message, i| message.property(format!("p{i}"), "v"));
        assert_eq!(refused(&many), Field::Properties);
    }

    #[test]
    fn the_wire_form_keeps_everything() {
        let wire = message().tag("a").key("k").property("p", "v").into_wire(3, "01AA".into(), "host", 1_500);
        let system = wire.system_properties.expect("always set");
        assert_eq!((system.tag.as_deref(), system.keys), (Some("a"), vec!["k".to_owned()]));
        assert_eq!(system.born_timestamp.expect("always set"), timestamp(1_500));
        assert_eq!(system.queue_id, 3);
        assert_eq!(system.message_type, i32::from(v2::MessageType::Normal));
        assert_eq!(wire.user_properties.get("p").map(String::as_str), Some("v"));
        assert_eq!(wire.body.as_ref(), b"body");
    }
}
