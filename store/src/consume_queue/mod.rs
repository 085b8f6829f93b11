//! ConsumeQueues: for each MessageQueue the places of its messages in the CommitLog, in the order consumers see them.
//!
//! ```text
//! <group>/consumequeue/<topic id>-<incarnation>/<queue>/00000000000000000000   300,000 units of 20 bytes
//!                                                       00000000000006000000   name = 20 digits, position of its
//!                                                                              first byte in the queue
//! unit k lies at byte (k mod 300,000) * 20 of the file that begins with unit k - (k mod 300,000)
//! ```
//!
//! What always holds:
//! * `min <= published <= appended`. Only the apply thread appends and publishes; readers see what is published, and
//!   nothing published changes while the process runs.
//! * Bytes of a file behind the published units are unread, and after a restart untrusted: everything behind the next
//!   offsets of the state's checkpoint is cut ([`QueueTable::cut`]) and made again from the log.
//! * What lies before a checkpoint's next offsets was synced before that checkpoint became valid, so a queue that is
//!   shorter has lost bytes and is refused.
//! * Files of a removed topic incarnation, and those below a raised minimum, stay as long as a kept checkpoint needs
//!   them: a restart from the older one finds its queues as it left them.

mod cut;
mod files;
mod queue;
mod table;
mod unit;
mod writer;

pub use table::{QueueConfig, QueueTable};
pub use unit::{UNIT_LEN, Unit};

use std::fmt;
use std::path::{Path, PathBuf};

use crate::checkpoint::QueueRange;
use files::{FileId, byte_of, file_path};

/// The files that hold the units of these ranges, below the group's folder, with their valid bytes.
pub(crate) fn pinned_files(ranges: &[QueueRange]) -> impl Iterator<Item = (PathBuf, u64)> + '_ {
    ranges.iter().filter(|range| range.min < range.next).flat_map(|range| {
        let (first, last) = (FileId::of(range.id, range.min.0), FileId::of(range.id, range.next.0 - 1));
        let next = range.next.0;
        (first.number..=last.number).map(move |number| {
            let file = FileId { queue: range.id, number };
            let len = if number < last.number || next.is_multiple_of(UNITS_PER_FILE) {
                FILE_LEN
            } else {
                byte_of(next)
            };
            (file_path(Path::new("consumequeue"), file), len)
        })
    })
}

/// Units of one file.
pub const UNITS_PER_FILE: u64 = 300_000;

/// Bytes of one full file.
pub const FILE_LEN: u64 = UNITS_PER_FILE * UNIT_LEN as u64;

/// Names a ConsumeQueue for ever: a topic that is deleted and made again has another incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    /// Id of the topic, given once for each name.
    pub topic_id: u32,
    /// Counts the creations of the topic.
    pub incarnation: u32,
    /// Number of the queue in the topic.
    pub queue: u32,
}

impl QueueId {
    /// Queue `queue` of that topic incarnation.
    #[must_use]
    pub fn new(topic_id: u32, incarnation: u32, queue: u32) -> Self {
        Self { topic_id, incarnation, queue }
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}/{}", self.topic_id, self.incarnation, self.queue)
    }
}
