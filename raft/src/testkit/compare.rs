//! Are the replicas' logs equal, frame by frame?

use mq_store::commit_log::{CommitLog, PlacedEntry};
use mq_store::{LogIndex, StoreError};

/// The first frame that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its index.
    pub index: u64,
    /// The replica, by its place in the list.
    pub replica: usize,
    /// What it has.
    pub found: Option<Box<PlacedEntry>>,
    /// What the first replica has.
    pub expected: Option<Box<PlacedEntry>>,
}

/// Compares all frames up to `upto`: term, kind, times, body, place, chain. The frames, if they are equal.
///
/// # Errors
/// The first difference; a frame that cannot be read counts as missing.
pub fn common_log(logs: &[CommitLog], upto: u64) -> Result<Vec<PlacedEntry>, Difference> {
    let mut frames = Vec::new();
    for index in 0..=upto {
        let mut read = logs.iter().map(|log| frame(log, index).ok().flatten());
        let expected = read.next().flatten();
        for (place, found) in read.enumerate() {
            if found != expected || found.is_none() {
                let (found, expected) = (found.map(Box::new), expected.map(Box::new));
                return Err(Difference { index, replica: place + 1, found, expected });
            }
        }
        frames.extend(expected);
    }
    Ok(frames)
}

fn frame(log: &CommitLog, index: u64) -> Result<Option<PlacedEntry>, StoreError> {
    Ok(log.read(LogIndex(index), LogIndex(index + 1), 1)?.into_iter().next())
}
