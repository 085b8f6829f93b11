//! The one type configuration of openraft, for all groups of both servers.
//!
//! An entry's payload keeps the bytes that are stored and sent: a proposal is never encoded twice, a membership
//! keeps its bytes as they came, so that a frame is the same on every replica.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use mq_store::commit_log::{AppendEntry, FrameKind, LogEntry, PlacedEntry};
use mq_store::{EntryId, LogIndex, LogOffset, Term};
use openraft::entry::{RaftEntry, RaftPayload};
use openraft::impls::leader_id_std;

use crate::config::{NodeId, Role};
use crate::membership;
use crate::responder::FrameResponder;

/// What the membership records of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub node: String,
    pub raft_address: String,
    pub api_address: String,
    pub client_address: String,
    pub role: Role,
    pub store_id: String,
}

/// One batch of items as the leader's proposer made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub kind: FrameKind,
    pub flags: u8,
    pub count: u32,
    pub store_time: u64,
    pub lease_time: u64,
    pub body: Bytes,
    pub body_crc: u32,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} items, {} bytes", self.count, self.body.len())
    }
}

/// Answers of one frame, with the times that the frame carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameAnswer {
    pub store_time: u64,
    pub lease_time: u64,
    pub items: Vec<Bytes>,
}

/// NodeId u64, one leader per term, own entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Proposal;
    type R = FrameAnswer;
    type NodeId = NodeId;
    type Node = Node;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, NodeId>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = openraft_rt_tokio::TokioRuntime;
    type Responder<T>
        = FrameResponder<T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type Members = openraft::Membership<NodeId, Node>;
pub(crate) type StoredMembers = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(crate) type AppendResponse = openraft::raft::AppendEntriesResponse<TypeConfig>;
pub(crate) type AppendResult = openraft::raft::StreamAppendResult<TypeConfig>;
pub(crate) type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub(crate) type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;
pub(crate) type Raft = openraft::Raft<TypeConfig, crate::state_machine::StateMachine>;

pub(crate) fn log_id(id: EntryId) -> LogId {
    LogId::new_term_index(id.term.0, id.index.0)
}

pub(crate) fn entry_id(id: &LogId) -> EntryId {
    EntryId { term: Term(id.leader_id.term), index: LogIndex(id.index) }
}

/// A membership with the bytes that stand for it in the log.
#[derive(Clone, Debug)]
pub(crate) struct EncodedMembers {
    pub members: Arc<Members>,
    pub bytes: Bytes,
    pub crc: u32,
}

impl EncodedMembers {
    pub(crate) fn encode(members: Members) -> Self {
        let bytes = membership::encode(&members);
        let crc = crc32c::crc32c(&bytes);
        Self { members: Arc::new(members), bytes, crc }
    }

    pub(crate) fn decode(bytes: Bytes, crc: u32) -> Result<Self, membership::Malformed> {
        let members = membership::decode(&bytes)?;
        Ok(Self { members: Arc::new(members), bytes, crc })
    }
}

/// What an entry says.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Blank,
    Items(Proposal),
    Membership(EncodedMembers),
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("blank"),
            Self::Items(proposal) => proposal.fmt(f),
            Self::Membership(encoded) => write!(f, "membership {}", encoded.members),
        }
    }
}

impl RaftPayload for Payload {
    type D = Proposal;
    type NodeId = NodeId;
    type Node = Node;

    fn blank() -> Self {
        Self::Blank
    }

    fn with_normal(self, data: Proposal) -> Self {
        Self::Items(data)
    }

    fn with_membership(self, membership: Members) -> Self {
        Self::Membership(EncodedMembers::encode(membership))
    }

    fn get_membership(&self) -> Option<Members> {
        match self {
            Self::Membership(encoded) => Some(Members::clone(&encoded.members)),
            Self::Blank | Self::Items(_) => None,
        }
    }
}

/// Where an entry stands in a log: known once it was appended, here or at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Proposed here, not appended yet.
    New,
    /// As a peer has it: the frame's head_crc there.
    Peer { head_crc: u32 },
    /// In the local log.
    Local { offset: LogOffset, head_crc: u32 },
}

/// One Raft entry = one frame.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub log_id: LogId,
    pub payload: Payload,
    pub place: Place,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.log_id, self.payload)
    }
}

impl RaftEntry for Entry {
    type CommittedLeaderId = openraft::vote::leader_id_std::CommittedLeaderId<u64>;
    type Payload = Payload;

    fn new(log_id: LogId, payload: Payload) -> Self {
        Self { log_id, payload, place: Place::New }
    }

    fn log_id_parts(&self) -> (&Self::CommittedLeaderId, u64) {
        (&self.log_id.leader_id, self.log_id.index)
    }

    fn set_log_id(&mut self, new: LogId) {
        self.log_id = new;
        self.place = Place::New;
    }

    fn get_membership(&self) -> Option<Members> {
        self.payload.get_membership()
    }
}

impl Entry {
    /// The frame that the log shall store, and the chain value that it must get.
    pub(crate) fn into_append(self) -> AppendEntry {
        let id = entry_id(&self.log_id);
        let (term, index) = (id.term, id.index);
        let blank = LogEntry {
            kind: FrameKind::Blank,
            flags: 0,
            term,
            index,
            store_time: 0,
            lease_time: 0,
            count: 0,
            body: Bytes::new(),
            body_crc: crc32c::crc32c(&[]),
        };
        let entry = match self.payload {
            Payload::Blank => blank,
            Payload::Items(Proposal { kind, flags, count, store_time, lease_time, body, body_crc }) => {
                LogEntry { kind, flags, term, index, store_time, lease_time, count, body, body_crc }
            }
            Payload::Membership(EncodedMembers { members: _, bytes, crc }) => {
                LogEntry { kind: FrameKind::Membership, body: bytes, body_crc: crc, ..blank }
            }
        };
        let expected_head_crc = match self.place {
            Place::Peer { head_crc } | Place::Local { head_crc, .. } => Some(head_crc),
            Place::New => None,
        };
        AppendEntry { entry, expected_head_crc }
    }

    /// The entry that a stored frame is.
    pub(crate) fn from_placed(placed: PlacedEntry) -> Result<Self, membership::Malformed> {
        let PlacedEntry { entry, offset, prev_crc: _, head_crc } = placed;
        Self::from_log_entry(entry, Place::Local { offset, head_crc })
    }

    pub(crate) fn from_log_entry(entry: LogEntry, place: Place) -> Result<Self, membership::Malformed> {
        let LogEntry { kind, flags, term, index, store_time, lease_time, count, body, body_crc } = entry;
        let payload = match kind {
            FrameKind::Items => {
                Payload::Items(Proposal { kind, flags, count, store_time, lease_time, body, body_crc })
            }
            FrameKind::Membership => Payload::Membership(EncodedMembers::decode(body, body_crc)?),
            FrameKind::Blank => Payload::Blank,
        };
        Ok(Self { log_id: log_id(EntryId { term, index }), payload, place })
    }
}
