//! One unit of a ConsumeQueue, in RocketMQ's layout.
//!
//! ```text
//! 0        8      12              20
//! +--------+------+---------------+
//! | offset | size | tag hash      |   big-endian
//! +--------+------+---------------+
//! ```
//!
//! * `offset`: CommitLog offset of the item's body (its header lies 16 bytes before it and says whether the body is a
//!   record or a pointer).
//! * `size`: the record's own total size, without item header, trailer and padding; for a pointer that of its target.
//! * `tag hash`: Java's `String.hashCode` of the tag, 0 without one.
//!
//! What always holds: a unit is a function of the log up to the entry that made it, so queue files are equal byte by
//! byte on all replicas.

use crate::LogOffset;

/// Bytes of one unit.
pub const UNIT_LEN: usize = 20;

/// One unit of a ConsumeQueue: where a message lies, how long it is, and what it can be filtered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unit {
    /// CommitLog offset of the item's body.
    pub offset: LogOffset,
    /// Total size of the record in bytes.
    pub size: u32,
    /// Hash of the tag; what a tag filter compares first.
    pub tag_hash: i64,
}

impl Unit {
    /// The 20 bytes of the file.
    #[must_use]
    pub fn encode(&self) -> [u8; UNIT_LEN] {
        let mut bytes = [0; UNIT_LEN];
        bytes[..8].copy_from_slice(&self.offset.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tag_hash.to_be_bytes());
        bytes
    }

    /// Reads what [`Unit::encode`] wrote.
    #[must_use]
    pub fn decode(bytes: &[u8; UNIT_LEN]) -> Self {
        let [o0, o1, o2, o3, o4, o5, o6, o7, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7] = *bytes;
        Self {
            offset: LogOffset(u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7])),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
            tag_hash: i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
        }
    }
}

/// Reads a run of whole units; a rest shorter than a unit is ignored.
pub(crate) fn decode_run(bytes: &[u8]) -> impl Iterator<Item = Unit> + '_ {
    bytes.as_chunks::<UNIT_LEN>().0.iter().map(Unit::decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_has_rocketmq_layout() {
        let unit = Unit { offset: LogOffset(0x0102_0304_0506_0708), size: 0x0a0b_0c0d, tag_hash: -2 };
        let bytes = unit.encode();
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 255, 255, 255, 255, 255, 255, 255, 254],
            "offset, size, tag hash, each big-endian"
        );
        assert_eq!(Unit::decode(&bytes), unit);
    }

    #[test]
    fn run_ignores_a_torn_rest() {
        let unit = Unit { offset: LogOffset(7), size: 9, tag_hash: 11 };
        let mut bytes = unit.encode().to_vec();
        bytes.extend_from_slice(&[1; UNIT_LEN - 1]);
        assert_eq!(decode_run(&bytes).collect::<Vec<_>>(), vec![unit]);
    }
}
