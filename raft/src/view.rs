//! What a group shows of itself.

use mq_store::{LogIndex, LogOffset, Term};

use crate::config::{NodeId, Role};

/// Where a leader is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderInfo {
    /// Its id.
    pub id: NodeId,
    /// Its node name.
    pub node: String,
    /// Its API address between nodes.
    pub api_address: String,
    /// Its address for clients.
    pub client_address: String,
}

/// Who leads, in which term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The newest term seen.
    pub term: Term,
    /// Its leader, when known.
    pub leader: Option<LeaderInfo>,
    /// It is this node.
    pub me: bool,
    /// And it has applied its own term's first entry: only then deliver and propose.
    pub ready: bool,
}

/// What the group is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupState {
    /// Bootstrap is not finished.
    #[default]
    Waiting,
    /// Follows, or looks for a leader to follow.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Leads.
    Leader,
    /// Receives the log without a vote.
    Learner,
    /// Does nothing any more.
    Stopped,
}

impl GroupState {
    /// Its name in status outputs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
            Self::Learner => "learner",
            Self::Stopped => "stopped",
        }
    }
}

/// One member as the membership knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberView {
    /// Its id.
    pub id: NodeId,
    /// Its node name.
    pub node: String,
    /// `host:port` of its Raft port.
    pub raft_address: String,
    /// `host:port` of its API port.
    pub api_address: String,
    /// `host:port` for clients.
    pub client_address: String,
    /// What it does.
    pub role: Role,
    /// It has a vote.
    pub voter: bool,
    /// Last entry known to be stored there; on the leader only.
    pub matched: Option<LogIndex>,
}

/// Everything that a status output needs.
#[derive(Clone, Debug, Default)]
pub struct GroupStatusView {
    /// Name of the group.
    pub group: String,
    /// Its UUID; empty while it has none.
    pub group_uuid: String,
    /// This member.
    pub node_id: NodeId,
    /// What it is doing.
    pub state: GroupState,
    /// For whom it waits, and why; empty unless waiting.
    pub waiting_for: String,
    /// Why it stopped; empty unless stopped.
    pub stopped_by: String,
    /// Newest term seen.
    pub term: Term,
    /// Leader of that term.
    pub leader: Option<LeaderInfo>,
    /// The leader is this node and has applied its own term's first entry.
    pub leader_ready: bool,
    /// Last entry in the log here.
    pub last: Option<LogIndex>,
    /// Last entry known to be committed.
    pub committed: Option<LogIndex>,
    /// Last entry applied here.
    pub applied: Option<LogIndex>,
    /// Last entry flushed here.
    pub flushed: Option<LogIndex>,
    /// Physical offset of the log's first byte.
    pub log_start: LogOffset,
    /// Physical offset behind its last frame.
    pub log_end: LogOffset,
    /// Members by id.
    pub members: Vec<MemberView>,
    /// Bytes proposed here and not applied yet.
    pub uncommitted_bytes: u64,
}
