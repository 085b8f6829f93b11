//! What a message must be like to be sent.

use crate::convert::timestamp_ms;
use crate::message::BODY_LIMIT;
use crate::names::{self, Field, Invalid, Problem};
use crate::v2;

/// Sizes that a broker allows; settings of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Longest body, bytes.
    pub body_bytes: usize,
    /// User properties, tag and keys together, bytes.
    pub properties_bytes: usize,
    /// Number of user properties.
    pub properties: usize,
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self { body_bytes: BODY_LIMIT, properties_bytes: 16 * 1024, properties: 128 }
    }
}

/// Checks everything of a message that needs no knowledge of its topic, in the order in which RocketMQ does.
/// Delivery time against now, and the type against the topic's, are the caller's.
pub fn check_message(message: &v2::Message, limits: &MessageLimits) -> Result<(), Invalid> {
    let topic = message.topic.as_ref();
    names::namespace(topic.map_or("", |topic| &topic.resource_namespace))?;
    names::topic(topic.map_or("", |topic| &topic.name))?;
    check_body(message.body.len(), limits.body_bytes)?;
    check_sizes(message, limits)?;
    let none = v2::SystemProperties::default();
    let system = message.system_properties.as_ref().unwrap_or(&none);
    names::message_id(&system.message_id)?;
    names::tag(system.tag())?;
    system.keys.iter().try_for_each(|key| names::key(key))?;
    names::message_group(system.message_group())?;
    message.user_properties.iter().try_for_each(|(key, value)| names::property(key, value))?;
    names::no_control_character(Field::TraceContext, system.trace_context())?;
    names::no_control_character(Field::BornHost, &system.born_host)?;
    names::optional_text(Field::LiteTopic, system.lite_topic(), usize::MAX)?;
    if let Some(priority) = system.priority.filter(|priority| *priority < 0) {
        return Err(Invalid::new(Field::Priority, &priority.to_string(), Problem::OutOfRange));
    }
    match &system.delivery_timestamp {
        Some(time) if timestamp_ms(time).is_none() => {
            Err(Invalid::new(Field::DeliveryTime, &time.seconds.to_string(), Problem::OutOfRange))
        }
        _ => Ok(()),
    }
}

fn check_body(value: usize, limit: usize) -> Result<(), Invalid> {
    if value == 0 {
        return Err(Invalid::new(Field::Body, "", Problem::Blank));
    }
    if value > limit {
        return Err(Invalid::new(Field::Body, "", Problem::TooLong { value, limit }));
    }
    Ok(())
}

fn check_sizes(message: &v2::Message, limits: &MessageLimits) -> Result<(), Invalid> {
    let value = message.user_properties.len();
    if value > limits.properties {
        let problem = Problem::TooMany { value, limit: limits.properties };
        return Err(Invalid::new(Field::Properties, "", problem));
    }
    let user: usize = message.user_properties.iter().map(|(key, value)| key.len() + value.len()).sum();
    let system = message
        .system_properties
        .as_ref()
        .map_or(0, |system| system.tag().len() + system.keys.iter().map(String::len).sum::<usize>());
    let value = user + system;
    if value > limits.properties_bytes {
        let problem = Problem::TooLong { value, limit: limits.properties_bytes };
        return Err(Invalid::new(Field::Properties, "", problem));
    }
    Ok(())
}
