//! Keys and values of the broker group's key-value state.
//!
//! All numbers are big-endian, so that keys sort by their numbers. Names and settings of topics and groups are
//! protobuf; what is written per message has a fixed layout:
//!
//! ```text
//! family            key                                                        value
//! ----------------- ---------------------------------------------------------- ------------------------------------
//! topics            topic id u32                                               TopicRecord (protobuf)
//! groups            group id u32                                               GroupRecord (protobuf)
//! queues            topic u32, incarnation u32, queue u32                      next queue offset u64
//! cursors           group u32, incarnation u32, topic u32, inc. u32, queue u32 next position to hand out u64
//! in_flight         the same 20 bytes, position u64                            see `delivery::InFlight`
//! producers         producer id u64                                            see `producers::Producer`
//! producer_results  producer id u64, log index u64                             {sequence u64, place 36 bytes}*
//! repeats           log index u64                                              see `repeats`
//! meta              "feature_level"                                            u32
//!
//! place             topic u32, incarnation u32, queue u32, queue offset u64, item offset u64, store time u64
//! ```
//!
//! What always holds:
//! * Keys and values are a function of the log up to the applied entry, whatever the grouping into apply calls.
//! * Ids of topics and groups count up from 1 without holes and are never taken away from a name.
//! * `queues` has an entry for each queue of each living topic and for no other.
//! * `cursors` and `in_flight` name living topics and groups only; a position in flight lies below its cursor.

use mq_store::{LogOffset, QueueId, QueueOffset};

/// Families of the state, in the order of their numbers.
pub const FAMILIES: &[&str] = &[
    "topics",
    "groups",
    "queues",
    "cursors",
    "in_flight",
    "producers",
    "producer_results",
    "repeats",
    "meta",
];

pub(crate) const TOPICS: usize = 0;
pub(crate) const GROUPS: usize = 1;
pub(crate) const QUEUES: usize = 2;
pub(crate) const CURSORS: usize = 3;
pub(crate) const IN_FLIGHT: usize = 4;
pub(crate) const PRODUCERS: usize = 5;
pub(crate) const PRODUCER_RESULTS: usize = 6;
pub(crate) const REPEATS: usize = 7;
pub(crate) const META: usize = 8;

pub(crate) const FEATURE_LEVEL: &[u8] = b"feature_level";

/// Reads big-endian numbers from the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a>(pub &'a [u8]);

impl<'a> Numbers<'a> {
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*head))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*head))
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (head, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn queue(&mut self) -> Option<QueueId> {
        Some(QueueId { topic_id: self.u32()?, incarnation: self.u32()?, queue: self.u32()? })
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

pub(crate) const QUEUE_KEY_LEN: usize = 12;

pub(crate) fn queue_key(queue: QueueId) -> [u8; QUEUE_KEY_LEN] {
    let mut key = [0; QUEUE_KEY_LEN];
    key[..4].copy_from_slice(&queue.topic_id.to_be_bytes());
    key[4..8].copy_from_slice(&queue.incarnation.to_be_bytes());
    key[8..].copy_from_slice(&queue.queue.to_be_bytes());
    key
}

/// One life of a subscription group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupRef {
    pub id: u32,
    pub incarnation: u32,
}

/// Progress of one group in one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProgressKey {
    pub group: GroupRef,
    pub queue: QueueId,
}

pub(crate) const CURSOR_KEY_LEN: usize = 8 + QUEUE_KEY_LEN;
pub(crate) const IN_FLIGHT_KEY_LEN: usize = CURSOR_KEY_LEN + 8;

impl ProgressKey {
    pub(crate) fn encode(&self) -> [u8; CURSOR_KEY_LEN] {
        let mut key = [0; CURSOR_KEY_LEN];
        key[..4].copy_from_slice(&self.group.id.to_be_bytes());
        key[4..8].copy_from_slice(&self.group.incarnation.to_be_bytes());
        key[8..].copy_from_slice(&queue_key(self.queue));
        key
    }

    pub(crate) fn with_position(&self, position: u64) -> [u8; IN_FLIGHT_KEY_LEN] {
        let mut key = [0; IN_FLIGHT_KEY_LEN];
        key[..CURSOR_KEY_LEN].copy_from_slice(&self.encode());
        key[CURSOR_KEY_LEN..].copy_from_slice(&position.to_be_bytes());
        key
    }

    pub(crate) fn decode(numbers: &mut Numbers<'_>) -> Option<Self> {
        let group = GroupRef { id: numbers.u32()?, incarnation: numbers.u32()? };
        Some(Self { group, queue: numbers.queue()? })
    }
}

pub(crate) const PLACE_LEN: usize = QUEUE_KEY_LEN + 24;

/// Where a message was stored; all that the answer to its repeat needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub queue: QueueId,
    pub queue_offset: QueueOffset,
    pub item_offset: LogOffset,
    pub store_time: u64,
}

impl Place {
    pub(crate) fn encode(&self) -> [u8; PLACE_LEN] {
        let mut bytes = [0; PLACE_LEN];
        bytes[..12].copy_from_slice(&queue_key(self.queue));
        bytes[12..20].copy_from_slice(&self.queue_offset.0.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.item_offset.0.to_be_bytes());
        bytes[28..].copy_from_slice(&self.store_time.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(numbers: &mut Numbers<'_>) -> Option<Self> {
        Some(Self {
            queue: numbers.queue()?,
            queue_offset: QueueOffset(numbers.u64()?),
            item_offset: LogOffset(numbers.u64()?),
            store_time: numbers.u64()?,
        })
    }
}

const _: () = assert!(CURSOR_KEY_LEN == 20 && IN_FLIGHT_KEY_LEN == 28 && PLACE_LEN == 36);

/// A value or key of the state that this version did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("state family {family:?} holds a key or value of another shape")]
pub struct BadState {
    /// The family.
    pub family: &'static str,
}

impl BadState {
    pub(crate) fn of(family: usize) -> Self {
        Self { family: FAMILIES.get(family).copied().unwrap_or("?") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_group_topic_queue_position() {
        let key = |group, queue| ProgressKey {
            group: GroupRef { id: group, incarnation: 1 },
            queue: QueueId { topic_id: 2, incarnation: 3, queue },
        };
        let sorted = [
            key(1, 1).with_position(1),
            key(1, 1).with_position(256),
            key(1, 256).with_position(0),
            key(256, 0).with_position(0),
        ];
        assert!(sorted.is_sorted(), "{sorted:?}");
        let mut numbers = Numbers(&sorted[1]);
        assert_eq!(ProgressKey::decode(&mut numbers), Some(key(1, 1)));
        assert_eq!(numbers.u64(), Some(256));
        assert!(numbers.rest().is_empty());
    }

    #[test]
    fn place_round_trips() {
        let place = Place {
            queue: QueueId { topic_id: 1, incarnation: 2, queue: 3 },
            queue_offset: QueueOffset(4),
            item_offset: LogOffset(5),
            store_time: 6,
        };
        let bytes = place.encode();
        assert_eq!(Place::decode(&mut Numbers(&bytes)), Some(place));
        assert_eq!(Place::decode(&mut Numbers(&bytes[..35])), None, "a short value is not a place");
    }
}
