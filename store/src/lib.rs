//! Files and state of one group: the CommitLog, the ConsumeQueues, the key-value state and their checkpoint.
//!
//! Knows bytes, offsets, frames and items. Does not know messages, Raft's rules, clocks or tokio: every call is
//! synchronous, and what has to wait for a disk says so.

mod checkpoint;
pub mod commit_log;
pub mod consume_queue;
mod data_lock;
pub mod error;
mod flush;
pub mod fs;
mod group_files;
pub mod item;
mod log_index;
mod position;
mod segment;
pub mod snapshot;
pub mod state;

pub use checkpoint::{
    Backend, CheckpointPin, CheckpointPolicy, CheckpointRecord, PendingCheckpoint, PinnedFile, QueueRange,
    StateStore,
};
pub use commit_log::{
    AppendEntry, CommitLog, CommitLogConfig, DamageCallback, FRAME_HEADER_LEN, FlushCallback,
    FlushedWatermark, FrameKind, FrameRun, ItemRead, LogEntry, PlacedEntry, RecoveryReport, SegmentSummary,
    SegmentWriter,
};
pub use consume_queue::{QueueConfig, QueueId, QueueTable, Unit};
pub use data_lock::DataLock;
pub use error::{Result, StoreError};
pub use fs::{FileSystem, OsFileSystem};
pub use group_files::{DamagedRange, GroupFiles, GroupMeta, Intent, VoteRecord};
pub use item::{BodyBuilder, EncodedItem, FrameBody, ItemView, items};
pub use position::{EntryId, LogIndex, LogOffset, QueueOffset, Term};
pub use state::{Change, MemoryState, State, WriteBatch};
