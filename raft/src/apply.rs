//! The one inversion of this crate: what each server does with committed frames.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use mq_store::GroupMeta;
use mq_store::commit_log::{CommitLog, FrameKind};
use mq_store::fs::FileSystem;
use mq_store::{EntryId, GroupFiles, LogIndex, LogOffset};
use parking_lot::Mutex;

pub use crate::error::ApplyError;

/// A frame that is committed and flushed here.
#[derive(Clone, Debug)]
pub struct CommittedFrame {
    /// Items, membership or blank.
    pub kind: FrameKind,
    /// Its place in the log.
    pub id: EntryId,
    /// Physical offset of its first byte.
    pub offset: LogOffset,
    /// The proposer's store time in ms; 0 for membership and blank.
    pub store_time: u64,
    /// The group's lease time in ms; 0 for membership and blank.
    pub lease_time: u64,
    /// Items in it.
    pub count: u32,
    /// Its items, or the encoded membership (keep [`encode_membership`] of the frame).
    pub body: Bytes,
    /// Its value in the chain.
    pub head_crc: u32,
}

/// Answers of one frame, one per item, in order. They go to the proposer; on other replicas they are dropped.
pub type FrameResults = Vec<Bytes>;

/// State behind the log. Runs on a thread of its own, so that it may block.
///
/// Deterministic: equal frames give equal state on every replica. No clock, no randomness, no local settings.
pub trait Apply: Send + 'static {
    /// What the state holds after a restart; everything above it is applied again.
    ///
    /// # Errors
    /// The state cannot be read.
    fn applied(&self) -> Result<Option<EntryId>, ApplyError>;

    /// The body of the newest applied membership frame, as [`encode_membership`] made it from the frame.
    ///
    /// # Errors
    /// The state cannot be read.
    fn membership(&self) -> Result<Option<Bytes>, ApplyError>;

    /// Applies frames in log order and pushes one [`FrameResults`] per frame (empty for membership and blank).
    /// Every frame is flushed on this node. An implementation must store `encode_membership(frame)` of each
    /// membership frame together with the applied id.
    ///
    /// # Errors
    /// The state cannot go on; the group stops. A command that is rejected is a result, not an error.
    fn apply(&mut self, frames: &[CommittedFrame], results: &mut Vec<FrameResults>)
    -> Result<(), ApplyError>;

    /// Called about once a second, for what is done by time.
    ///
    /// # Errors
    /// The state cannot go on; the group stops.
    fn idle(&mut self) -> Result<(), ApplyError>;

    /// The last call: make durable what there is.
    ///
    /// # Errors
    /// It could not.
    fn stop(&mut self) -> Result<(), ApplyError>;
}

/// What the state is opened with.
#[derive(Clone, Debug)]
pub struct ApplyDeps {
    /// The group's log.
    pub log: CommitLog,
    /// Vote and meta of the group; a checkpoint records the vote.
    pub files: Arc<GroupFiles>,
    /// The group's folder.
    pub dir: PathBuf,
    /// Its identity.
    pub meta: GroupMeta,
    /// All file access.
    pub fs: Arc<dyn FileSystem>,
    /// What the state no longer needs of the log.
    pub retention: RetentionFloor,
}

/// A lower bound of the log, as the state has decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Entries up to here may leave the Raft log.
    pub upto: LogIndex,
    /// Bytes below this offset may leave the disk.
    pub offset: LogOffset,
}

/// Where [`Apply`] notes what it no longer needs of the log. It never falls. Clones share it; it outlives a restart of
/// the group in place.
///
/// It is noted only: the log stays whole as long as no snapshot can bring a member that is behind up to it.
#[derive(Clone, Debug, Default)]
pub struct RetentionFloor {
    noted: Arc<Mutex<Option<Floor>>>,
}

impl RetentionFloor {
    /// Entries up to `upto` and bytes below `offset` are not needed any more. Each of the two only rises.
    pub fn raise(&self, upto: LogIndex, offset: LogOffset) {
        let mut noted = self.noted.lock();
        let before = noted.unwrap_or(Floor { upto, offset });
        *noted = Some(Floor { upto: before.upto.max(upto), offset: before.offset.max(offset) });
    }

    /// The greatest floor so far.
    #[must_use]
    pub fn noted(&self) -> Option<Floor> {
        *self.noted.lock()
    }
}

/// What [`Apply`] keeps of a membership frame: `{term u64, index u64}` little-endian, then the frame's body.
#[must_use]
pub fn encode_membership(frame: &CommittedFrame) -> Bytes {
    store_membership(frame.id, &frame.body)
}

pub(crate) fn store_membership(id: EntryId, body: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&id.term.0.to_le_bytes());
    out.extend_from_slice(&id.index.0.to_le_bytes());
    out.extend_from_slice(body);
    out.into()
}

/// Takes apart what [`encode_membership`] made.
pub(crate) fn decode_membership(stored: &Bytes) -> Option<(EntryId, Bytes)> {
    let term = u64::from_le_bytes(stored.get(0..8)?.try_into().ok()?);
    let index = u64::from_le_bytes(stored.get(8..16)?.try_into().ok()?);
    Some((EntryId::new(term, index), stored.slice(16..)))
}

/// Opens the state once the log is there, and again after each restart of the group in place; the state opened before was
/// dropped by then.
pub type MakeApply = Arc<dyn Fn(ApplyDeps) -> Result<Box<dyn Apply>, ApplyError> + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_never_falls() {
        let floor = RetentionFloor::default();
        assert_eq!(floor.noted(), None);
        floor.raise(LogIndex(7), LogOffset(100));
        floor.clone().raise(LogIndex(5), LogOffset(200));
        assert_eq!(floor.noted(), Some(Floor { upto: LogIndex(7), offset: LogOffset(200) }));
    }
}
