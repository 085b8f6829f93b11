//! Settings of a group and of its members: plain data, checked once at start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mq_runtime::clock::Clock;
use mq_store::fs::FileSystem;

use crate::error::{Fatal, StartError};

/// Number of a member in its group; 1…n in list order at bootstrap.
pub type NodeId = u64;

/// What a member does in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Votes, stores and serves.
    #[default]
    Data,
    /// Votes and stores the log's tail; never serves.
    Witness,
    /// Stores and applies, does not vote.
    Learner,
}

impl Role {
    /// Its name in status outputs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Witness => "witness",
            Self::Learner => "learner",
        }
    }
}

/// One member as the settings list it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// 1…n in list order.
    pub id: NodeId,
    /// Node name.
    pub node: String,
    /// `host:port` that the other members connect to.
    pub raft_address: String,
    /// `host:port` of the API between nodes.
    pub api_address: String,
    /// `host:port` for clients; empty where there is none.
    pub client_address: String,
    /// What it does.
    pub role: Role,
}

/// Election and replication timers. Equal on all members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Pause between two heartbeats of an idle leader.
    pub heartbeat: Duration,
    /// Shortest election timeout; must exceed two heartbeats by 10 ms.
    pub election_min: Duration,
    /// Longest election timeout, also the follower's lease.
    pub election_max: Duration,
    /// A leader without a quorum probes at this pace.
    pub quorum_loss_probe: Duration,
    /// Pauses before an unreachable member is tried again.
    pub backoff: &'static str,
}

impl Timers {
    /// Local network, dedicated machines: the shipped values.
    #[must_use]
    pub fn lan() -> Self {
        Self {
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(150),
            election_max: Duration::from_millis(300),
            quorum_loss_probe: Duration::from_millis(600),
            backoff: "20ms 40ms 60ms 80ms 100ms 150ms ...200ms",
        }
    }

    /// Loaded two-core test machines.
    #[must_use]
    pub fn test() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
            quorum_loss_probe: Duration::from_millis(1200),
            ..Self::lan()
        }
    }

    /// Without an acknowledgement for this long, with a request on the way, an append stream is given up.
    pub(crate) fn append_stall(&self) -> Duration {
        (self.heartbeat * 4).max(Duration::from_millis(500))
    }
}

/// What bounds a group's memory and batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes proposed and not yet applied; above it `propose` answers Busy. Default 64 MiB.
    pub uncommitted_bytes: usize,
    /// Bytes appended here and not yet flushed; above it Busy. Default 32 MiB.
    pub unflushed_bytes: u64,
    /// Committed entries that may wait for apply; above it Busy. Default 256.
    pub apply_lag: u64,
    /// Calls that may wait for the proposer. Default 16,384.
    pub waiting_calls: usize,
    /// A batch is proposed at this size even while two are on the way. Default 256 KiB.
    pub batch_bytes: usize,
    /// Likewise by number of items. Default 512.
    pub batch_items: u32,
    /// Bytes of one read of the log for replication or apply. Default 1 MiB.
    pub read_bytes: usize,
    /// Unacknowledged append requests per follower. Default 4.
    pub append_window: usize,
    /// Bytes of the newest entries kept in memory. Default 16 MiB.
    pub ring_bytes: usize,
    /// Largest write batch of the log writer. Default 16 MiB.
    pub write_batch_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            uncommitted_bytes: 64 << 20,
            unflushed_bytes: 32 << 20,
            apply_lag: 256,
            waiting_calls: 16_384,
            batch_bytes: 256 << 10,
            batch_items: 512,
            read_bytes: 1 << 20,
            append_window: 4,
            ring_bytes: 16 << 20,
            write_batch_bytes: 16 << 20,
        }
    }
}

/// One group as this process takes part in it.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Cluster name.
    pub cluster: String,
    /// Group name, unique in the cluster.
    pub group: String,
    /// Name of this node; must be in `members`.
    pub node_name: String,
    /// All members at bootstrap, ids 1…n in list order, equal on all of them.
    pub members: Vec<MemberConfig>,
    /// Folder of the group.
    pub dir: PathBuf,
    /// Bytes of a log segment; a constant of the group once it is formed.
    pub segment_size: u64,
    /// Largest frame; a constant of the group once it is formed.
    pub frame_limit: u32,
    /// Timers.
    pub timers: Timers,
    /// Bounds.
    pub limits: Limits,
}

impl GroupConfig {
    /// This node's entry.
    pub(crate) fn me(&self) -> Result<&MemberConfig, StartError> {
        self.members.iter().find(|m| m.node == self.node_name).ok_or_else(|| {
            StartError::Config(format!(
                "group {}: node {} is not in its member list [{}]",
                self.group,
                self.node_name,
                self.member_names().join(", ")
            ))
        })
    }

    pub(crate) fn member_names(&self) -> Vec<String> {
        self.members.iter().map(|m| m.node.clone()).collect()
    }

    /// Refuses what cannot work, naming value and limit.
    pub(crate) fn validate(&self) -> Result<(), StartError> {
        let bad = |text: String| Err(StartError::Config(format!("group {}: {text}", self.group)));
        if self.group.is_empty() || self.group.contains(['/', '\0']) || self.group.starts_with('.') {
            return bad(format!("{:?} is no group name", self.group));
        }
        if self.members.is_empty() {
            return bad("the member list is empty".into());
        }
        for (place, member) in self.members.iter().enumerate() {
            if member.id != place as u64 + 1 {
                return bad(format!("member {} has id {}, expected {}", member.node, member.id, place + 1));
            }
            if member.role != Role::Data {
                let (node, role) = (&member.node, member.role.as_str());
                return bad(format!("member {node}: role {role:?} is not supported yet, only \"data\" is"));
            }
            if self.members[..place].iter().any(|m| m.node == member.node) {
                return bad(format!("member {} is listed twice", member.node));
            }
        }
        if self.frame_limit < 4096 || self.frame_limit > MAX_FRAME {
            return bad(format!("frame limit {} is not in 4096..={MAX_FRAME}", self.frame_limit));
        }
        if self.segment_size < u64::from(self.frame_limit) || !self.segment_size.is_multiple_of(4096) {
            return bad(format!(
                "segment size {} must be a multiple of 4096 and at least the frame limit {}",
                self.segment_size, self.frame_limit
            ));
        }
        self.me().map(|_| ())
    }
}

/// Largest frame that any group may allow: the budget of one message between nodes.
pub const MAX_FRAME: u32 = 8 << 20;

/// What a group gets from its process.
#[derive(Clone)]
pub struct Deps {
    /// All file access.
    pub fs: Arc<dyn FileSystem>,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Source of UUIDs and store ids.
    pub random: mq_runtime::random::Random,
    /// Called once when the group cannot go on.
    pub on_fatal: Arc<dyn Fn(Fatal) + Send + Sync>,
}
