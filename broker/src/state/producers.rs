//! Native producers (P14): which sequences of a producer are stored, and where.
//!
//! ```text
//! value of `producers`:        epoch u32, floor u64, last used: log index u64, lease time u64
//! value of `producer_results`: what one frame stored for one producer: {sequence u64, place 36 bytes}*
//! ```
//!
//! What always holds:
//! * Results belong to the stored epoch; all kept sequences lie in [floor, floor + 1,024).
//! * A frame's value is there as long as one of its sequences is at or above the floor.
//! * The least recently used producers go first, by log index and then by id; judged between frames only, so the
//!   outcome does not depend on how frames are grouped.

use std::collections::{BTreeMap, BTreeSet};

use mq_protocol::cluster::item_result::Code;
use mq_store::{State, StoreError, WriteBatch};

use super::keys::{BadState, Numbers, PLACE_LEN, PRODUCER_RESULTS, PRODUCERS, Place};
use super::message::Numbered;

/// Sequences that a producer may have outstanding: results are kept for this many above the floor.
pub const PRODUCER_WINDOW: u64 = 1_024;
/// Producers that are remembered.
pub const MAX_PRODUCERS: usize = 100_000;
/// Lease time, in milliseconds, for which an unused producer is remembered.
pub const PRODUCER_AGE_MS: u64 = 24 * 60 * 60 * 1_000;

/// What is to be done with a numbered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was not stored yet.
    New,
    /// It lies here.
    Repeat(Place),
    /// It is not stored.
    Refused(Code),
}

#[derive(Debug, Default)]
struct Producer {
    epoch: u32,
    floor: u64,
    last_index: u64,
    last_lease: u64,
    results: BTreeMap<u64, Place>,
    /// (highest sequence, log index) of the frames with results.
    frames: BTreeSet<(u64, u64)>,
    /// What the frame being applied stored.
    open: Vec<u64>,
    touched: bool,
}

/// All native producers of a broker group.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    by_id: BTreeMap<u64, Producer>,
    by_age: BTreeSet<(u64, u64)>,
    touched: Vec<u64>,
    max: usize,
}

fn result_key(id: u64, index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

impl Producers {
    pub(crate) fn load(state: &dyn State, max: usize) -> Result<Result<Self, BadState>, StoreError> {
        let mut loaded = Self { max, ..Self::default() };
        let mut good = true;
        state.scan(PRODUCERS, &[], None, &mut |key, value| {
            good = loaded.load_producer(key, value).is_some();
            good
        })?;
        if !good {
            return Ok(Err(BadState::of(PRODUCERS)));
        }
        state.scan(PRODUCER_RESULTS, &[], None, &mut |key, value| {
            good = loaded.load_results(key, value).is_some();
            good
        })?;
        Ok(if good { Ok(loaded) } else { Err(BadState::of(PRODUCER_RESULTS)) })
    }

    fn load_producer(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let id = Numbers(key).u64()?;
        let mut numbers = Numbers(value);
        let producer = Producer {
            epoch: numbers.u32()?,
            floor: numbers.u64()?,
            last_index: numbers.u64()?,
            last_lease: numbers.u64()?,
            ..Producer::default()
        };
        self.by_age.insert((producer.last_index, id));
        self.by_id.insert(id, producer);
        Some(())
    }

    fn load_results(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let mut numbers = Numbers(key);
        let (id, index) = (numbers.u64()?, numbers.u64()?);
        let producer = self.by_id.get_mut(&id)?;
        let mut highest = 0;
        for result in value.chunks(8 + PLACE_LEN) {
            let mut numbers = Numbers(result);
            let (sequence, place) = (numbers.u64()?, Place::decode(&mut numbers)?);
            highest = highest.max(sequence);
            if sequence >= producer.floor {
                producer.results.insert(sequence, place);
            }
        }
        producer.frames.insert((highest, index));
        Some(())
    }

    /// Forgets what was not used for 24 hours of lease time. Called before a frame's items.
    pub(crate) fn begin_frame(&mut self, lease_time: u64, batch: &mut WriteBatch) {
        while let Some(&(_, id)) = self.by_age.first() {
            let last = self.by_id.get(&id).map_or(0, |producer| producer.last_lease);
            if last.saturating_add(PRODUCER_AGE_MS) >= lease_time {
                break;
            }
            self.forget_oldest(batch);
        }
    }

    fn forget_oldest(&mut self, batch: &mut WriteBatch) {
        let Some((_, id)) = self.by_age.pop_first() else { return };
        if let Some(producer) = self.by_id.remove(&id) {
            for (_, index) in producer.frames {
                batch.delete(PRODUCER_RESULTS, &result_key(id, index));
            }
            batch.delete(PRODUCERS, &id.to_be_bytes());
        }
    }

    /// Opens an epoch: a higher one clears the results, the present one is confirmed.
    pub(crate) fn open_epoch(&mut self, id: u64, epoch: u32, batch: &mut WriteBatch) -> Result<(), Code> {
        if id == 0 {
            return Err(Code::Invalid);
        }
        let producer = self.by_id.entry(id).or_default();
        if epoch < producer.epoch {
            return Err(Code::OlderEpoch);
        }
        if epoch > producer.epoch {
            for (_, index) in std::mem::take(&mut producer.frames) {
                batch.delete(PRODUCER_RESULTS, &result_key(id, index));
            }
            producer.results.clear();
            producer.open.clear();
            producer.epoch = epoch;
            producer.floor = 0;
        }
        if !producer.touched {
            producer.touched = true;
            self.touched.push(id);
        }
        Ok(())
    }

    /// Moves the producer's epoch and floor to those of the message and looks its sequence up.
    pub(crate) fn check(&mut self, numbered: Numbered, batch: &mut WriteBatch) -> Verdict {
        if let Err(code) = self.open_epoch(numbered.producer_id, numbered.epoch, batch) {
            return Verdict::Refused(code);
        }
        let Some(producer) = self.by_id.get_mut(&numbered.producer_id) else {
            return Verdict::Refused(Code::Invalid);
        };
        if numbered.floor > producer.floor {
            producer.floor = numbered.floor;
            producer.drop_below_floor(numbered.producer_id, batch);
        }
        if numbered.sequence < producer.floor {
            return Verdict::Refused(Code::BelowFloor);
        }
        if numbered.sequence - producer.floor >= PRODUCER_WINDOW {
            return Verdict::Refused(Code::SequenceTooFar);
        }
        producer.results.get(&numbered.sequence).map_or(Verdict::New, |place| Verdict::Repeat(*place))
    }

    /// Notes where a message that [`Producers::check`] called new was stored.
    pub(crate) fn stored(&mut self, numbered: Numbered, place: Place) {
        if let Some(producer) = self.by_id.get_mut(&numbered.producer_id) {
            producer.results.insert(numbered.sequence, place);
            producer.open.push(numbered.sequence);
        }
    }

    /// Writes what the frame changed. Called after a frame's items.
    pub(crate) fn end_frame(&mut self, index: u64, lease_time: u64, batch: &mut WriteBatch) {
        for id in std::mem::take(&mut self.touched) {
            let Some(producer) = self.by_id.get_mut(&id) else { continue };
            self.by_age.remove(&(producer.last_index, id));
            self.by_age.insert((index, id));
            (producer.last_index, producer.last_lease, producer.touched) = (index, lease_time, false);
            producer.write(id, index, batch);
        }
        while self.by_id.len() > self.max {
            self.forget_oldest(batch);
        }
    }
}

impl Producer {
    fn drop_below_floor(&mut self, id: u64, batch: &mut WriteBatch) {
        while self.results.first_key_value().is_some_and(|(sequence, _)| *sequence < self.floor) {
            self.results.pop_first();
        }
        while let Some(&(highest, index)) = self.frames.first() {
            if highest >= self.floor {
                break;
            }
            self.frames.pop_first();
            batch.delete(PRODUCER_RESULTS, &result_key(id, index));
        }
    }

    fn write(&mut self, id: u64, index: u64, batch: &mut WriteBatch) {
        let mut results = Vec::with_capacity(self.open.len() * (8 + PLACE_LEN));
        let mut highest = 0;
        for sequence in self.open.drain(..) {
            // What a later message of the frame put below the floor is not written.
            if let Some(place) = self.results.get(&sequence) {
                results.extend_from_slice(&sequence.to_be_bytes());
                results.extend_from_slice(&place.encode());
                highest = highest.max(sequence);
            }
        }
        if !results.is_empty() {
            batch.put(PRODUCER_RESULTS, &result_key(id, index), &results);
            self.frames.insert((highest, index));
        }
        let mut value = [0; 28];
        value[..4].copy_from_slice(&self.epoch.to_be_bytes());
        value[4..12].copy_from_slice(&self.floor.to_be_bytes());
        value[12..20].copy_from_slice(&self.last_index.to_be_bytes());
        value[20..].copy_from_slice(&self.last_lease.to_be_bytes());
        batch.put(PRODUCERS, &id.to_be_bytes(), &value);
    }
}
