//! Failures of the broker that a caller acts on.
//!
//! Each variant is there because somebody decides by it: repeat here, repeat elsewhere, give up, or report "unknown".
//! They become wire codes in `api/status.rs` and nowhere else.

use mq_protocol::cluster::{ItemResult, item_result::Code};
use mq_raft::{LeaderInfo, ProposeError};
use mq_store::StoreError;

/// Why a call of a client or a node was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// Another member leads, or none is known. Nothing was proposed.
    #[error("this node does not lead the broker group{}", leader_text(.leader.as_ref()))]
    NotLeader {
        /// Who leads, when known.
        leader: Option<LeaderInfo>,
    },
    /// No majority of the group answers. Nothing was proposed.
    #[error("no majority of the broker group answers")]
    NoQuorum,
    /// A limit of this node or group is reached; the same call may pass later. Nothing was proposed.
    #[error("busy: {what} is {value}, the limit is {limit}")]
    Busy {
        /// What is limited.
        what: &'static str,
        /// Its value, with this call.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The call does not fit into one log entry. Nothing was proposed.
    #[error("{value} bytes do not fit into one log entry of at most {limit} bytes")]
    TooLarge {
        /// Bytes of the call.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// It may have been done or not, or may still be done.
    #[error("outcome unknown: {reason}")]
    Unknown {
        /// What came in between.
        reason: &'static str,
    },
    /// The group stops on this node; nothing was proposed.
    #[error("the broker group is stopping on this node")]
    Stopped,
    /// No such topic, or the call names an earlier life of it.
    #[error("topic {topic:?} does not exist")]
    UnknownTopic {
        /// The topic as the caller named it; empty when only a number was known.
        topic: String,
    },
    /// No such subscription group, or the call names an earlier life of it.
    #[error("subscription group {group:?} does not exist")]
    UnknownGroup {
        /// The group as the caller named it.
        group: String,
    },
    /// It exists already.
    #[error("{name:?} exists already")]
    Exists {
        /// The topic or group.
        name: String,
    },
    /// The handle was never given, was replaced, or its invisible time is over.
    #[error("receipt handle is not valid: {reason}")]
    InvalidHandle {
        /// Which of these.
        reason: &'static str,
    },
    /// The topic takes no messages.
    #[error("topic {topic:?} is not writable")]
    NotWritable {
        /// The topic.
        topic: String,
    },
    /// The subscription group may not consume at present, or the topic may not be read.
    #[error("{name:?} is not readable")]
    NotReadable {
        /// The group or topic whose setting forbids it.
        name: String,
    },
    /// A producer of a higher epoch has taken over; whether an earlier try was stored is unknown.
    #[error("a higher epoch of this producer exists")]
    OlderEpoch,
    /// The sequence lies below the producer's floor; whether it was stored is unknown.
    #[error("the sequence lies below the producer's floor")]
    BelowFloor,
    /// The sequence lies too far above the producer's floor. Nothing was stored.
    #[error("the sequence lies 1,024 or more above the producer's floor")]
    SequenceTooFar,
    /// The group's feature level does not know what was asked.
    #[error("not supported: {detail}")]
    Unsupported {
        /// What.
        detail: String,
    },
    /// What was asked makes no sense, whoever asks and whenever.
    #[error("invalid: {detail}")]
    Invalid {
        /// What is wrong, with value and limit.
        detail: String,
    },
    /// The filter expression cannot be used.
    #[error("filter expression is not valid: {detail}")]
    InvalidFilter {
        /// What is wrong.
        detail: String,
    },
    /// What is stored here cannot be read; another node may have it.
    #[error("cannot read what is stored here: {0}")]
    Storage(#[from] StoreError),
    /// What was stored or answered cannot be understood: a bug or another version.
    #[error("internal error: {detail}")]
    Internal {
        /// What was found.
        detail: String,
    },
}

fn leader_text(leader: Option<&LeaderInfo>) -> String {
    leader.map_or_else(|| "; no leader is known".to_owned(), |leader| format!("; leader is {}", leader.node))
}

impl BrokerError {
    /// The error for a result of apply that is not OK; `name` is the topic or group that the call is about.
    #[must_use]
    pub fn from_result(result: &ItemResult, name: &str) -> Option<Self> {
        let name = || name.to_owned();
        let detail = || result.detail.clone();
        Some(match result.code() {
            Code::Ok => return None,
            Code::UnknownTopic => Self::UnknownTopic { topic: name() },
            Code::UnknownGroup => Self::UnknownGroup { group: name() },
            Code::Exists => Self::Exists { name: name() },
            Code::Rejected => Self::Unknown { reason: "the delivery was no longer free" },
            Code::HandleExpired => Self::InvalidHandle { reason: HANDLE_OVER },
            Code::OlderEpoch => Self::OlderEpoch,
            Code::BelowFloor => Self::BelowFloor,
            Code::SequenceTooFar => Self::SequenceTooFar,
            Code::UnsupportedKind => Self::Unsupported { detail: detail() },
            Code::Invalid => Self::Invalid { detail: detail() },
            Code::NotWritable => Self::NotWritable { topic: name() },
            Code::InFlightLimit => in_flight_limit(),
        })
    }
}

/// Reason of a handle that apply refused.
pub(crate) const HANDLE_OVER: &str = "it was replaced or its invisible time is over";

/// The refusal of a delivery for which a consumer group has too many messages in flight.
pub(crate) fn in_flight_limit() -> BrokerError {
    let limit = crate::state::MAX_IN_FLIGHT_PER_QUEUE;
    BrokerError::Busy { what: "messages in flight of the subscription group and queue", value: limit, limit }
}

impl From<ProposeError> for BrokerError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { leader } => Self::NotLeader { leader },
            ProposeError::NoQuorum => Self::NoQuorum,
            ProposeError::Busy { what, value, limit } => Self::Busy { what, value, limit },
            ProposeError::TooLarge { value, limit } => Self::TooLarge { value, limit },
            ProposeError::Deadline => {
                Self::Unknown { reason: "the deadline passed before the entry was applied" }
            }
            ProposeError::Discarded => {
                Self::Unknown { reason: "leadership was lost before the entry was applied" }
            }
            ProposeError::Stopped { unknown: true } => Self::Unknown { reason: "the node stopped" },
            ProposeError::Stopped { unknown: false } => Self::Stopped,
        }
    }
}
