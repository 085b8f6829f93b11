//! What goes into the log and what comes out of it.

use bytes::Bytes;

use crate::error::StoreError;
use crate::{EntryId, LogIndex, LogOffset, Term};

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Items: messages and commands.
    Items = 1,
    /// A membership of the Raft group.
    Membership = 2,
    /// Nothing: a leader's first entry.
    Blank = 3,
}

impl FrameKind {
    /// The kind of that number.
    #[must_use]
    pub const fn from_u8(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Items),
            2 => Some(Self::Membership),
            3 => Some(Self::Blank),
            _ => None,
        }
    }
}

/// One Raft entry, without its place. Equal on all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// What the body is.
    pub kind: FrameKind,
    /// Flags of the frame.
    pub flags: u8,
    /// Term of the proposer.
    pub term: Term,
    /// Place in the log.
    pub index: LogIndex,
    /// The proposer's wall clock, ms since 1970, never below that of the last frame; 0 for blank and membership.
    pub store_time: u64,
    /// The group's lease time, ms; 0 for blank and membership.
    pub lease_time: u64,
    /// Items in the body.
    pub count: u32,
    /// The body without padding.
    pub body: Bytes,
    /// crc32c of `body`, made by the proposer. The log trusts it on append and checks it on reads from disk.
    pub body_crc: u32,
}

impl LogEntry {
    /// An entry without items and times; computes the body's CRC.
    #[must_use]
    pub fn new(kind: FrameKind, id: EntryId, body: Bytes) -> Self {
        let body_crc = crc32c::crc32c(&body);
        Self {
            kind,
            flags: 0,
            term: id.term,
            index: id.index,
            store_time: 0,
            lease_time: 0,
            count: 0,
            body,
            body_crc,
        }
    }

    /// Term and index.
    #[must_use]
    pub const fn id(&self) -> EntryId {
        EntryId { term: self.term, index: self.index }
    }
}

/// An entry with its place and its link of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedEntry {
    /// The entry.
    pub entry: LogEntry,
    /// Offset of the frame's first byte.
    pub offset: LogOffset,
    /// head_crc of the frame before.
    pub prev_crc: u32,
    /// Checksum of this frame's header, and so of everything before it.
    pub head_crc: u32,
}

/// An entry to append.
#[derive(Clone, Debug)]
pub struct AppendEntry {
    /// The entry.
    pub entry: LogEntry,
    /// On a follower: the leader's head_crc. A different one here is [`StoreError::Divergence`].
    pub expected_head_crc: Option<u32>,
}

/// An item found by its place, checked against its own CRC and its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRead {
    /// Kind of the item.
    pub kind: u8,
    /// Flags of the item.
    pub flags: u8,
    /// Version of the kind's body.
    pub version: u16,
    /// The item's body without padding.
    pub body: Bytes,
    /// The frame it lies in.
    pub frame_offset: LogOffset,
    /// Term of that frame.
    pub term: Term,
    /// Index of that frame.
    pub index: LogIndex,
    /// Store time of that frame.
    pub store_time: u64,
    /// Lease time of that frame.
    pub lease_time: u64,
}

/// Told once: Ok, on the writer thread and in the order of the calls, when what was asked for survives a power cut. After a
/// failure everything that waits is told of it; what is asked for later is refused at once on the caller's thread. It must
/// be short and must not call back into the log's blocking calls.
pub type FlushCallback = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Sizes of one log.
#[derive(Clone, Debug)]
pub struct CommitLogConfig {
    /// Bytes of a segment; a constant of the group, multiple of 8, at least the frame limit.
    pub segment_size: u64,
    /// Greatest frame with header and padding, bytes; a constant of the group. Default 8 MiB.
    pub frame_limit: u32,
    /// Newest entries kept in memory, bytes; what is not flushed yet is kept beyond it. Default 16 MiB.
    pub ring_bytes: usize,
    /// Greatest write batch, bytes; at most (and by default) 16 MiB, at least the frame limit.
    pub write_batch_bytes: usize,
    /// prev_crc of the first frame: crc32c of the group UUID.
    pub chain_start: u32,
}

impl Default for CommitLogConfig {
    fn default() -> Self {
        Self {
            segment_size: 1 << 30,
            frame_limit: 8 << 20,
            ring_bytes: 16 << 20,
            write_batch_bytes: 16 << 20,
            chain_start: 0,
        }
    }
}

/// What a checkpoint says of the log: entries up to here were durable, and may not be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The checkpoint's newest entry.
    pub last: EntryId,
    /// Where its frame ends, and its head_crc. With it, a log that ends below is [`StoreError::Damaged`], which another
    /// member's frames repair; without it [`StoreError::Corrupt`].
    pub end: Option<(LogOffset, u32)>,
}

impl From<EntryId> for Covered {
    fn from(last: EntryId) -> Self {
        Self { last, end: None }
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments of the log.
    pub segments: usize,
    /// Those of them that were not read, because a checkpoint covers them and their index files fit.
    pub skipped: usize,
    /// Frames accepted.
    pub frames: u64,
    /// End of the log.
    pub end: LogOffset,
    /// Last entry accepted.
    pub last: Option<EntryId>,
    /// Bytes of an unfinished write batch that were zeroed behind the end.
    pub torn_bytes: u64,
    /// An open truncation was finished.
    pub finished_truncation: bool,
}
