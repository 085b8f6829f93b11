//! What can go wrong, as far as a caller acts on it.

use mq_runtime::exit::Exit;
use mq_store::StoreError;
use thiserror::Error;

use crate::view::LeaderInfo;

/// A data folder or a peer is not what the settings say.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {what} is {found:?}, expected {expected:?}")]
pub struct IdentityMismatch {
    /// Folder or peer.
    pub place: String,
    /// cluster, group, group UUID, node id, store id, members.
    pub what: &'static str,
    /// By settings or by own identity.
    pub expected: String,
    /// There.
    pub found: String,
}

/// A group did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The settings cannot work.
    #[error("{0}")]
    Config(String),
    /// Data folder of another cluster, group or node, or a wiped one.
    #[error("{0}")]
    Identity(#[from] IdentityMismatch),
    /// Files cannot be read or written, or are damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state behind the log did not open.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The transport does not listen, or already serves this group.
    #[error("{0}")]
    Transport(String),
    /// Raft itself refused.
    #[error("raft: {0}")]
    Raft(String),
}

impl StartError {
    /// How the process ends because of it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Transport(_) => Exit::Config,
            Self::Identity(_) => Exit::Identity,
            Self::Store(error) | Self::Apply(ApplyError::Store(error)) => exit_of_store(error),
            Self::Apply(ApplyError::Other(_)) => Exit::Damage,
            Self::Raft(_) => Exit::Failed,
        }
    }
}

/// How a process ends because of what its files say.
#[must_use]
pub fn exit_of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Corrupt { .. }
        | StoreError::Damaged { .. }
        | StoreError::StateDamaged { .. }
        | StoreError::Divergence { .. } => Exit::Damage,
        StoreError::Identity { .. } => Exit::Identity,
        StoreError::Locked { .. } => Exit::Config,
        _ => Exit::Disk,
    }
}

/// The state machine cannot go on.
#[derive(Clone, Debug, Error)]
pub enum ApplyError {
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Anything else; always a defect or damage, never a rejected command.
    #[error("{0}")]
    Other(String),
}

/// The group stopped for good; the process decides what that means for it.
#[derive(Clone, Debug, Error)]
pub enum Fatal {
    /// A write or fsync failed; only a restart with recovery from disk is sound.
    #[error("group {group}: disk: {error}")]
    Disk {
        /// Name of the group.
        group: String,
        /// What failed.
        error: StoreError,
    },
    /// Recovery or apply found damaged files.
    #[error("group {group}: damage: {error}")]
    Damage {
        /// Name of the group.
        group: String,
        /// What was found.
        error: String,
    },
    /// This replica's log differs from the leader's where they must be equal.
    #[error("group {group}: replicas differ: {error}")]
    Divergence {
        /// Name of the group.
        group: String,
        /// Where and how.
        error: String,
    },
    /// Not the node that its peers know.
    #[error("group {group}: {error}")]
    Identity {
        /// Name of the group.
        group: String,
        /// What differs.
        error: String,
    },
    /// A defect: something that cannot happen did.
    #[error("group {group}: {error}")]
    Internal {
        /// Name of the group.
        group: String,
        /// What.
        error: String,
    },
}

impl Fatal {
    /// How the process ends when it has no other group.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Disk { .. } | Self::Internal { .. } => Exit::Disk,
            Self::Damage { .. } | Self::Divergence { .. } => Exit::Damage,
            Self::Identity { .. } => Exit::Identity,
        }
    }

    /// The group that stopped.
    #[must_use]
    pub fn group(&self) -> &str {
        match self {
            Self::Disk { group, .. }
            | Self::Damage { group, .. }
            | Self::Divergence { group, .. }
            | Self::Identity { group, .. }
            | Self::Internal { group, .. } => group,
        }
    }

    /// What a store error means for the group.
    pub(crate) fn of_store(group: &str, error: &StoreError) -> Self {
        let group = group.to_owned();
        match error {
            StoreError::Corrupt { .. } | StoreError::Damaged { .. } | StoreError::StateDamaged { .. } => {
                Self::Damage { group, error: error.to_string() }
            }
            StoreError::Divergence { .. } => Self::Divergence { group, error: error.to_string() },
            StoreError::Identity { .. } => Self::Identity { group, error: error.to_string() },
            _ => Self::Disk { group, error: error.clone() },
        }
    }

    /// What a failed apply means for the group.
    pub(crate) fn of_apply(group: &str, error: &ApplyError) -> Self {
        match error {
            ApplyError::Store(e) => Self::of_store(group, e),
            ApplyError::Other(text) => Self::Damage { group: group.to_owned(), error: text.clone() },
        }
    }
}

/// A proposal was not confirmed. `certainly_not_stored` tells the two kinds apart.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProposeError {
    /// Not this node, or not for that term: nothing was proposed.
    #[error("not the leader of that term")]
    NotLeader {
        /// Who is, as far as known.
        leader: Option<LeaderInfo>,
    },
    /// The leader has no majority at the moment: nothing was proposed.
    #[error("no majority")]
    NoQuorum,
    /// Too much is on the way: nothing was proposed.
    #[error("busy: {what} {value} is above {limit}")]
    Busy {
        /// What is full.
        what: &'static str,
        /// How much there is.
        value: u64,
        /// How much there may be.
        limit: u64,
    },
    /// The items of one call do not fit into one frame: nothing was proposed.
    #[error("{value} bytes do not fit into a frame of {limit}")]
    TooLarge {
        /// Bytes of the frame body.
        value: u64,
        /// Largest frame body.
        limit: u64,
    },
    /// No outcome in time. *Unknown*: it may still be stored.
    #[error("deadline passed, outcome unknown")]
    Deadline,
    /// The leader lost its office with this on the way. *Unknown*.
    #[error("leadership was lost, outcome unknown")]
    Discarded,
    /// The group stopped.
    #[error("stopped")]
    Stopped {
        /// True when it may still be stored.
        unknown: bool,
    },
}

impl ProposeError {
    /// True when nothing of the call can ever appear in the log.
    #[must_use]
    pub fn certainly_not_stored(&self) -> bool {
        match self {
            Self::NotLeader { .. } | Self::NoQuorum | Self::Busy { .. } | Self::TooLarge { .. } => true,
            Self::Deadline | Self::Discarded => false,
            Self::Stopped { unknown } => !unknown,
        }
    }
}

/// A read barrier was not reached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// No leader is known, or it changed meanwhile.
    #[error("no leader")]
    NotLeader {
        /// Who leads, as far as known.
        leader: Option<LeaderInfo>,
    },
    /// The leader could not confirm its office.
    #[error("no majority")]
    NoQuorum,
    /// Not in time.
    #[error("deadline passed")]
    Deadline,
    /// The group stopped.
    #[error("stopped")]
    Stopped,
}

/// Leadership was not handed over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransferError {
    /// Only the leader can.
    #[error("not the leader")]
    NotLeader {
        /// Who is.
        leader: Option<LeaderInfo>,
    },
    /// Nobody, or not the one asked for, has the whole log.
    #[error("no member is current: {0}")]
    NoTarget(String),
    /// No new leader in time.
    #[error("deadline passed")]
    Deadline,
    /// The group stopped.
    #[error("stopped")]
    Stopped,
}

/// The membership was not changed, or it is not known whether it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemberError {
    /// Only a leader that is ready can.
    #[error("not the leader")]
    NotLeader {
        /// Who is.
        leader: Option<LeaderInfo>,
    },
    /// The step before this one is not finished.
    #[error("another change of the members is in progress")]
    ChangeInProgress,
    /// No member has that id.
    #[error("node {id} is no member")]
    Unknown {
        /// The id asked for.
        id: u64,
    },
    /// It has a vote already.
    #[error("node {id} has a vote already")]
    IsVoter {
        /// The member.
        id: u64,
    },
    /// It has no vote that could be taken away.
    #[error("node {id} is a learner")]
    IsLearner {
        /// The member.
        id: u64,
    },
    /// The leader does not take itself out.
    #[error("node {id} leads: transfer leadership first")]
    Leads {
        /// The leader.
        id: u64,
    },
    /// It would have a vote before it has the log.
    #[error("node {id} is {behind} entries behind, at most {limit} are allowed")]
    TargetBehind {
        /// The member.
        id: u64,
        /// Entries that it lacks.
        behind: u64,
        /// Entries that it may lack.
        limit: u64,
    },
    /// It does not answer heartbeats.
    #[error("node {id} does not answer")]
    TargetSilent {
        /// The member.
        id: u64,
    },
    /// The voters after the step would not have a majority that is here and current.
    #[error("majority at risk: {current} of then {voters} voters are current, {needed} are needed")]
    MajorityAtRisk {
        /// Voters that are here and current.
        current: usize,
        /// Voters after the step.
        voters: usize,
        /// Their majority.
        needed: usize,
    },
    /// Raft itself refused.
    #[error("{0}")]
    Refused(String),
    /// No outcome in time. *Unknown*: the change may still be made.
    #[error("deadline passed, outcome unknown")]
    Deadline,
    /// The leader lost its office with this on the way. *Unknown*.
    #[error("leadership was lost, outcome unknown")]
    Discarded,
    /// The group stopped.
    #[error("stopped")]
    Stopped {
        /// True when the change may still be made.
        unknown: bool,
    },
}

impl MemberError {
    /// True when this call can never change the membership.
    #[must_use]
    pub fn certainly_not_changed(&self) -> bool {
        !matches!(self, Self::Deadline | Self::Discarded | Self::Stopped { unknown: true })
    }
}
