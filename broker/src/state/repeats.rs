//! Repeated sends of clients that know nothing of P14: the window of send keys (P15).
//!
//! A value of family `repeats` holds what one frame stored, and is kept in memory as it is in the store:
//!
//! ```text
//! 0            8            16
//! +------------+------------+----------------------------------------------------------------------------+
//! | lease time | store time | {send key 16 bytes, topic u32, incarnation u32, queue u32,                 |
//! | u64        | u64        |  queue offset u64, item offset u64}*                       44 bytes each   |
//! +------------+------------+----------------------------------------------------------------------------+
//! big-endian; both times are those of the frame
//! ```
//!
//! What always holds:
//! * Frames leave in log order: when their lease time lies more than two minutes back, or when the frames behind them
//!   hold the last 1,000,000 stored sends.
//! * A key is compared in full before a send is called a repeat: a false repeat would be a lost message.
//! * Entries of deleted topics are gone. (They could match nothing: the key covers the topic's incarnation.)

use std::collections::VecDeque;

use mq_store::{LogOffset, QueueId, QueueOffset, State, StoreError, WriteBatch};
use rustc_hash::FxHashMap;

use super::keys::{BadState, Numbers, Place, REPEATS, queue_key};

/// Lease time, in milliseconds, for which a send is remembered.
pub const REPEAT_AGE_MS: u64 = 2 * 60 * 1_000;
/// Stored sends that are remembered at most (and one frame more).
pub const MAX_REPEATS: usize = 1_000_000;

const HEAD: usize = 16;
const ENTRY: usize = 44;

/// Names a send by client, message id, topic and content (D26).
pub(crate) type SendKey = [u8; 16];

#[derive(Debug)]
struct Frame {
    index: u64,
    lease_time: u64,
    /// The value in the store; empty when a deleted topic took all entries away.
    value: Vec<u8>,
}

impl Frame {
    fn entries(&self) -> usize {
        self.value.len().saturating_sub(HEAD) / ENTRY
    }

    fn entry(&self, item: usize) -> Option<&[u8; ENTRY]> {
        self.value.get(HEAD..)?.as_chunks::<ENTRY>().0.get(item)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Running number of the frame.
    frame: u64,
    item: u32,
}

/// The window of stored sends.
#[derive(Debug)]
pub(crate) struct Repeats {
    frames: VecDeque<Frame>,
    /// Running number of the first frame.
    first: u64,
    /// By the first 8 bytes of the key. Of two keys that begin alike the later one is found.
    slots: FxHashMap<u64, Slot>,
    entries: usize,
    max: usize,
    open: Vec<u8>,
    store_time: u64,
}

fn prefix(key: &[u8]) -> u64 {
    key.first_chunk::<8>().map_or(0, |head| u64::from_be_bytes(*head))
}

fn topic_of(entry: &[u8; ENTRY]) -> u32 {
    u32::from_be_bytes([entry[16], entry[17], entry[18], entry[19]])
}

impl Repeats {
    pub(crate) fn load(state: &dyn State, max: usize) -> Result<Result<Self, BadState>, StoreError> {
        let mut loaded = Self {
            frames: VecDeque::new(),
            first: 0,
            slots: FxHashMap::default(),
            entries: 0,
            max,
            open: Vec::new(),
            store_time: 0,
        };
        let mut good = true;
        state.scan(REPEATS, &[], None, &mut |key, value| {
            let whole = value.len() > HEAD && (value.len() - HEAD).is_multiple_of(ENTRY);
            match (Numbers(key).u64(), Numbers(value).u64()) {
                (Some(index), Some(lease_time)) if whole => {
                    loaded.push(Frame { index, lease_time, value: value.to_vec() });
                }
                _ => good = false,
            }
            good
        })?;
        Ok(if good { Ok(loaded) } else { Err(BadState::of(REPEATS)) })
    }

    fn push(&mut self, frame: Frame) {
        let number = self.first + self.frames.len() as u64;
        for (item, entry) in frame.value[HEAD..].as_chunks::<ENTRY>().0.iter().enumerate() {
            self.slots.insert(prefix(entry), Slot { frame: number, item: item as u32 });
        }
        self.entries += frame.entries();
        self.frames.push_back(frame);
    }

    /// Forgets what is too old for a frame of this lease time. Called before a frame's items.
    pub(crate) fn begin_frame(&mut self, lease_time: u64, store_time: u64, batch: &mut WriteBatch) {
        while self.frames.front().is_some_and(|frame| frame.lease_time + REPEAT_AGE_MS < lease_time) {
            self.forget_first(batch);
        }
        self.store_time = store_time;
    }

    fn forget_first(&mut self, batch: &mut WriteBatch) {
        let Some(frame) = self.frames.pop_front() else { return };
        let number = self.first;
        self.first += 1;
        if frame.value.is_empty() {
            return;
        }
        self.entries -= frame.entries();
        for (item, entry) in frame.value[HEAD..].as_chunks::<ENTRY>().0.iter().enumerate() {
            let (key, slot) = (prefix(entry), Slot { frame: number, item: item as u32 });
            if self.slots.get(&key) == Some(&slot) {
                self.slots.remove(&key);
            }
        }
        batch.delete(REPEATS, &frame.index.to_be_bytes());
    }

    /// Where the send of this key was stored, if it is remembered.
    pub(crate) fn find(&self, key: &SendKey) -> Option<Place> {
        let slot = self.slots.get(&prefix(key))?;
        let number = slot.frame - self.first;
        let (entry, store_time) = match self.frames.get(usize::try_from(number).ok()?) {
            Some(frame) => {
                let time = Numbers(frame.value.get(8..16)?).u64()?;
                (frame.entry(slot.item as usize)?, time)
            }
            None => (self.open.as_chunks::<ENTRY>().0.get(slot.item as usize)?, self.store_time),
        };
        let mut numbers = Numbers(&entry[16..]);
        (entry[..16] == key[..]).then_some(Place {
            queue: numbers.queue()?,
            queue_offset: QueueOffset(numbers.u64()?),
            item_offset: LogOffset(numbers.u64()?),
            store_time,
        })
    }

    /// Notes a stored send of the frame being applied.
    pub(crate) fn stored(&mut self, key: &SendKey, queue: QueueId, offset: QueueOffset, item: LogOffset) {
        let slot =
            Slot { frame: self.first + self.frames.len() as u64, item: (self.open.len() / ENTRY) as u32 };
        self.open.extend_from_slice(key);
        self.open.extend_from_slice(&queue_key(queue));
        self.open.extend_from_slice(&offset.0.to_be_bytes());
        self.open.extend_from_slice(&item.0.to_be_bytes());
        self.slots.insert(prefix(key), slot);
    }

    /// Writes what the frame stored. Called after a frame's items.
    pub(crate) fn end_frame(&mut self, index: u64, lease_time: u64, batch: &mut WriteBatch) {
        if self.open.is_empty() {
            return;
        }
        let mut value = Vec::with_capacity(HEAD + self.open.len());
        value.extend_from_slice(&lease_time.to_be_bytes());
        value.extend_from_slice(&self.store_time.to_be_bytes());
        value.append(&mut self.open);
        batch.put(REPEATS, &index.to_be_bytes(), &value);
        let frame = Frame { index, lease_time, value };
        self.entries += frame.entries();
        self.frames.push_back(frame);
        while self.frames.front().is_some_and(|first| self.entries - first.entries() >= self.max) {
            self.forget_first(batch);
        }
    }

    /// Drops all entries of a topic that is deleted.
    pub(crate) fn remove_topic(&mut self, topic_id: u32, batch: &mut WriteBatch) {
        let gone = |entry: &[u8; ENTRY]| topic_of(entry) == topic_id;
        let touched =
            |value: &[u8]| value.get(HEAD..).is_some_and(|rest| rest.as_chunks::<ENTRY>().0.iter().any(gone));
        for frame in self.frames.iter_mut().filter(|frame| touched(&frame.value)) {
            let before = frame.entries();
            let mut kept = frame.value[..HEAD].to_vec();
            let rest = frame.value[HEAD..].as_chunks::<ENTRY>().0;
            rest.iter().filter(|entry| !gone(entry)).for_each(|entry| kept.extend_from_slice(entry));
            if kept.len() == HEAD {
                kept.clear();
                batch.delete(REPEATS, &frame.index.to_be_bytes());
            } else {
                batch.put(REPEATS, &frame.index.to_be_bytes(), &kept);
            }
            frame.value = kept;
            self.entries -= before - frame.entries();
        }
        let open = std::mem::take(&mut self.open);
        open.as_chunks::<ENTRY>().0.iter().filter(|entry| !gone(entry)).for_each(|entry| {
            self.open.extend_from_slice(entry);
        });
        self.find_slots_again();
    }

    fn find_slots_again(&mut self) {
        self.slots.clear();
        let frames = self.frames.iter().map(|frame| frame.value.get(HEAD..).unwrap_or_default());
        for (number, entries) in (self.first..).zip(frames.chain([self.open.as_slice()])) {
            for (item, entry) in entries.as_chunks::<ENTRY>().0.iter().enumerate() {
                self.slots.insert(prefix(entry), Slot { frame: number, item: item as u32 });
            }
        }
    }
}
