//! The only writer of a broker group's state: runs the state machine over committed frames, writes what it says, and
//! makes checkpoints.
//!
//! What always holds: `dispatched <= applied <= committed`. The changes of one call are one batch together with the
//! applied entry. A crash between any two steps below loses only what a restart makes again from the log, because a
//! restart begins at a checkpoint, whose queues were synced before it became valid (D7).

use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use mq_raft::{Apply, ApplyDeps, ApplyError, CommittedFrame, FrameResults, encode_membership};
use mq_store::{
    Backend, CheckpointPolicy, CheckpointRecord, EntryId, FRAME_HEADER_LEN, FrameKind, GroupFiles, LogOffset,
    QueueTable, StateStore, StoreError, WriteBatch,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::keys::FAMILIES;
use super::machine::{Effects, FrameHead, Machine, MachineError, Windows};
use super::view::{Shared, StateView};
use crate::dispatch::Dispatch;

/// The state of a broker group behind its log.
pub struct BrokerApply {
    machine: Machine,
    store: Arc<StateStore>,
    files: Arc<GroupFiles>,
    shared: Arc<Shared>,
    dispatch: Dispatch,
    batch: WriteBatch,
    /// End and chain value of the newest frame applied by this process.
    last: Option<(LogOffset, u32)>,
    checkpoints: Checkpoints,
}

#[derive(Debug, Default)]
struct Checkpoints {
    policy: CheckpointPolicy,
    running: Option<JoinHandle<Result<(), StoreError>>>,
}

impl Drop for Checkpoints {
    /// Whoever opens the folder next in this process must not meet a thread that still renames in it.
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            drop(running.join());
        }
    }
}

impl std::fmt::Debug for BrokerApply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerApply").field("last", &self.last).finish_non_exhaustive()
    }
}

/// Opens the state at its newest checkpoint and cuts the queues to it; what the log has beyond is applied again.
///
/// # Errors
/// State, queues or the log behind the checkpoint are damaged or older than the checkpoint says.
pub fn open(deps: ApplyDeps, backend: Backend) -> Result<(BrokerApply, StateView), ApplyError> {
    let (apply, shared) = open_parts(deps, backend, None)?;
    Ok((apply, StateView::new(shared)))
}

/// As [`open`], after the group was started again in place: `view` and its clones show the state opened here from now on.
///
/// # Errors
/// As [`open`]; `view` then shows what it showed before.
pub fn reopen(deps: ApplyDeps, backend: Backend, view: &StateView) -> Result<BrokerApply, ApplyError> {
    let (apply, shared) = open_parts(deps, backend, Some(&view.shared()))?;
    view.swap(shared);
    Ok(apply)
}

fn open_parts(
    deps: ApplyDeps,
    backend: Backend,
    before: Option<&Shared>,
) -> Result<(BrokerApply, Arc<Shared>), ApplyError> {
    let ApplyDeps { log, files, dir, meta: _, fs, retention: _ } = deps;
    let store = StateStore::open(Arc::clone(&fs), &dir.join("state"), FAMILIES, backend)?;
    store.check(&log, files.vote())?;
    let machine = Machine::load(&*store.state(), Windows::default()).map_err(failed)?;
    let queues = QueueTable::open(fs, &dir.join("consumequeue"))?;
    queues.cut_to(&machine.topics().all_next(), &store.queue_ranges())?;
    let applied = store.applied()?.unwrap_or_default();
    machine.catalog.write().opened_at(applied.index.0);
    let arrivals = before.map_or_else(Arc::default, |before| Arc::clone(&before.arrivals));
    let topics_changed = before.map_or_else(
        || Arc::new(watch::Sender::new(applied.index.0)),
        |before| Arc::clone(&before.topics_changed),
    );
    let shared = Arc::new(Shared {
        log,
        queues: queues.clone(),
        catalog: Arc::clone(&machine.catalog),
        deliveries: Arc::clone(&machine.deliveries),
        arrivals: Arc::clone(&arrivals),
        digests: Arc::default(),
        applied: Mutex::new(applied),
        topics_changed,
    });
    let apply = BrokerApply {
        machine,
        store: Arc::new(store),
        files,
        shared: Arc::clone(&shared),
        dispatch: Dispatch::new(queues, arrivals),
        batch: WriteBatch::new(),
        last: None,
        checkpoints: Checkpoints::default(),
    };
    Ok((apply, shared))
}

fn failed(error: MachineError) -> ApplyError {
    match error {
        MachineError::Store(error) => ApplyError::Store(error),
        MachineError::State(error) => ApplyError::Other(error.to_string()),
    }
}

impl BrokerApply {
    fn apply_frame(
        &mut self,
        frame: &CommittedFrame,
        effects: &mut Effects,
    ) -> Result<FrameResults, ApplyError> {
        let len = (FRAME_HEADER_LEN + frame.body.len()).next_multiple_of(8) as u64;
        self.last = Some((LogOffset(frame.offset.0 + len), frame.head_crc));
        self.checkpoints.policy.applied(len);
        match frame.kind {
            FrameKind::Items => {
                let head = FrameHead {
                    index: frame.id.index.0,
                    offset: frame.offset,
                    store_time: frame.store_time,
                    lease_time: frame.lease_time,
                };
                self.machine.apply_frame(head, &frame.body, &mut self.batch, effects).map_err(failed)
            }
            FrameKind::Membership => {
                self.batch.set_membership(&encode_membership(frame));
                Ok(Vec::new())
            }
            FrameKind::Blank => Ok(Vec::new()),
        }
    }

    /// Writes everything gathered up to the entry `id` and makes it visible.
    fn commit(&mut self, id: EntryId, effects: &mut Effects) -> Result<(), ApplyError> {
        let Effects { units, removed, wake, topics_changed, marks } = std::mem::take(effects);
        self.machine.flush(&mut self.batch);
        self.batch.set_applied(id);
        self.dispatch.append(&units)?;
        self.store.state().write(&self.batch)?;
        self.batch.clear();
        self.dispatch.publish(&removed)?;
        *self.shared.applied.lock() = id;
        if topics_changed {
            self.shared.topics_changed.send_replace(id.index.0);
        }
        if !marks.is_empty() {
            let ends = self.machine.topics().all_next();
            let files = (&self.shared.log, &self.shared.queues);
            self.shared.digests.take(&marks, id.index.0, &*self.store.state(), &ends, files)?;
        }
        self.dispatch.wake(&wake);
        Ok(())
    }

    fn checkpoint_when_due(&mut self) -> Result<(), ApplyError> {
        let Checkpoints { policy, running } = &self.checkpoints;
        if policy.due() && running.as_ref().is_none_or(JoinHandle::is_finished) {
            self.join_checkpoint()?;
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    fn join_checkpoint(&mut self) -> Result<(), ApplyError> {
        match self.checkpoints.running.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(done)) => Ok(done?),
            Some(Err(_)) => Err(ApplyError::Other("the checkpoint thread panicked".to_owned())),
        }
    }

    /// Takes the state between two applies; queues are synced and the checkpoint made valid by a thread of its own.
    fn begin_checkpoint(&mut self) -> Result<(), ApplyError> {
        let Some((log_end, chain)) = self.last else { return Ok(()) };
        let record = CheckpointRecord { vote: self.files.vote(), log_end, chain };
        self.checkpoints.policy.begun();
        if let Some(pending) = self.store.begin_checkpoint(&self.shared.queues, record)? {
            let (store, queues) = (Arc::clone(&self.store), self.shared.queues.clone());
            let log = self.shared.log.clone();
            let finish = move || {
                pending.finish(&store, &queues)?;
                if let Some(checkpointed) = store.checkpointed() {
                    log.checkpointed(checkpointed.index);
                }
                Ok(())
            };
            let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(finish);
            let thread =
                thread.map_err(|error| ApplyError::Other(format!("no checkpoint thread: {error}")))?;
            self.checkpoints.running = Some(thread);
        }
        Ok(())
    }
}

impl Apply for BrokerApply {
    fn applied(&self) -> Result<Option<EntryId>, ApplyError> {
        Ok(self.store.applied()?)
    }

    fn membership(&self) -> Result<Option<Bytes>, ApplyError> {
        Ok(self.store.membership()?.map(Bytes::from))
    }

    fn apply(
        &mut self,
        frames: &[CommittedFrame],
        results: &mut Vec<FrameResults>,
    ) -> Result<(), ApplyError> {
        let mut effects = Effects::default();
        for frame in frames {
            results.push(self.apply_frame(frame, &mut effects)?);
            if !effects.marks.is_empty() {
                // A digest shows the state after exactly this frame, on every member.
                self.commit(frame.id, &mut effects)?;
            }
        }
        if let Some(last) = frames.last() {
            self.commit(last.id, &mut effects)?;
        }
        self.checkpoint_when_due()
    }

    fn idle(&mut self) -> Result<(), ApplyError> {
        if self.checkpoints.running.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join_checkpoint()?;
        }
        self.checkpoint_when_due()
    }

    fn stop(&mut self) -> Result<(), ApplyError> {
        self.join_checkpoint()?;
        self.begin_checkpoint()?;
        self.join_checkpoint()
    }
}
