//! Requests that are wrong in themselves: refused before anything is proposed, with the value and the rule in the
//! text. Together with [`BrokerError`] this is everything that a call can end with.

use mq_protocol::names::Invalid;

use crate::error::BrokerError;

/// Why a request is refused whatever the state of the group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The call arrived after its own deadline.
    #[error("the deadline of the call has passed, nothing was done")]
    Expired,
    /// Something else is malformed.
    #[error("{0}")]
    BadRequest(String),
    /// A name or another text breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A request that does not hold one or more messages of one topic.
    #[error("{0}")]
    Batch(&'static str),
    /// The message's type is not the topic's.
    #[error("topic {topic:?} takes {allowed} messages, this one is {sent}")]
    TypeConflict {
        /// The topic.
        topic: String,
        /// Its type.
        allowed: String,
        /// The message's type.
        sent: String,
    },
    /// An invisible duration out of range.
    #[error("invisible duration of {value} ms: allowed are {min} to {max} ms")]
    InvisibleTime {
        /// As sent.
        value: i64,
        /// Shortest.
        min: u64,
        /// Longest.
        max: u64,
    },
    /// A poll time that cannot be used.
    #[error("polling time of {0} ms: it cannot be negative")]
    PollingTime(i64),
    /// A receipt handle that this cluster never made.
    #[error("receipt handle is not valid: {0}")]
    Handle(&'static str),
    /// Something that this version does not do.
    #[error("{0} is not offered by this version")]
    NotOffered(String),
    /// A name that no broker group of the cluster has.
    #[error("broker group {0:?} is not known")]
    UnknownBrokerGroup(String),
}

/// What ends a call that was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The request is wrong.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request is right, the broker could not do it.
    #[error(transparent)]
    Failed(#[from] BrokerError),
}
