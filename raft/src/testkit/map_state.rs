//! A state machine that keeps everything in memory and forgets it at a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use mq_store::EntryId;
use mq_store::commit_log::FrameKind;
use mq_store::item::items;
use parking_lot::Mutex;

use crate::apply::{Apply, ApplyError, CommittedFrame, FrameResults, encode_membership};

/// What a [`MapState`] has applied, seen from outside.
#[derive(Clone, Debug, Default)]
pub struct AppliedLog {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    applied: Option<EntryId>,
    membership: Option<Bytes>,
    /// Item bodies by their place: (frame, item number).
    items: BTreeMap<(u64, u32), Bytes>,
    times: Vec<(u64, u64)>,
    stopped: bool,
}

impl AppliedLog {
    /// All item bodies in log order.
    #[must_use]
    pub fn items(&self) -> Vec<Bytes> {
        self.shared.lock().items.values().cloned().collect()
    }

    /// (store time, lease time) of the frames of items, in log order.
    #[must_use]
    pub fn times(&self) -> Vec<(u64, u64)> {
        self.shared.lock().times.clone()
    }

    /// Replaces what was applied, as an installed snapshot does.
    pub(crate) fn install(&self, applied: Option<EntryId>, membership: Option<Bytes>) {
        *self.shared.lock() = Shared { applied, membership, ..Shared::default() };
    }

    /// The last frame applied.
    #[must_use]
    pub fn applied(&self) -> Option<EntryId> {
        self.shared.lock().applied
    }

    /// [`Apply::stop`] was called.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.shared.lock().stopped
    }
}

/// Answers each item with its number among all items ever applied.
#[derive(Debug, Default)]
pub struct MapState {
    log: AppliedLog,
}

impl MapState {
    /// An empty state and its view from outside.
    #[must_use]
    pub fn new() -> (Self, AppliedLog) {
        let log = AppliedLog::default();
        (Self { log: log.clone() }, log)
    }

    /// An empty state that is seen through `log`, as after a restart of the group in place.
    #[must_use]
    pub fn forgotten(log: &AppliedLog) -> Self {
        log.install(None, None);
        Self { log: log.clone() }
    }
}

impl Apply for MapState {
    fn applied(&self) -> Result<Option<EntryId>, ApplyError> {
        Ok(self.log.shared.lock().applied)
    }

    fn membership(&self) -> Result<Option<Bytes>, ApplyError> {
        Ok(self.log.shared.lock().membership.clone())
    }

    fn apply(
        &mut self,
        frames: &[CommittedFrame],
        results: &mut Vec<FrameResults>,
    ) -> Result<(), ApplyError> {
        let mut shared = self.log.shared.lock();
        for frame in frames {
            let mut answers = FrameResults::new();
            match frame.kind {
                FrameKind::Membership => shared.membership = Some(encode_membership(frame)),
                FrameKind::Blank => {}
                FrameKind::Items => {
                    for (number, item) in items(&frame.body).enumerate() {
                        let item = item?;
                        let place = shared.items.len() as u64;
                        answers.push(Bytes::copy_from_slice(&place.to_le_bytes()));
                        let number = u32::try_from(number).unwrap_or(u32::MAX);
                        shared.items.insert((frame.id.index.0, number), item.body);
                    }
                    shared.times.push((frame.store_time, frame.lease_time));
                }
            }
            shared.applied = Some(frame.id);
            results.push(answers);
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), ApplyError> {
        Ok(())
    }

    fn stop(&mut self) -> Result<(), ApplyError> {
        self.log.shared.lock().stopped = true;
        Ok(())
    }
}
