//! Raft fitted to our log, network and state: one [`RaftGroup`] per group that a process takes part in, used by name
//! servers and brokers alike.
//!
//! Knows bodies, counts, clocks, members. Does not know topics, queues, messages or routes: what a committed frame
//! means is behind [`Apply`]. The only crate that names openraft, none of whose types leave it.

mod apply;
mod bootstrap;
mod clock;
mod config;
mod election;
mod error;
mod fatal;
mod group;
mod hot_window;
mod leadership;
mod log_storage;
mod members;
mod membership;
mod network;
mod proposer;
mod read;
mod repair;
mod responder;
#[cfg(feature = "testkit")]
mod restart;
mod start;
mod state_machine;
mod status;
#[cfg(feature = "testkit")]
pub mod testkit;
mod transfer;
mod types;
mod view;
mod vote;
mod watchdog;

pub use apply::{
    Apply, ApplyDeps, CommittedFrame, Floor, FrameResults, MakeApply, RetentionFloor, encode_membership,
};
pub use config::{Deps, GroupConfig, Limits, MAX_FRAME, MemberConfig, NodeId, Role, Timers};
pub use error::{
    ApplyError, Fatal, IdentityMismatch, MemberError, ProposeError, ReadError, StartError, TransferError,
    exit_of_store,
};
pub use group::RaftGroup;
#[cfg(feature = "testkit")]
pub use network::faults::Faults;
pub use network::transport::Transport;
pub use proposer::Proposed;
pub use view::{GroupState, GroupStatusView, LeaderInfo, Leadership, MemberView};
