//! A pointer: puts a record that the log already holds into a queue.
//!
//! ```text
//!  0  topic id 4 | incarnation 4 | queue 4     where it goes
//! 12  target size 4                            the record's total size; the unit's size
//! 16  target offset 8                          CommitLog offset of the target item's body
//! 24  tag hash 8                               signed; the unit's tag hash
//! 32  source kind 1 | zero 1 | source key length 2
//! 36  attempt 4                                laid over the record; 0 = leave it
//! 40  overlay length 4
//! 44  source key                               key of the state entry that this ends; the pointer is void without it
//!     overlay                                  properties laid over the record's, in the record's encoding
//! ```
//! Little-endian. Always: a target is a message item, never another pointer.

use crate::FormatError;
use crate::message::record::PROPERTIES_LIMIT;
use crate::reader::Reader;

/// Bytes of a pointer beside source key and overlay.
pub const HEAD_LEN: usize = 44;
/// Longest source key.
pub const SOURCE_KEY_LIMIT: usize = 1_024;

/// Why a record is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// A delayed message is due.
    Delay = 1,
    /// A transaction was committed.
    Transaction = 2,
    /// A delivery has no attempts left, or its client gave up.
    DeadLetter = 3,
    /// A client of the classic protocol sent it back.
    SendBack = 4,
}

impl TryFrom<u8> for Source {
    type Error = FormatError;

    fn try_from(value: u8) -> Result<Self, FormatError> {
        match value {
            1 => Ok(Self::Delay),
            2 => Ok(Self::Transaction),
            3 => Ok(Self::DeadLetter),
            4 => Ok(Self::SendBack),
            other => Err(FormatError::Value {
                what: "source kind of a pointer",
                found: u64::from(other),
                expected: "1 to 4",
            }),
        }
    }
}

/// A pointer, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// Topic it goes to.
    pub topic_id: u32,
    /// Life of that topic.
    pub incarnation: u32,
    /// Queue it goes to.
    pub queue: u32,
    /// Total size of the record.
    pub target_size: u32,
    /// CommitLog offset of the body of the message item.
    pub target_offset: u64,
    /// Tag hash of the unit.
    pub tag_hash: i64,
    /// Why it is placed.
    pub source: Source,
    /// Key of the state entry that this ends.
    pub source_key: &'a [u8],
    /// Attempt that a delivery begins to count from; 0 = the record's own.
    pub attempt: u32,
    /// Properties laid over the record's, encoded.
    pub overlay: &'a [u8],
}

impl<'a> Place<'a> {
    /// The body of the item.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        for (what, value, limit) in [
            ("source key of a pointer", self.source_key.len(), SOURCE_KEY_LIMIT),
            ("overlay of a pointer", self.overlay.len(), PROPERTIES_LIMIT),
        ] {
            if value > limit {
                return Err(FormatError::TooLong { what, value, limit });
            }
        }
        let mut out = Vec::with_capacity(HEAD_LEN + self.source_key.len() + self.overlay.len());
        out.extend_from_slice(&self.topic_id.to_le_bytes());
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.queue.to_le_bytes());
        out.extend_from_slice(&self.target_size.to_le_bytes());
        out.extend_from_slice(&self.target_offset.to_le_bytes());
        out.extend_from_slice(&self.tag_hash.to_le_bytes());
        out.extend_from_slice(&[self.source as u8, 0]);
        out.extend_from_slice(&(self.source_key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.attempt.to_le_bytes());
        out.extend_from_slice(&(self.overlay.len() as u32).to_le_bytes());
        debug_assert_eq!(out.len(), HEAD_LEN, "the drawing and the head agree");
        out.extend_from_slice(self.source_key);
        out.extend_from_slice(self.overlay);
        Ok(out)
    }

    /// Takes the body of an item of kind [`crate::command::PLACE`] apart.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        let topic_id = reader.u32_le("topic id")?;
        let incarnation = reader.u32_le("incarnation")?;
        let queue = reader.u32_le("queue")?;
        let target_size = reader.u32_le("target size")?;
        let target_offset = reader.u64_le("target offset")?;
        let tag_hash = reader.i64_le("tag hash")?;
        let source = Source::try_from(reader.u8("source kind")?)?;
        let zero = reader.u8("reserved byte of a pointer")?;
        if zero != 0 {
            return Err(FormatError::Value {
                what: "reserved byte of a pointer",
                found: u64::from(zero),
                expected: "0",
            });
        }
        let source_key_len = usize::from(reader.u16_le("source key length")?);
        let attempt = reader.u32_le("attempt")?;
        let overlay_len = reader.u32_le("overlay length")? as usize;
        let source_key = reader.take(source_key_len, "source key")?;
        let overlay = reader.take(overlay_len, "overlay")?;
        reader.end("pointer")?;
        Ok(Self {
            topic_id,
            incarnation,
            queue,
            target_size,
            target_offset,
            tag_hash,
            source,
            source_key,
            attempt,
            overlay,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place<'static> = Place {
        topic_id: 1,
        incarnation: 2,
        queue: 3,
        target_size: 4,
        target_offset: 5,
        tag_hash: -1,
        source: Source::DeadLetter,
        source_key: b"ab",
        attempt: 6,
        overlay: b"k\x01v\x02",
    };

    #[test]
    fn bytes_never_change() {
        let expected = [
            &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0][..],
            &[5, 0, 0, 0, 0, 0, 0, 0],
            &[0xFF; 8],
            &[3, 0, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0],
            b"ab",
            b"k\x01v\x02",
        ]
        .concat();
        assert_eq!(PLACE.encode().expect("within the limits"), expected);
    }

    #[test]
    fn too_long_source_key_is_refused() {
        let key = [0; SOURCE_KEY_LIMIT + 1];
        let error = Place { source_key: &key, ..PLACE }.encode();
        assert!(matches!(error, Err(FormatError::TooLong { value: 1_025, limit: 1_024, .. })), "{error:?}");
    }

    proptest! {
        #[test]
        fn pointer_round_trips(
            numbers in any::<(u32, u32, u32, u32, u64, i64, u32)>(), source in 1u8..=4,
            source_key in prop::collection::vec(any::<u8>(), 0..80), overlay in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let (topic_id, incarnation, queue, target_size, target_offset, tag_hash, attempt) = numbers;
            let place = Place {
                topic_id, incarnation, queue, target_size, target_offset, tag_hash,
                source: Source::try_from(source).expect("1 to 4"), source_key: &source_key, attempt, overlay: &overlay,
            };
            let bytes = place.encode().expect("within the limits");
            prop_assert_eq!(Place::parse(&bytes), Ok(place));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Place::parse(&bytes);
        }
    }
}
