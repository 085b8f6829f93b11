//! The CommitLog: the Raft log of a group, which is where its messages lie.
mod entry;
mod frame;
mod watermark;

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::group_files::{GroupFiles, VoteRecord};
use crate::{EntryId, LogIndex, LogOffset, StoreError};

pub use entry::{
    AppendEntry, CommitLogConfig, FlushCallback, FrameKind, ItemRead, LogEntry, PlacedEntry, RecoveryReport,
};
pub use frame::FRAME_HEADER_LEN;
pub use watermark::FlushedWatermark;

/// Handle of an open log. Clones share it; the last one that is dropped stops the writer.
#[derive(Clone)]
pub struct CommitLog {
    mark: Arc<watermark::Watermark>,
}

#[expect(missing_docs, clippy::missing_errors_doc, unused_variables, reason = "replaced by the next change")]
impl CommitLog {
    pub fn open(files: Arc<GroupFiles>, config: CommitLogConfig, checkpointed: Option<EntryId>) -> Result<(Self, RecoveryReport)> {
        Err(StoreError::Stopped)
    }
    pub fn append(&self, entries: Vec<AppendEntry>, done: FlushCallback) -> Result<()> {
        Err(StoreError::Stopped)
    }
    pub fn save_vote(&self, vote: VoteRecord, done: FlushCallback) {}
    pub fn truncate_after(&self, last: Option<LogIndex>, done: FlushCallback) {}
    pub fn purge(&self, upto: EntryId, done: FlushCallback) {}
    pub fn read(&self, from: LogIndex, to_exclusive: LogIndex, max_bytes: usize) -> Result<Vec<PlacedEntry>> {
        Err(StoreError::Stopped)
    }
    pub fn entry_id(&self, index: LogIndex) -> Option<EntryId> { None }
    pub fn first(&self) -> Option<EntryId> { None }
    pub fn last(&self) -> Option<EntryId> { None }
    pub fn purged(&self) -> Option<EntryId> { None }
    pub fn end(&self) -> LogOffset { LogOffset(0) }
    pub fn chain_at_end(&self) -> u32 { 0 }
    pub fn unflushed_bytes(&self) -> u64 { 0 }
    pub fn oldest_unflushed(&self) -> Option<Instant> { None }
    pub fn failed(&self) -> Option<StoreError> { None }
    pub fn stop(&self) {}
    pub fn watermark(&self) -> Arc<dyn FlushedWatermark> { Arc::clone(&self.mark) as Arc<dyn FlushedWatermark> }
    pub fn read_item(&self, body_offset: LogOffset) -> Result<ItemRead> { Err(StoreError::Stopped) }
    pub fn read_item_hot(&self, body_offset: LogOffset) -> Option<ItemRead> { None }
}
