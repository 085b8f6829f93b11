//! What can go wrong, by what a caller can do about it.
//!
//! The one distinction that matters for a send is whether the message may be stored: [`SendError::NotStored`] is a
//! certainty, [`SendError::Unknown`] is the honest answer to everything else.

use std::fmt;
use std::time::Duration;

/// Settings of a client, a producer or a consumer that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Neither a name server nor a broker is named.
    #[error("no address: name at least one name server or one broker")]
    NoAddress,
    /// Not `host:port`.
    #[error("address `{0}` is not host:port")]
    Address(String),
    /// A name that no server accepts.
    #[error(transparent)]
    Name(#[from] mq_protocol::names::Invalid),
    /// A number outside of its range.
    #[error("{what} is {value}, allowed is {min} to {max}")]
    Range {
        /// Which setting.
        what: &'static str,
        /// The value as given.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Greatest allowed value.
        max: u64,
    },
    /// A consumer without a subscription.
    #[error("no subscription: a consumer needs at least one topic")]
    NoSubscription,
}

/// A message that this client refuses before it asks any server: the servers' own rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessage {
    /// A body has at least one byte.
    #[error("the body is empty")]
    BodyEmpty,
    /// The body is longer than the limit.
    #[error("the body has {size} bytes, allowed are {limit}")]
    BodyTooLarge {
        /// Its length in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A name or another text that is not allowed, or too much of them.
    #[error(transparent)]
    Text(#[from] mq_protocol::names::Invalid),
    /// A setting of the send itself, for example its time limit, out of its range.
    #[error(transparent)]
    Setting(#[from] ConfigError),
}

/// Why the last attempt of a call did not give the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// No member of the broker group could be connected.
    Connect {
        /// The last address tried.
        address: String,
        /// The system's words.
        reason: String,
    },
    /// The broker group has no leader that is known to the members asked.
    NoLeader {
        /// The broker group.
        broker_group: String,
    },
    /// The server's own verdict.
    Status {
        /// `apache.rocketmq.v2.Code`.
        code: i32,
        /// The server's text.
        message: String,
        /// The server's `x-mq-reason`, for example `older-epoch`.
        reason: Option<String>,
    },
    /// The connection or the stream broke after the request had left.
    Transport {
        /// The address that was called.
        address: String,
        /// What was seen.
        reason: String,
    },
    /// No answer within the deadline.
    Deadline {
        /// How long the call lasted.
        after: Duration,
    },
    /// The queue in front of the network is full for longer than the deadline.
    Overloaded {
        /// What is full.
        what: &'static str,
        /// Its limit.
        limit: usize,
    },
    /// The topic's route names no broker group that can be asked.
    NoRoute {
        /// The topic.
        topic: String,
        /// What the last server asked said.
        reason: String,
    },
    /// The client's tasks are gone: the runtime is shutting down.
    Closed,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { address, reason } => write!(f, "no connection to {address}: {reason}"),
            Self::NoLeader { broker_group } => write!(f, "broker group {broker_group} has no known leader"),
            Self::Status { code, message, reason: Some(reason) } => write!(f, "{code} {message} ({reason})"),
            Self::Status { code, message, reason: None } => write!(f, "{code} {message}"),
            Self::Transport { address, reason } => write!(f, "call to {address} broke: {reason}"),
            Self::Deadline { after } => write!(f, "no answer within {} ms", after.as_millis()),
            Self::Overloaded { what, limit } => write!(f, "{what} is full ({limit})"),
            Self::NoRoute { topic, reason } => write!(f, "no route for topic {topic}: {reason}"),
            Self::Closed => f.write_str("the client's runtime is shutting down"),
        }
    }
}

impl Cause {
    /// The server's code, if it was a server that decided.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Why a message is certainly not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotStored {
    /// Refused by this client; no server was asked.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// A server refused it for good: the same message will be refused again.
    #[error("refused: {0}")]
    Refused(Cause),
    /// It could not be handed over before the deadline; trying again later may work.
    #[error("not handed over: {0}")]
    Unavailable(Cause),
}

/// Outcome of a send that was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Certainly not stored: no consumer will ever see this message.
    #[error("not stored: {why}")]
    NotStored {
        /// Why.
        why: NotStored,
        /// Id of the message; empty when it was refused before it got one.
        message_id: String,
    },
    /// It may be stored or not, now or a little later.
    #[error("outcome unknown for message {message_id}: {cause}")]
    Unknown {
        /// Id of the message, by which it can be looked for.
        message_id: String,
        /// Why the last attempt gave no answer.
        cause: Cause,
    },
}

impl SendError {
    /// True when the message may be stored.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

impl From<InvalidMessage> for SendError {
    fn from(invalid: InvalidMessage) -> Self {
        Self::NotStored { why: NotStored::Invalid(invalid), message_id: String::new() }
    }
}

/// A receive that gave no answer. Messages that it may have taken come again after their invisible time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The call itself is wrong (a number out of range, a topic that is not subscribed).
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// A server refused it for good: unknown topic or group, no permission, bad filter.
    #[error("refused: {0}")]
    Refused(Cause),
    /// No answer in time; trying again later may work.
    #[error("no answer: {0}")]
    Unavailable(Cause),
}

/// An ack or a change of the invisible time that was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// The call itself is wrong (a number out of range); no server was asked.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// The delivery is over: its invisible time has ended or its handle was replaced. The message comes again.
    #[error("the receipt handle is no longer valid: {0}")]
    Expired(Cause),
    /// A server refused it for good.
    #[error("refused: {0}")]
    Refused(Cause),
    /// It may have been done: no answer in time, or a refusal that may be the echo of an attempt before it. Repeating
    /// the call is harmless.
    #[error("outcome unknown: {0}")]
    Unknown(Cause),
}
