//! Picks what a receive is to get: due retries in the order of their positions, then new positions.
//!
//! A pick reserves and decides nothing: apply does, by the frame's lease time. What is picked here is right as long
//! as this node leads in the term of the pick.

use std::sync::Arc;

use mq_protocol::cluster::Redelivery;
use mq_store::{QueueId, QueueOffset, StoreError, Term, Unit};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::filter::Filter;
use super::reservation::{GroupTopic, QueueReservation, Reserved};
use crate::state::delivery::Progress;
use crate::state::keys::{GroupRef, ProgressKey};
use crate::state::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_PER_QUEUE, StateView, SubscriptionGroup, Topic};

/// Skipped positions of a queue that are worth a `deliver` of their own.
const SKIP_AT_ONCE: u64 = 1_024;
/// Units that one pick looks at in one queue.
const SCAN_UNITS: u64 = 4_096;
/// Due retries that one pick with a tag filter looks at in one queue.
const SCAN_RETRIES: usize = 1_024;
/// Bytes of records in one answer, after which no further message is picked.
const ANSWER_BYTES: u64 = 16 << 20;
/// Entries without reservations that are kept, at most.
const IDLE_ENTRIES: usize = 4_096;

/// One life of a group with one life of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PickKey {
    pub group: GroupRef,
    pub topic_id: u32,
    pub incarnation: u32,
}

/// What a receive asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub topic: &'a Topic,
    pub group: &'a SubscriptionGroup,
    pub filter: &'a Filter,
    /// Messages at most.
    pub batch: usize,
    pub term: Term,
    /// Lease time now.
    pub lease_time: u64,
    /// Positions passed over may be a `deliver` without messages.
    pub may_skip: bool,
    /// Files may be read; else the pick ends with [`PickError::Cold`].
    pub may_block: bool,
}

/// A message that was picked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub position: u64,
    pub unit: Unit,
    /// Of a retry: what it comes from.
    pub again: Option<Redelivery>,
}

/// What was picked in one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuePick {
    pub queue: QueueId,
    /// New positions lie in this range of the cursor; empty without.
    pub from: u64,
    pub to: u64,
    pub candidates: Vec<Candidate>,
    pub reserved: Reserved,
}

/// What was picked in all queues.
#[derive(Debug, Default)]
pub(crate) struct Picked {
    pub queues: Vec<QueuePick>,
    /// Positions were passed over that no `deliver` covers yet.
    pub skipped: bool,
    /// Something was left because too much is in flight.
    pub limited: bool,
    /// Lease time at which the next retry becomes due.
    pub next_due: Option<u64>,
}

impl Picked {
    pub(crate) fn messages(&self) -> usize {
        self.queues.iter().map(|queue| queue.candidates.len()).sum()
    }
}

/// Why nothing was picked.
#[derive(Debug)]
pub(crate) enum PickError {
    /// A file would have to be read.
    Cold,
    /// It could not be read.
    Store(StoreError),
}

impl From<StoreError> for PickError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What apply's state says of one queue, copied out.
#[derive(Debug, Default)]
struct Standing {
    cursor: u64,
    in_flight: u64,
    /// Everything in flight is due.
    all_due: bool,
    /// (position, deliver index, next attempt) of due retries, by position.
    due: Vec<(u64, u64, u32)>,
}

/// Picks and keeps the reservations of one broker group.
#[derive(Debug)]
pub(crate) struct Picker {
    view: StateView,
    topics: Mutex<FxHashMap<PickKey, Arc<Mutex<GroupTopic>>>>,
}

impl Picker {
    pub(crate) fn new(view: StateView) -> Self {
        Self { view, topics: Mutex::default() }
    }

    fn entry(&self, key: PickKey) -> Arc<Mutex<GroupTopic>> {
        let mut topics = self.topics.lock();
        if topics.len() >= IDLE_ENTRIES && !topics.contains_key(&key) {
            topics.retain(|_, topic| Arc::strong_count(topic) > 1 || !topic.lock().is_idle());
        }
        Arc::clone(topics.entry(key).or_default())
    }

    /// Picks and reserves.
    pub(crate) fn pick(&self, wanted: Wanted<'_>) -> Result<Picked, PickError> {
        let group = GroupRef { id: wanted.group.id, incarnation: wanted.group.incarnation };
        let key = PickKey { group, topic_id: wanted.topic.id, incarnation: wanted.topic.incarnation };
        let entry = self.entry(key);
        let mut reservations = entry.lock();
        reservations.enter(wanted.term, wanted.topic.queues);
        let mut picked = Picked::default();
        let (standings, total) = self.standings(key, &wanted, &reservations, &mut picked);
        let queues = wanted.topic.queues;
        let mut budget =
            Budget { batch: wanted.batch, bytes: ANSWER_BYTES, total: MAX_IN_FLIGHT.saturating_sub(total) };
        let mut by_queue: FxHashMap<u32, QueuePick> = FxHashMap::default();
        let turn = reservations.turn;
        let order = || (0..queues).map(|step| turn.wrapping_add(step) % queues);
        for queue in order() {
            let standing = &standings[queue as usize];
            let again = self.retries(&wanted, key, queue, standing, &mut budget)?;
            if !again.is_empty() {
                by_queue.insert(queue, again_pick(key, queue, again));
            }
        }
        for queue in order() {
            let (standing, reservation) = (&standings[queue as usize], &reservations.queues[queue as usize]);
            let new =
                self.new_positions(&wanted, key, queue, (standing, reservation), &mut budget, &mut picked)?;
            if let Some(new) = new {
                merge(&mut by_queue, queue, new);
            }
        }
        reservations.turn = turn.wrapping_add(1) % queues.max(1);
        for queue in order() {
            if let Some(pick) = by_queue.remove(&queue) {
                reservations.queues[queue as usize].reserve(&pick.reserved);
                picked.queues.push(pick);
            }
        }
        Ok(picked)
    }

    /// Ends the reservation of one queue. `chain_moved`: apply accepted its new positions.
    pub(crate) fn release(&self, group: GroupRef, term: Term, pick: &QueuePick, chain_moved: bool) {
        let QueueId { topic_id, incarnation, queue } = pick.queue;
        let entry = self.topics.lock().get(&PickKey { group, topic_id, incarnation }).cloned();
        if let Some(entry) = entry {
            entry.lock().release(term, queue, &pick.reserved, chain_moved);
        }
        // Others may have found these positions reserved and gone to sleep; for what was handed out apply rings.
        if pick.reserved.gives_back(chain_moved) {
            self.view.shared().arrivals.ring(topic_id);
        }
    }

    /// Copies out what apply's state says of the topic's queues.
    fn standings(
        &self,
        key: PickKey,
        wanted: &Wanted<'_>,
        reservations: &GroupTopic,
        picked: &mut Picked,
    ) -> (Vec<Standing>, u64) {
        let shared = self.view.shared();
        let deliveries = shared.deliveries.lock();
        let standings = (0..wanted.topic.queues).map(|queue| {
            let progress_key = progress_key(key, queue);
            let reservation = &reservations.queues[queue as usize];
            deliveries.progress(&progress_key).map_or_else(Standing::default, |progress| {
                standing(progress, reservation, wanted, &mut picked.next_due)
            })
        });
        (standings.collect(), deliveries.total())
    }

    fn retries(
        &self,
        wanted: &Wanted<'_>,
        key: PickKey,
        queue: u32,
        standing: &Standing,
        budget: &mut Budget,
    ) -> Result<Vec<Candidate>, PickError> {
        let mut candidates = Vec::new();
        if wanted.group.ordered && !standing.all_due {
            return Ok(candidates);
        }
        let id = queue_id(key, queue);
        for &(position, previous_deliver_index, attempt) in &standing.due {
            if budget.is_used_up() {
                break;
            }
            let Some(unit) = self.units(wanted, id, position, 1)?.pop() else { continue };
            if wanted.filter.may_match(unit.tag_hash) {
                let again = Some(Redelivery { position, attempt, previous_deliver_index });
                budget.take(&unit);
                candidates.push(Candidate { position, unit, again });
            } else if wanted.group.ordered {
                break;
            }
        }
        Ok(candidates)
    }

    fn new_positions(
        &self,
        wanted: &Wanted<'_>,
        key: PickKey,
        queue: u32,
        (standing, reservation): (&Standing, &QueueReservation),
        budget: &mut Budget,
        picked: &mut Picked,
    ) -> Result<Option<QueuePick>, PickError> {
        let ordered_busy = wanted.group.ordered && (standing.in_flight > 0 || !reservation.is_idle());
        let Some(from) = reservation.start(standing.cursor).filter(|_| !ordered_busy) else {
            return Ok(None);
        };
        let id = queue_id(key, queue);
        let (min, end) = self.view.queue_range(id);
        let mut at = from.max(min);
        if budget.is_used_up() || at >= end {
            return Ok(None);
        }
        let room = MAX_IN_FLIGHT_PER_QUEUE.saturating_sub(standing.in_flight + reservation.taken());
        let room = (room.min(budget.total).min(budget.batch as u64)) as usize;
        let scan_end = end.min(at.saturating_add(SCAN_UNITS));
        let mut candidates = Vec::new();
        while at < scan_end && candidates.len() < room && !budget.is_used_up() {
            let want = if wanted.filter.is_all() { (room - candidates.len()) as u64 } else { SKIP_AT_ONCE };
            let units = self.units(wanted, id, at, want.min(scan_end - at) as usize)?;
            if units.is_empty() {
                break;
            }
            for unit in units {
                if candidates.len() == room || budget.is_used_up() {
                    break;
                }
                if wanted.filter.may_match(unit.tag_hash) {
                    budget.take(&unit);
                    candidates.push(Candidate { position: at, unit, again: None });
                }
                at += 1;
            }
        }
        picked.limited |= room == 0;
        if at == from || room == 0 {
            return Ok(None);
        }
        let passed = at - from;
        if candidates.is_empty() && passed < SKIP_AT_ONCE && !wanted.may_skip {
            picked.skipped = true;
            return Ok(None);
        }
        budget.total -= candidates.len() as u64;
        let taken = candidates.len() as u64;
        let reserved = Reserved { chain_end: Some(at), taken, again: Vec::new() };
        Ok(Some(QueuePick { queue: id, from, to: at, candidates, reserved }))
    }

    fn units(&self, wanted: &Wanted<'_>, id: QueueId, from: u64, max: usize) -> Result<Vec<Unit>, PickError> {
        let queues = &self.view.shared().queues;
        match queues.read_hot(id, QueueOffset(from), max) {
            Some(units) => Ok(units),
            None if wanted.may_block => Ok(queues.read(id, QueueOffset(from), max)?),
            None => Err(PickError::Cold),
        }
    }
}

/// What one answer may still take.
#[derive(Debug)]
struct Budget {
    batch: usize,
    bytes: u64,
    /// Messages that the broker group may still have in flight.
    total: u64,
}

impl Budget {
    fn is_used_up(&self) -> bool {
        self.batch == 0 || self.bytes == 0
    }

    fn take(&mut self, unit: &Unit) {
        self.batch = self.batch.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(unit.size));
    }
}

fn queue_id(key: PickKey, queue: u32) -> QueueId {
    QueueId::new(key.topic_id, key.incarnation, queue)
}

fn progress_key(key: PickKey, queue: u32) -> ProgressKey {
    ProgressKey { group: key.group, queue: queue_id(key, queue) }
}

fn again_pick(key: PickKey, queue: u32, candidates: Vec<Candidate>) -> QueuePick {
    let again = candidates.iter().map(|candidate| candidate.position).collect();
    let reserved = Reserved { chain_end: None, taken: 0, again };
    QueuePick { queue: queue_id(key, queue), from: 0, to: 0, candidates, reserved }
}

fn merge(by_queue: &mut FxHashMap<u32, QueuePick>, queue: u32, new: QueuePick) {
    match by_queue.get_mut(&queue) {
        None => {
            by_queue.insert(queue, new);
        }
        Some(pick) => {
            (pick.from, pick.to) = (new.from, new.to);
            pick.candidates.extend(new.candidates);
            pick.reserved.chain_end = new.reserved.chain_end;
            pick.reserved.taken = new.reserved.taken;
        }
    }
}

fn standing(
    progress: &Progress,
    reservation: &QueueReservation,
    wanted: &Wanted<'_>,
    next_due: &mut Option<u64>,
) -> Standing {
    let now = wanted.lease_time;
    let enough = if wanted.filter.is_all() { wanted.batch } else { SCAN_RETRIES };
    let enough = if wanted.group.ordered { usize::MAX } else { enough + reservation.retries() };
    let due = progress.due.range(..=(now, u64::MAX)).take(enough);
    let mut due: Vec<(u64, u64, u32)> = due
        .filter(|(_, position)| !reservation.holds(*position))
        .filter_map(|(_, position)| {
            let entry = progress.in_flight.get(position)?;
            Some((*position, entry.deliver_index, entry.attempt.saturating_add(1)))
        })
        .collect();
    due.sort_unstable();
    let later = progress.due.range((now.saturating_add(1), 0)..).next().map(|(end, _)| *end);
    *next_due = [*next_due, later].into_iter().flatten().min();
    Standing {
        cursor: progress.cursor,
        in_flight: progress.in_flight.len() as u64,
        all_due: reservation.is_idle() && due.len() == progress.in_flight.len(),
        due,
    }
}
