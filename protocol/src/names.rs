//! Rules for names and for the other texts of a message.
//!
//! Which wire code a broken rule becomes is decided at the server's edge, by [`Field`] and [`Problem`].

use std::fmt;

/// Longest topic name.
pub const TOPIC_LIMIT: usize = 127;
/// Longest name of a `%RETRY%` or `%DLQ%` topic.
pub const DERIVED_TOPIC_LIMIT: usize = 255;
/// Longest group name.
pub const GROUP_LIMIT: usize = 120;
/// Longest namespace.
pub const NAMESPACE_LIMIT: usize = 127;
/// Longest message group, bytes.
pub const MESSAGE_GROUP_LIMIT: usize = 64;
/// Longest message id, bytes.
pub const MESSAGE_ID_LIMIT: usize = 255;
/// Longest client id, bytes.
pub const CLIENT_ID_LIMIT: usize = 255;

/// Prefix of the retry topic of a group.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of the dead letter topic of a group.
pub const DEAD_LETTER_PREFIX: &str = "%DLQ%";

const SYSTEM_TOPICS: [&str; 10] = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
];
const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";

const SYSTEM_GROUPS: [&str; 13] = [
    "DEFAULT_PRODUCER",
    "DEFAULT_CONSUMER",
    "TOOLS_CONSUMER",
    "SCHEDULE_CONSUMER",
    "FILTERSRV_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "SELF_TEST_P_GROUP",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PULL",
];
const SYSTEM_GROUP_PREFIXES: [&str; 2] = ["CID_RMQ_SYS_", "rmq_sys_"];

/// What a text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// Namespace of a topic or group.
    Namespace,
    /// Topic name.
    Topic,
    /// Subscription group name.
    Group,
    /// Client id of a call.
    ClientId,
    /// Message id given by the client.
    MessageId,
    /// Tag of a message.
    Tag,
    /// Index key of a message.
    Key,
    /// Message group.
    MessageGroup,
    /// Key of a user property.
    PropertyKey,
    /// Value of a user property.
    PropertyValue,
    /// User properties, tag and keys together.
    Properties,
    /// Trace text.
    TraceContext,
    /// Client's host.
    BornHost,
    /// Sub-topic of a lite topic.
    LiteTopic,
    /// Priority of a message.
    Priority,
    /// Wanted delivery time.
    DeliveryTime,
    /// Message body.
    Body,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespace => "namespace",
            Self::Topic => "topic",
            Self::Group => "group",
            Self::ClientId => "client id",
            Self::MessageId => "message id",
            Self::Tag => "tag",
            Self::Key => "message key",
            Self::MessageGroup => "message group",
            Self::PropertyKey => "property key",
            Self::PropertyValue => "property value",
            Self::Properties => "message properties",
            Self::TraceContext => "trace context",
            Self::BornHost => "born host",
            Self::LiteTopic => "lite topic",
            Self::Priority => "priority",
            Self::DeliveryTime => "delivery time",
            Self::Body => "message body",
        })
    }
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Nothing there, or white space only.
    #[error("must not be empty")]
    Blank,
    /// Too long.
    #[error("{value} bytes, at most {limit} allowed")]
    TooLong {
        /// Its length.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many of them.
    #[error("{value} entries, at most {limit} allowed")]
    TooMany {
        /// How many.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// A character that may not stand there.
    #[error("character {found:?} at position {position} is not allowed")]
    Character {
        /// The character.
        found: char,
        /// Its place, counted in characters from 0.
        position: usize,
    },
    /// The name belongs to the system.
    #[error("the name is reserved")]
    Reserved,
    /// Outside of what the field can say.
    #[error("out of range")]
    OutOfRange,
}

/// A text that breaks a rule: which one, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} `{value}`: {problem}")]
pub struct Invalid {
    /// What it is for.
    pub field: Field,
    /// The text, shortened and without control characters; empty where the field has none.
    pub value: String,
    /// What is wrong.
    pub problem: Problem,
}

impl Invalid {
    /// Names the text, at most its first 64 characters.
    #[must_use]
    pub fn new(field: Field, value: &str, problem: Problem) -> Self {
        let mut shown: String = value.chars().take(64).flat_map(char::escape_debug).collect();
        if value.chars().nth(64).is_some() {
            shown.push('…');
        }
        Self { field, value: shown, problem }
    }
}

/// Checks the name of a topic that clients may use: ordinary ones up to 127, `%RETRY%` and `%DLQ%` ones up to 255.
pub fn topic(name: &str) -> Result<(), Invalid> {
    let derived = name.starts_with(RETRY_PREFIX) || name.starts_with(DEAD_LETTER_PREFIX);
    let limit = if derived { DERIVED_TOPIC_LIMIT } else { TOPIC_LIMIT };
    resource_name(Field::Topic, name, limit)?;
    if SYSTEM_TOPICS.contains(&name) || name.starts_with(SYSTEM_TOPIC_PREFIX) {
        return Err(Invalid::new(Field::Topic, name, Problem::Reserved));
    }
    Ok(())
}

/// Checks the name of a subscription group.
pub fn group(name: &str) -> Result<(), Invalid> {
    resource_name(Field::Group, name, GROUP_LIMIT)?;
    let system =
        SYSTEM_GROUPS.contains(&name) || SYSTEM_GROUP_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if system { Err(Invalid::new(Field::Group, name, Problem::Reserved)) } else { Ok(()) }
}

/// Checks a namespace; empty means none. It holds no `%`, which is what separates it from a name in a key.
pub fn namespace(name: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Ok(());
    }
    resource_name(Field::Namespace, name, NAMESPACE_LIMIT)?;
    match name.chars().position(|found| found == '%') {
        Some(position) => {
            Err(Invalid::new(Field::Namespace, name, Problem::Character { found: '%', position }))
        }
        None => Ok(()),
    }
}

/// Checks the client id of a call.
pub fn client_id(id: &str) -> Result<(), Invalid> {
    text(Field::ClientId, id, CLIENT_ID_LIMIT)
}

/// Checks the message id that a client gave.
pub fn message_id(id: &str) -> Result<(), Invalid> {
    text(Field::MessageId, id, MESSAGE_ID_LIMIT)
}

/// Checks a tag; empty means none.
pub fn tag(tag: &str) -> Result<(), Invalid> {
    optional_text(Field::Tag, tag, usize::MAX)?;
    match tag.chars().position(|found| found == '|') {
        Some(position) => Err(Invalid::new(Field::Tag, tag, Problem::Character { found: '|', position })),
        None => Ok(()),
    }
}

/// Checks an index key.
pub fn key(key: &str) -> Result<(), Invalid> {
    optional_text(Field::Key, key, usize::MAX)
}

/// Checks a message group; empty means none.
pub fn message_group(group: &str) -> Result<(), Invalid> {
    optional_text(Field::MessageGroup, group, MESSAGE_GROUP_LIMIT)
}

/// Checks a user property: its key is not the system's, neither part holds a control character.
pub fn property(key: &str, value: &str) -> Result<(), Invalid> {
    text(Field::PropertyKey, key, usize::MAX)?;
    if crate::message::properties::is_reserved(key) {
        return Err(Invalid::new(Field::PropertyKey, key, Problem::Reserved));
    }
    no_control_character(Field::PropertyValue, value)
}

/// Text of a topic or group with its namespace before it: what records and listings show. It is no identity:
/// a name may hold the separator too.
#[must_use]
pub fn resource_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}%{name}") }
}

fn resource_name(field: Field, name: &str, limit: usize) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new(field, name, Problem::Blank));
    }
    if name.len() > limit {
        return Err(Invalid::new(field, name, Problem::TooLong { value: name.len(), limit }));
    }
    let allowed = |found: char| found.is_ascii_alphanumeric() || matches!(found, '%' | '|' | '_' | '-');
    match name.chars().enumerate().find(|(_, found)| !allowed(*found)) {
        Some((position, found)) => Err(Invalid::new(field, name, Problem::Character { found, position })),
        None => Ok(()),
    }
}

/// Not blank, not too long, no control characters.
fn text(field: Field, value: &str, limit: usize) -> Result<(), Invalid> {
    if value.trim().is_empty() {
        return Err(Invalid::new(field, value, Problem::Blank));
    }
    if value.len() > limit {
        return Err(Invalid::new(field, value, Problem::TooLong { value: value.len(), limit }));
    }
    no_control_character(field, value)
}

/// Empty counts as absent; else as [`text`].
pub(crate) fn optional_text(field: Field, value: &str, limit: usize) -> Result<(), Invalid> {
    if value.is_empty() { Ok(()) } else { text(field, value, limit) }
}

pub(crate) fn no_control_character(field: Field, value: &str) -> Result<(), Invalid> {
    match value.chars().enumerate().find(|(_, found)| found.is_control()) {
        Some((position, found)) => Err(Invalid::new(field, value, Problem::Character { found, position })),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
