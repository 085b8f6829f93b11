//! What can go wrong with a call, as far as a caller acts on it. Wire codes: `api/status.rs`, nowhere else.

use mq_protocol::names::Invalid;
use mq_raft::{ProposeError, ReadError};

/// A call that was not done, or of which nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The caller's time is over before anything was done.
    #[error("the deadline of the call has passed")]
    Expired,
    /// No leader is known, or the one that is cannot be reached. Nothing was changed.
    #[error("the name servers have no leader at the moment")]
    NoLeader,
    /// The leader has no majority. Nothing was changed.
    #[error("the name servers have no majority at the moment")]
    NoQuorum,
    /// Too much is waiting. Nothing was changed.
    #[error("busy: {what} is {value}, the limit is {limit}")]
    Busy {
        /// What is full.
        what: &'static str,
        /// How much there is.
        value: u64,
        /// How much there may be.
        limit: u64,
    },
    /// A report or a value is too large. Nothing was changed.
    #[error("{value} bytes are too many, the limit is {limit}")]
    TooLarge {
        /// Its size.
        value: u64,
        /// The largest one.
        limit: u64,
    },
    /// It may have been done or not.
    #[error("the outcome is unknown: {0}")]
    Unknown(&'static str),
    /// This name server is cut off for too long to answer from what it knew last.
    #[error("this name server has had no contact with its leader for {age_s} s, ask another one")]
    CutOff {
        /// Seconds since the last contact, or since the start when there was none.
        age_s: u64,
    },
    /// The process stops.
    #[error("the name server is stopping")]
    Stopped,
    /// A name that breaks its rules.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A field of a request that cannot be used.
    #[error("{0}")]
    BadRequest(String),
    /// A report of another cluster, or of another group under a known name.
    #[error("{0}")]
    Refused(String),
    /// Nobody reported this topic.
    #[error("topic {0} does not exist")]
    UnknownTopic(String),
    /// A setting was changed meanwhile. Nothing was changed.
    #[error("the key's revision is {revision} (0: there is no such key), not the expected one")]
    OtherRevision {
        /// Its present revision.
        revision: u64,
    },
    /// No room for another setting. Nothing was changed.
    #[error("the settings are full: at most {keys} keys and {bytes} bytes in all")]
    Full {
        /// Most keys.
        keys: u64,
        /// Most bytes of keys and values.
        bytes: u64,
    },
    /// The revision that was asked for is not here yet.
    #[error("revision {asked} is not here yet, the newest one is {here}")]
    Behind {
        /// The one that was asked for.
        asked: u64,
        /// The newest one here.
        here: u64,
    },
    /// Not there (yet).
    #[error("{0}")]
    NotFound(String),
}

impl From<ProposeError> for NameError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { .. } => Self::NoLeader,
            ProposeError::NoQuorum => Self::NoQuorum,
            ProposeError::Busy { what, value, limit } => Self::Busy { what, value, limit },
            ProposeError::TooLarge { value, limit } => Self::TooLarge { value, limit },
            ProposeError::Deadline => Self::Unknown("no majority confirmed it in time"),
            ProposeError::Discarded => Self::Unknown("the leader changed"),
            ProposeError::Stopped { unknown: true } => Self::Unknown("the name server stopped"),
            ProposeError::Stopped { unknown: false } => Self::Stopped,
        }
    }
}

impl From<ReadError> for NameError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotLeader { .. } => Self::NoLeader,
            ReadError::NoQuorum => Self::NoQuorum,
            ReadError::Deadline => Self::NoQuorum,
            ReadError::Stopped => Self::Stopped,
        }
    }
}
