//! Who has which message: the cursor of each group in each queue and the deliveries in flight (POP).
//!
//! A value of family `in_flight`:
//!
//! ```text
//! 0               8               16        20      21
//! +---------------+---------------+---------+-------+------------+
//! | deliver index | invisible end | attempt | flags | client id  |   big-endian; flags: 1 = renewed by the server
//! +---------------+---------------+---------+-------+------------+
//! ```
//!
//! What always holds:
//! * A position below the cursor is in flight or settled for ever; one at or above it was never handed out.
//! * A position is in flight once, with the number of its last `deliver` or of the client's last `change_invisible`.
//! * Whether an invisible time has ended is judged by the lease time of the frame that asks, never by a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mq_protocol::cluster::{
    AckPosition, ChangeInvisibleCommand, DeliverCommand, DeliverResult, Redelivery, item_result::Code,
};
use mq_store::{State, StoreError, WriteBatch};

use super::keys::{BadState, CURSORS, GroupRef, IN_FLIGHT, Numbers, ProgressKey};

/// Most messages that one group may have in flight in one queue.
pub const MAX_IN_FLIGHT_PER_QUEUE: u64 = 10_000;
/// Most messages that all groups of a broker group may have in flight.
pub const MAX_IN_FLIGHT: u64 = 1_000_000;

const RENEWED: u8 = 1;

/// One delivery that was neither settled nor handed out again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// Log index of its `deliver` or of the client's latest `change_invisible`.
    pub deliver_index: u64,
    /// Lease time from which on it may be handed out again.
    pub invisible_end: u64,
    /// Deliveries so far, with this one.
    pub attempt: u32,
    /// Whether the server is to renew it.
    pub auto_renew: bool,
    /// Who has it.
    pub client: Arc<str>,
}

impl InFlight {
    fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(21 + self.client.len());
        value.extend_from_slice(&self.deliver_index.to_be_bytes());
        value.extend_from_slice(&self.invisible_end.to_be_bytes());
        value.extend_from_slice(&self.attempt.to_be_bytes());
        value.push(if self.auto_renew { RENEWED } else { 0 });
        value.extend_from_slice(self.client.as_bytes());
        value
    }

    fn decode(value: &[u8], clients: &mut BTreeSet<Arc<str>>) -> Option<Self> {
        let mut numbers = Numbers(value);
        let (deliver_index, invisible_end) = (numbers.u64()?, numbers.u64()?);
        let (attempt, flags) = (numbers.u32()?, numbers.u8()?);
        let name = std::str::from_utf8(numbers.rest()).ok()?;
        let client = clients.get(name).cloned().unwrap_or_else(|| {
            let client: Arc<str> = Arc::from(name);
            clients.insert(Arc::clone(&client));
            client
        });
        Some(Self { deliver_index, invisible_end, attempt, auto_renew: flags & RENEWED != 0, client })
    }
}

/// Progress of one group in one queue.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub cursor: u64,
    pub in_flight: BTreeMap<u64, InFlight>,
    /// (invisible end, position) of everything in flight.
    pub due: BTreeSet<(u64, u64)>,
}

/// Index and lease time of the frame that carries a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub index: u64,
    pub lease_time: u64,
}

/// Delivery state of all groups of a broker group.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    queues: BTreeMap<ProgressKey, Progress>,
    renewed: BTreeMap<Arc<str>, BTreeSet<(ProgressKey, u64)>>,
    total: u64,
}

impl Deliveries {
    pub(crate) fn load(state: &dyn State) -> Result<Result<Self, BadState>, StoreError> {
        let mut loaded = Self::default();
        let mut good = true;
        state.scan(CURSORS, &[], None, &mut |key, value| {
            match (ProgressKey::decode(&mut Numbers(key)), Numbers(value).u64()) {
                (Some(key), Some(cursor)) => loaded.queues.entry(key).or_default().cursor = cursor,
                _ => good = false,
            }
            good
        })?;
        if !good {
            return Ok(Err(BadState::of(CURSORS)));
        }
        let mut clients = BTreeSet::new();
        state.scan(IN_FLIGHT, &[], None, &mut |key, value| {
            let mut numbers = Numbers(key);
            let (key, position) = (ProgressKey::decode(&mut numbers), numbers.u64());
            match (key, position, InFlight::decode(value, &mut clients)) {
                (Some(key), Some(position), Some(entry)) => loaded.insert(key, position, entry),
                _ => good = false,
            }
            good
        })?;
        Ok(if good { Ok(loaded) } else { Err(BadState::of(IN_FLIGHT)) })
    }

    pub(crate) fn progress(&self, key: &ProgressKey) -> Option<&Progress> {
        self.queues.get(key)
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Whether a client has deliveries that the server is to renew.
    pub(crate) fn has_renewed(&self, client: &str) -> bool {
        self.renewed.contains_key(client)
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<ProgressKey> {
        self.queues.keys().copied().collect()
    }

    fn insert(&mut self, key: ProgressKey, position: u64, entry: InFlight) {
        if entry.auto_renew {
            self.renewed.entry(Arc::clone(&entry.client)).or_default().insert((key, position));
        }
        let progress = self.queues.entry(key).or_default();
        progress.due.insert((entry.invisible_end, position));
        progress.in_flight.insert(position, entry);
        self.total += 1;
    }

    fn remove(&mut self, key: ProgressKey, position: u64) {
        let Some(progress) = self.queues.get_mut(&key) else { return };
        let Some(entry) = progress.in_flight.remove(&position) else { return };
        progress.due.remove(&(entry.invisible_end, position));
        self.total -= 1;
        if entry.auto_renew
            && let Some(entries) = self.renewed.get_mut(&entry.client)
        {
            entries.remove(&(key, position));
            if entries.is_empty() {
                self.renewed.remove(&entry.client);
            }
        }
    }

    /// Replaces or adds what is in flight at `position`, here and in the store.
    fn put(&mut self, key: ProgressKey, position: u64, entry: InFlight, batch: &mut WriteBatch) {
        self.remove(key, position);
        batch.put(IN_FLIGHT, &key.with_position(position), &entry.encode());
        self.insert(key, position, entry);
    }

    /// Hands out what the command names and is still free. `queue_next` is the queue's end.
    ///
    /// New positions are taken all or not at all; each redelivery stands for itself.
    pub(crate) fn deliver(
        &mut self,
        key: ProgressKey,
        command: &DeliverCommand,
        queue_next: u64,
        at: At,
        batch: &mut WriteBatch,
    ) -> Result<DeliverResult, Code> {
        check_new_positions(command, queue_next)?;
        let progress = self.queues.get(&key);
        let cursor = progress.map_or(0, |progress| progress.cursor);
        let in_flight = progress.map_or(0, |progress| progress.in_flight.len() as u64);
        let moves = command.next_cursor > command.expected_cursor;
        let free = moves && cursor == command.expected_cursor;
        if free {
            let taken = command.taken.len() as u64;
            if in_flight + taken > MAX_IN_FLIGHT_PER_QUEUE || self.total + taken > MAX_IN_FLIGHT {
                return Err(Code::InFlightLimit);
            }
        }
        let again: Vec<Redelivery> =
            command.again.iter().filter(|again| is_due(progress, again, at.lease_time)).copied().collect();
        if !free && again.is_empty() {
            return Err(Code::Rejected);
        }
        let client: Arc<str> = Arc::from(command.client_id.as_str());
        let entry = |attempt| InFlight {
            deliver_index: at.index,
            invisible_end: at.lease_time.saturating_add(command.invisible_ms),
            attempt,
            auto_renew: command.auto_renew,
            client: Arc::clone(&client),
        };
        for redelivery in &again {
            self.put(key, redelivery.position, entry(redelivery.attempt), batch);
        }
        let mut result = DeliverResult { taken: Vec::new(), again, moved: free };
        if free {
            for &position in &command.taken {
                self.put(key, position, entry(1), batch);
            }
            self.queues.entry(key).or_default().cursor = command.next_cursor;
            batch.put(CURSORS, &key.encode(), &command.next_cursor.to_be_bytes());
            result.taken.clone_from(&command.taken);
        }
        Ok(result)
    }

    /// Settles one position.
    pub(crate) fn ack(
        &mut self,
        key: ProgressKey,
        ack: AckPosition,
        at: At,
        batch: &mut WriteBatch,
    ) -> Result<(), Code> {
        if self.held(key, ack.position, ack.deliver_index, at)? {
            self.remove(key, ack.position);
            batch.delete(IN_FLIGHT, &key.with_position(ack.position));
        }
        Ok(())
    }

    /// `true`: in flight under this number and invisible; `false`: settled before.
    fn held(&self, key: ProgressKey, position: u64, deliver_index: u64, at: At) -> Result<bool, Code> {
        let progress = self.queues.get(&key).ok_or(Code::HandleExpired)?;
        match progress.in_flight.get(&position) {
            Some(entry) if entry.deliver_index == deliver_index && at.lease_time < entry.invisible_end => {
                Ok(true)
            }
            None if position < progress.cursor => Ok(false),
            _ => Err(Code::HandleExpired),
        }
    }

    /// Moves the end of one invisible time; by a client this makes a new handle.
    pub(crate) fn change(
        &mut self,
        key: ProgressKey,
        command: &ChangeInvisibleCommand,
        at: At,
        batch: &mut WriteBatch,
    ) -> Result<(), Code> {
        if !self.held(key, command.position, command.deliver_index, at)? {
            return Err(Code::HandleExpired);
        }
        let progress = self.queues.get(&key).ok_or(Code::HandleExpired)?;
        let Some(mut entry) = progress.in_flight.get(&command.position).cloned() else {
            return Err(Code::HandleExpired);
        };
        entry.invisible_end = at.lease_time.saturating_add(command.invisible_ms);
        if !command.renewal {
            entry.deliver_index = at.index;
        }
        self.put(key, command.position, entry, batch);
        Ok(())
    }

    /// Shortens what the server would renew for a client; returns the topics in which something moved.
    pub(crate) fn client_gone(
        &mut self,
        client: &str,
        invisible_ms: u64,
        at: At,
        batch: &mut WriteBatch,
    ) -> BTreeSet<u32> {
        let mut topics = BTreeSet::new();
        let held = self.renewed.get(client).cloned().unwrap_or_default();
        for (key, position) in held {
            let entry = self.queues.get(&key).and_then(|progress| progress.in_flight.get(&position)).cloned();
            let end = at.lease_time.saturating_add(invisible_ms);
            if let Some(mut entry) = entry.filter(|entry| entry.invisible_end > end) {
                entry.invisible_end = end;
                self.put(key, position, entry, batch);
                topics.insert(key.queue.topic_id);
            }
        }
        topics
    }

    /// Forgets all progress in a topic.
    pub(crate) fn remove_topic(&mut self, topic_id: u32, batch: &mut WriteBatch) {
        self.remove_where(|key| key.queue.topic_id == topic_id, batch);
    }

    /// Forgets all progress of a group.
    pub(crate) fn remove_group(&mut self, group: GroupRef, batch: &mut WriteBatch) {
        self.remove_where(|key| key.group == group, batch);
    }

    fn remove_where(&mut self, gone: impl Fn(&ProgressKey) -> bool, batch: &mut WriteBatch) {
        let keys: Vec<ProgressKey> = self.queues.keys().filter(|key| gone(key)).copied().collect();
        for key in keys {
            let positions: Vec<u64> = self.queues[&key].in_flight.keys().copied().collect();
            for position in positions {
                self.remove(key, position);
                batch.delete(IN_FLIGHT, &key.with_position(position));
            }
            self.queues.remove(&key);
            batch.delete(CURSORS, &key.encode());
        }
    }
}

fn is_due(progress: Option<&Progress>, again: &Redelivery, lease_time: u64) -> bool {
    progress.and_then(|progress| progress.in_flight.get(&again.position)).is_some_and(|entry| {
        entry.deliver_index == again.previous_deliver_index
            && entry.invisible_end <= lease_time
            && entry.attempt.checked_add(1) == Some(again.attempt)
    })
}

/// The new positions rise, lie in the range that the cursor passes, and the range lies in the queue.
fn check_new_positions(command: &DeliverCommand, queue_next: u64) -> Result<(), Code> {
    let rising = command.taken.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = command.taken.first().is_none_or(|first| *first >= command.expected_cursor)
        && command.taken.last().is_none_or(|last| *last < command.next_cursor);
    let forward = command.expected_cursor <= command.next_cursor && command.next_cursor <= queue_next;
    if rising && inside && forward { Ok(()) } else { Err(Code::Invalid) }
}
