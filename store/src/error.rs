//! What can go wrong in the store. A variant exists where a caller acts differently on it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::consume_queue::QueueId;
use crate::{LogIndex, LogOffset, QueueOffset};

/// Result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A failure of the store. Cheap to clone: one failed write is told to everybody who waits for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused a call. A failed write or sync is final for the process: it is never retried.
    #[error("{op} {}: {source}", path.display())]
    Io {
        /// The call, e.g. `fdatasync`.
        op: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Bytes on disk are not what was written there. Never repaired silently.
    #[error("damage in {} at byte {offset}: expected {expected}, found {found}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What has to stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A range of the log is damaged, and readable frames on both ends say what must stand there: a member of the group
    /// that has these frames can give them back ([`crate::commit_log::repair`]).
    #[error(
        "damage in {}, log bytes {from} to {to} behind chain value {chain_before:08x}: expected {expected}, found {found}; \
         the range has to be fetched from another member of the group, or this member replaced",
        path.display()
    )]
    Damaged {
        /// The segment that the range begins in.
        path: PathBuf,
        /// First byte of the damaged frames.
        from: LogOffset,
        /// Where the log is readable again.
        to: LogOffset,
        /// head_crc of the frame before the range.
        chain_before: u32,
        /// prev_crc of the frame behind the range.
        chain_after: u32,
        /// What has to stand at `from`.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// No checkpoint of the state can be used. It is fetched from another member, never started empty.
    #[error(
        "the state of {} cannot be used: {}: expected {expected}, found {found}; it has to come from another member of \
         the group",
        checkpoint.display(), file.display()
    )]
    StateDamaged {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The damaged file.
        file: PathBuf,
        /// What has to be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A replica's chain value differs: the logs differ somewhere below this entry. Nothing was appended.
    #[error(
        "entry {index} has head_crc {found:08x} here, the leader says {expected:08x}: the logs differ below it"
    )]
    Divergence {
        /// The entry that does not fit.
        index: LogIndex,
        /// The sender's head_crc.
        expected: u32,
        /// The head_crc that results here.
        found: u32,
    },
    /// The entry is not in the log: purged, cut off, or not yet there.
    #[error("entry {index} is not in the log, which holds [{first}, {end})")]
    Missing {
        /// The entry asked for.
        index: LogIndex,
        /// First index that is held.
        first: LogIndex,
        /// Index after the last one that is held.
        end: LogIndex,
    },
    /// An appended entry does not follow the last one. Nothing was appended.
    #[error("entry {found} cannot follow: the log goes on at {expected}")]
    NotNext {
        /// The index that has to come next.
        expected: LogIndex,
        /// The index that came.
        found: LogIndex,
    },
    /// A value is above its limit. Nothing was changed.
    #[error("{what} is {value}, the limit is {limit}")]
    Limit {
        /// What was measured.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The greatest that is allowed.
        limit: u64,
    },
    /// Another process uses this data folder.
    #[error("{} is locked by another process", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The folder belongs to something else than what was asked for.
    #[error("{}: {what} is {found:?} there, {expected:?} was asked for", path.display())]
    Identity {
        /// The file that says so.
        path: PathBuf,
        /// Which part of the identity.
        what: &'static str,
        /// What the caller expects.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A position below the first one that a ConsumeQueue still holds.
    #[error("queue {queue} begins at {minimum}, {found} was asked for")]
    BelowMinimum {
        /// The queue.
        queue: QueueId,
        /// Its first position.
        minimum: QueueOffset,
        /// The position asked for.
        found: QueueOffset,
    },
    /// The log was stopped, or its writer is gone.
    #[error("the log is stopped")]
    Stopped,
}

impl StoreError {
    /// An error of the operating system, with the call and the path.
    #[must_use]
    pub fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { op, path: path.to_path_buf(), source: Arc::new(source) }
    }

    /// Damage, with where it is.
    #[must_use]
    pub fn corrupt(path: &Path, offset: u64, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_path_buf(), offset, expected: expected.into(), found: found.into() }
    }

    /// True if the file or folder does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
