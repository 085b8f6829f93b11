//! The CommitLog: the Raft log of a group, which is where its messages lie.
//!
//! ```text
//!  append -> place, chain, ring, index (readable now) -> queue -> writer thread: pwritev, fdatasync -> callbacks in order
//! ```
//!
//! What always holds:
//! - A frame's place is a function of the end of the one before and of its own size ([`frame`]), so offsets are equal on all
//!   replicas; the chain of checksums proves it. Frames never change after append.
//! - Appends, votes, truncations and purges reach the disk in the order of the calls, and their callbacks come in that order,
//!   each after the fdatasync that covers it.
//! - One write batch never spans two segments and has at most 16 MiB; the one before it is synced first. So at most one
//!   unsynced batch is on the way, which is what recovery relies on ([`recover`]).
//! - Appended ones that are not flushed are read from memory only; flushed ones from the files, if they left the ring.
//! - A failed write or sync is final: everything pending and everything later gets that error, until the process restarts.

mod damage;
mod drop;
mod entry;
mod export;
pub(crate) mod frame;
mod frames;
mod handle;
mod read;
mod recover;
mod ring;
mod scan;
pub(crate) mod sealed;
pub(crate) mod tail;
pub(crate) mod watermark;

pub use damage::{DamageCallback, repair};
pub use entry::{
    AppendEntry, CommitLogConfig, Covered, FlushCallback, FrameKind, ItemRead, LogEntry, PlacedEntry,
    RecoveryReport,
};
pub use frame::FRAME_HEADER_LEN;
pub use frames::{FrameRun, SegmentSummary, SegmentWriter, check_frames};
pub use handle::CommitLog;
pub(crate) use handle::Shared;
pub use watermark::FlushedWatermark;

/// Greatest write batch. Recovery looks that far for what may stand behind a torn frame.
pub(crate) const WRITE_BATCH_MAX: usize = 16 << 20;
