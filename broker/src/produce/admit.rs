//! Is a send right in itself? What needs no state: the rules of [`mq_protocol::convert::check_message`] for each
//! message, one topic for all of them, and the message's type against the topic's.

use mq_protocol::convert::{MessageLimits, check_message, content_type};
use mq_protocol::names::{self, DEAD_LETTER_PREFIX, Field, Invalid, Problem, RETRY_PREFIX};
use mq_protocol::v2;

use crate::config::Limits;
use crate::refusal::Refusal;

/// Checks a send request and returns the topic that all its messages name.
pub fn request<'a>(
    request: &'a v2::SendMessageRequest,
    limits: &Limits,
) -> Result<&'a v2::Resource, Refusal> {
    let first = request.messages.first().ok_or(Refusal::Batch("the request holds no message"))?;
    if request.messages.iter().any(|message| message.topic != first.topic) {
        return Err(Refusal::Batch("the messages of one request must have one topic"));
    }
    let topic = present(first.topic.as_ref(), Field::Topic)?;
    topic_to_send_to(topic)?;
    let limits = MessageLimits {
        body_bytes: limits.body_bytes_max as usize,
        properties_bytes: limits.properties_bytes_max as usize,
        properties: limits.properties_count_max as usize,
    };
    request.messages.iter().try_for_each(|message| check_message(message, &limits))?;
    Ok(topic)
}

/// A resource that a request must name.
pub fn present(resource: Option<&v2::Resource>, field: Field) -> Result<&v2::Resource, Refusal> {
    resource.ok_or_else(|| Invalid::new(field, "", Problem::Blank).into())
}

/// The rules for a topic that clients send to: no reserved one, no retry or dead letter topic.
pub fn topic_to_send_to(topic: &v2::Resource) -> Result<(), Refusal> {
    topic_name(topic)?;
    if topic.name.starts_with(RETRY_PREFIX) || topic.name.starts_with(DEAD_LETTER_PREFIX) {
        return Err(Invalid::new(Field::Topic, &topic.name, Problem::Reserved).into());
    }
    Ok(())
}

/// The rules for any topic that a client names.
pub fn topic_name(topic: &v2::Resource) -> Result<(), Refusal> {
    names::topic(&topic.name)?;
    Ok(names::namespace(&topic.resource_namespace)?)
}

/// The rules for a subscription group.
pub fn group_name(group: &v2::Resource) -> Result<(), Refusal> {
    names::group(&group.name)?;
    let as_group = |error: Invalid| Invalid { field: Field::Group, ..error };
    Ok(names::namespace(&group.resource_namespace).map_err(as_group)?)
}

/// The message's type as its content says, refused when its declared type says something else.
fn message_type(message: &v2::Message) -> Result<v2::MessageType, &'static str> {
    use v2::MessageType as T;
    let Some(system) = &message.system_properties else { return Ok(T::Normal) };
    if !system.message_group().is_empty() && system.delivery_timestamp.is_some() {
        return Err("both FIFO and DELAY (message group and delivery time)");
    }
    let content = content_type(message);
    match system.message_type() {
        T::Fifo if content != T::Fifo => Err("FIFO without a message group"),
        T::Delay if content != T::Delay => Err("DELAY without a delivery time"),
        T::Priority if content != T::Priority => Err("PRIORITY without a priority"),
        T::Lite if content != T::Lite => Err("LITE without a lite topic"),
        _ => Ok(content),
    }
}

/// Does the topic take messages of this type? `topic_type` is the number that the topic has in the state.
pub fn fits(topic: &str, topic_type: u32, message: &v2::Message) -> Result<(), Refusal> {
    use v2::MessageType as T;
    let allowed = topic_message_type(topic_type);
    let conflict = |sent: &str| Refusal::TypeConflict {
        topic: topic.to_owned(),
        allowed: allowed.as_str_name().to_owned(),
        sent: sent.to_owned(),
    };
    let sent = message_type(message).map_err(conflict)?;
    if sent != allowed {
        return Err(conflict(sent.as_str_name()));
    }
    match sent {
        T::Normal => Ok(()),
        other => Err(Refusal::NotOffered(format!("sending {} messages", other.as_str_name()))),
    }
}

/// A topic without a type is a NORMAL topic.
pub fn topic_message_type(number: u32) -> v2::MessageType {
    match i32::try_from(number).ok().and_then(|number| v2::MessageType::try_from(number).ok()) {
        None | Some(v2::MessageType::Unspecified) => v2::MessageType::Normal,
        Some(known) => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> v2::Message {
        v2::Message {
            topic: Some(v2::Resource { resource_namespace: String::new(), name: "t".into() }),
            system_properties: Some(v2::SystemProperties { message_id: "01AB".into(), ..Default::default() }),
            body: "x".into(),
            ..v2::Message::default()
        }
    }

    fn system(message: &mut v2::Message) -> &mut v2::SystemProperties {
        message.system_properties.get_or_insert_default()
    }

    #[test]
    fn clients_send_to_ordinary_topics_only() {
        for name in
            ["../../x", "a b", "a.b", "", "TBW102", "rmq_sys_x", "%DLQ%g", "%RETRY%g", &"t".repeat(128)]
        {
            let mut message = valid();
            message.topic = Some(v2::Resource { name: name.into(), ..Default::default() });
            let sent = v2::SendMessageRequest { messages: vec![message] };
            let result = request(&sent, &Limits::default());
            assert!(matches!(result, Err(Refusal::Invalid(Invalid { field: Field::Topic, .. }))), "{name:?}");
        }
    }

    #[test]
    fn a_request_has_messages_of_one_topic() {
        let limits = Limits::default();
        let of = |messages| request(&v2::SendMessageRequest { messages }, &limits).map(|_| ());
        assert!(matches!(of(vec![]), Err(Refusal::Batch(_))));
        let mut other = valid();
        other.topic = Some(v2::Resource { name: "u".into(), ..Default::default() });
        assert!(matches!(of(vec![valid(), other]), Err(Refusal::Batch(_))));
        assert_eq!(of(vec![valid(), valid(), valid()]), Ok(()));
    }

    #[test]
    fn settings_limit_the_body() {
        let limits = Limits { body_bytes_max: 3, ..Limits::default() };
        let of = |body: &'static str| {
            let message = v2::Message { body: body.into(), ..valid() };
            request(&v2::SendMessageRequest { messages: vec![message] }, &limits).map(|_| ())
        };
        assert_eq!(of("abc"), Ok(()));
        assert!(matches!(of("abcd"), Err(Refusal::Invalid(Invalid { field: Field::Body, .. }))));
    }

    #[test]
    fn type_of_content_and_type_of_topic_must_agree() {
        use v2::MessageType as T;
        let fits = |topic: T, change: &dyn Fn(&mut v2::SystemProperties)| {
            let mut message = valid();
            change(system(&mut message));
            super::fits("t", topic as u32, &message)
        };
        let fifo = |s: &mut v2::SystemProperties| s.message_group = Some("g".into());
        assert_eq!(fits(T::Normal, &|_| ()), Ok(()));
        assert_eq!(fits(T::Unspecified, &|_| ()), Ok(()));
        assert!(matches!(fits(T::Normal, &fifo), Err(Refusal::TypeConflict { .. })));
        assert!(matches!(fits(T::Fifo, &|_| ()), Err(Refusal::TypeConflict { .. })));
        assert!(matches!(fits(T::Fifo, &fifo), Err(Refusal::NotOffered(_))));
        let both = |s: &mut v2::SystemProperties| {
            s.message_group = Some("g".into());
            s.delivery_timestamp = Some(prost_types::Timestamp::default());
        };
        assert!(matches!(fits(T::Fifo, &both), Err(Refusal::TypeConflict { .. })));
        let lonely = |s: &mut v2::SystemProperties| s.message_type = T::Fifo as i32;
        assert!(matches!(fits(T::Fifo, &lonely), Err(Refusal::TypeConflict { .. })));
    }
}
