//! Files and state of one group: the CommitLog, the ConsumeQueues, the key-value state and their checkpoint.
//!
//! Knows bytes, offsets, frames and items. Does not know messages, Raft's rules, clocks or tokio: every call is
//! synchronous, and what has to wait for a disk says so.

mod position;

pub use position::{EntryId, LogIndex, LogOffset, QueueOffset, Term};
