//! Between openraft and [`Apply`]: a thread of its own per group.
//!
//! openraft may hand out entries that a quorum has but the local disk does not (yet). Applying those could leave
//! state that points behind the end of the log after a crash. So the thread first waits until the writer's own
//! flushed watermark covers them (D6).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use mq_store::LogOffset;
use mq_store::commit_log::{FlushedWatermark, FrameKind};
use openraft::OptionalSend;
use openraft::entry::RaftEntry;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use tokio::sync::oneshot;

use crate::apply::{Apply, ApplyError, CommittedFrame, FrameResults, decode_membership};
use crate::fatal::FatalCell;
use crate::types::{
    EncodedMembers, Entry, FrameAnswer, LogId, Payload, Place, Proposal, StoredMembers, TypeConfig, entry_id,
    log_id,
};

/// Entries per call of [`Apply::apply`].
const BATCH_ENTRIES: usize = 64;
/// Bytes per call of [`Apply::apply`], at least one entry.
const BATCH_BYTES: usize = 4 << 20;
/// Batches between openraft's task and the thread.
const QUEUED_BATCHES: usize = 2;
const IDLE: Duration = Duration::from_secs(1);

type Responders = Vec<Option<ApplyResponder<TypeConfig>>>;

enum Job {
    State(oneshot::Sender<Result<(Option<LogId>, StoredMembers), ApplyError>>),
    Apply {
        frames: Vec<CommittedFrame>,
        responders: Responders,
        done: oneshot::Sender<Result<(), ApplyError>>,
    },
    Stop {
        checkpoint: bool,
        done: oneshot::Sender<Result<(), ApplyError>>,
    },
}

/// openraft's side of the thread.
pub(crate) struct StateMachine {
    jobs: SyncSender<Job>,
}

/// The owner's side: ends the thread.
pub(crate) struct ApplyThread {
    jobs: SyncSender<Job>,
    thread: Option<JoinHandle<()>>,
}

impl ApplyThread {
    /// Starts the thread around `apply`.
    pub(crate) fn start(
        group: &str,
        apply: Box<dyn Apply>,
        watermark: Arc<dyn FlushedWatermark>,
        fatal: FatalCell,
    ) -> Result<(Self, StateMachine), io::Error> {
        let (jobs, queue) = sync_channel(QUEUED_BATCHES);
        let worker = Worker { apply, watermark, fatal, failed: None };
        let thread =
            std::thread::Builder::new().name(format!("apply-{group}")).spawn(move || worker.run(&queue))?;
        Ok((Self { jobs: jobs.clone(), thread: Some(thread) }, StateMachine { jobs }))
    }

    /// Ends the thread; with `checkpoint` its last call is [`Apply::stop`].
    pub(crate) async fn stop(&mut self, checkpoint: bool) -> Result<(), ApplyError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let jobs = self.jobs.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let (done, outcome) = oneshot::channel();
            let sent = jobs.send(Job::Stop { checkpoint, done });
            let outcome = if sent.is_ok() { outcome.blocking_recv().unwrap_or(Ok(())) } else { Ok(()) };
            // A panic of the thread was already reported as one of its callers' failed jobs.
            drop(thread.join());
            outcome
        });
        ended.await.unwrap_or_else(|e| Err(ApplyError::Other(format!("apply thread: {e}"))))
    }
}

struct Worker {
    apply: Box<dyn Apply>,
    watermark: Arc<dyn FlushedWatermark>,
    fatal: FatalCell,
    failed: Option<ApplyError>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        let mut next_idle = Instant::now() + IDLE;
        loop {
            let job = match queue.recv_timeout(next_idle.saturating_duration_since(Instant::now())) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            match job {
                Some(Job::State(answer)) => drop(answer.send(self.state())),
                Some(Job::Apply { frames, responders, done }) => {
                    drop(done.send(self.apply(&frames, responders)));
                }
                Some(Job::Stop { checkpoint, done }) => {
                    let clean = checkpoint && self.failed.is_none();
                    drop(done.send(if clean { self.apply.stop() } else { Ok(()) }));
                    return;
                }
                None => {}
            }
            if Instant::now() >= next_idle {
                next_idle = Instant::now() + IDLE;
                if self.failed.is_none() {
                    let idle = self.apply.idle();
                    self.keep(idle).ok();
                }
            }
        }
    }

    /// The first failure is final: later calls get it again, and the group stops.
    fn keep<T>(&mut self, result: Result<T, ApplyError>) -> Result<T, ApplyError> {
        if let Err(error) = &result {
            self.fatal.raise_apply(error);
            self.failed = Some(error.clone());
        }
        result
    }

    fn state(&self) -> Result<(Option<LogId>, StoredMembers), ApplyError> {
        let applied = self.apply.applied()?.map(log_id);
        let Some(stored) = self.apply.membership()? else { return Ok((applied, StoredMembers::default())) };
        let malformed = |text: String| ApplyError::Other(format!("stored membership: {text}"));
        let (id, body) = decode_membership(&stored)
            .ok_or_else(|| malformed(format!("{} bytes are too few", stored.len())))?;
        let members = EncodedMembers::decode(body, 0).map_err(|e| malformed(e.to_string()))?.members;
        Ok((applied, StoredMembers::new(Some(log_id(id)), Arc::unwrap_or_clone(members))))
    }

    fn apply(&mut self, frames: &[CommittedFrame], responders: Responders) -> Result<(), ApplyError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Some(last) = frames.last() else { return Ok(()) };
        // The writer's end is the reason in `fatal` already, or a shutdown: not a failure of apply.
        self.watermark.wait(last.id.index).map_err(ApplyError::Store)?;
        let mut results = Vec::with_capacity(frames.len());
        let applied = self.apply.apply(frames, &mut results);
        self.keep(applied)?;
        if results.len() != frames.len() {
            let text = format!("{} results for {} frames", results.len(), frames.len());
            return self.keep(Err(ApplyError::Other(text)));
        }
        for ((frame, items), responder) in frames.iter().zip(results).zip(responders) {
            if let Some(responder) = responder {
                responder.send(answer(frame, items));
            }
        }
        Ok(())
    }
}

fn answer(frame: &CommittedFrame, items: FrameResults) -> FrameAnswer {
    FrameAnswer { store_time: frame.store_time, lease_time: frame.lease_time, items }
}

impl StateMachine {
    async fn send(&self, mut job: Job) -> Result<(), io::Error> {
        // Bounded and almost always free: the caller waits for each batch's end.
        loop {
            match self.jobs.try_send(job) {
                Ok(()) => return Ok(()),
                Err(std::sync::mpsc::TrySendError::Full(back)) => {
                    job = back;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return Err(stopped()),
            }
        }
    }

    async fn apply_batch(
        &self,
        frames: Vec<CommittedFrame>,
        responders: Responders,
    ) -> Result<(), io::Error> {
        let (done, outcome) = oneshot::channel();
        self.send(Job::Apply { frames, responders, done }).await?;
        outcome.await.map_err(|_| stopped())?.map_err(io::Error::other)
    }
}

fn stopped() -> io::Error {
    io::Error::other("the apply thread stopped")
}

fn committed_frame(entry: Entry) -> CommittedFrame {
    let id = entry_id(&entry.log_id);
    // Entries that openraft's own suite applies without a log have no place.
    let (offset, head_crc) = match entry.place {
        Place::Local { offset, head_crc } => (offset, head_crc),
        Place::Peer { head_crc } => (LogOffset(0), head_crc),
        Place::New => (LogOffset(0), 0),
    };
    match entry.payload {
        Payload::Blank => CommittedFrame {
            kind: FrameKind::Blank,
            id,
            offset,
            store_time: 0,
            lease_time: 0,
            count: 0,
            body: bytes::Bytes::new(),
            head_crc,
        },
        Payload::Items(Proposal { kind, flags: _, count, store_time, lease_time, body, body_crc: _ }) => {
            CommittedFrame { kind, id, offset, store_time, lease_time, count, body, head_crc }
        }
        Payload::Membership(EncodedMembers { members: _, bytes, crc: _ }) => CommittedFrame {
            kind: FrameKind::Membership,
            id,
            offset,
            store_time: 0,
            lease_time: 0,
            count: 0,
            body: bytes,
            head_crc,
        },
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = NoSnapshot;
    type SnapshotBuilder = NoSnapshot;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), io::Error> {
        let (answer, state) = oneshot::channel();
        self.send(Job::State(answer)).await?;
        state.await.map_err(|_| stopped())?.map_err(io::Error::other)
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let (mut frames, mut responders, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            debug_assert!(entry.index() < u64::MAX);
            let frame = committed_frame(entry);
            bytes += frame.body.len();
            frames.push(frame);
            responders.push(responder);
            if frames.len() >= BATCH_ENTRIES || bytes >= BATCH_BYTES {
                self.apply_batch(std::mem::take(&mut frames), std::mem::take(&mut responders)).await?;
                bytes = 0;
            }
        }
        if frames.is_empty() {
            return Ok(());
        }
        self.apply_batch(frames, responders).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<NoSnapshot> {
        // Forced only when the log was purged, which this version never asks for: the builder's error tells.
        force.then_some(NoSnapshot)
    }

    async fn get_snapshot_builder(&mut self) -> NoSnapshot {
        NoSnapshot
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMetaOf<TypeConfig>,
        _snapshot: NoSnapshot,
    ) -> Result<(), io::Error> {
        Err(NoSnapshot::error())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig, NoSnapshot>>, io::Error> {
        Ok(None)
    }
}

/// There are no snapshots yet: nothing is purged, every member gets the whole log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoSnapshot;

impl NoSnapshot {
    fn error() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, "this version builds and installs no snapshots")
    }
}

impl RaftSnapshotBuilder<TypeConfig> for NoSnapshot {
    type SnapshotData = NoSnapshot;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, NoSnapshot>, io::Error> {
        Err(Self::error())
    }
}
