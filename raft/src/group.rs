//! One group on this node, as its server uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mq_store::GroupFiles;
use mq_store::Term;
use mq_store::commit_log::CommitLog;
use mq_store::item::EncodedItem;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::apply::{MakeApply, RetentionFloor};
use crate::bootstrap::{Formation, Start};
use crate::clock::GroupClock;
use crate::config::{Deps, GroupConfig, NodeId};
use crate::error::{ProposeError, StartError, TransferError};
use crate::fatal::FatalCell;
use crate::network::endpoint::{Endpoint, Parts};
use crate::network::local::Local;
use crate::network::transport::Transport;
use crate::proposer::{Call, Claim, Proposed, Uncommitted};
use crate::start::{form_and_start, start_raft};
use crate::state_machine::ApplyThread;
use crate::status;
use crate::transfer::{Closed, hand_over};
use crate::types::Raft;
use crate::view::{GroupState, GroupStatusView, Leadership};
use crate::watchdog;

const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A group that this process takes part in. Clones share it.
#[derive(Clone)]
pub struct RaftGroup {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for RaftGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftGroup")
            .field("group", &self.inner.config.group)
            .field("node_id", &self.node_id())
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub config: GroupConfig,
    pub deps: Deps,
    pub transport: Arc<Transport>,
    pub endpoint: Arc<Endpoint>,
    pub clock: GroupClock,
    pub fatal: FatalCell,
    pub leadership: watch::Sender<Leadership>,
    /// For the regression test that shows why it must stay off.
    pub leader_restore: bool,
    pub retention: RetentionFloor,
    pub files: Arc<GroupFiles>,
    pub make_apply: MakeApply,
    uncommitted: Arc<Uncommitted>,
    closed: Arc<AtomicUsize>,
    stopping: AtomicBool,
    running: RwLock<Option<Arc<Running>>>,
    /// Start, restart in place and end, one at a time.
    pub lifecycle: tokio::sync::Mutex<()>,
    tasks: Mutex<JoinSet<()>>,
    pub running_tasks: Mutex<JoinSet<()>>,
}

/// What exists once the group is formed.
pub(crate) struct Running {
    pub raft: Raft,
    pub log: CommitLog,
    pub calls: mpsc::Sender<Call>,
    pub apply: tokio::sync::Mutex<ApplyThread>,
    pub body_limit: usize,
}

impl Inner {
    pub(crate) fn log(&self) -> Option<CommitLog> {
        self.running().map(|running| running.log.clone())
    }

    pub(crate) fn running(&self) -> Option<Arc<Running>> {
        self.running.read().clone()
    }

    /// Nothing of this Raft is handed out any more.
    pub(crate) fn take_running(&self) -> Option<Arc<Running>> {
        self.running.write().take()
    }

    pub(crate) fn run(&self, running: Running) {
        *self.running.write() = Some(Arc::new(running));
    }

    /// A task of this group, on the Raft runtime, until the group ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().spawn_on(task, self.transport.handle());
    }

    /// A task that ends with the Raft that runs now.
    pub(crate) fn spawn_running(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running_tasks.lock().spawn_on(task, self.transport.handle());
    }

    pub(crate) async fn transfer(
        &self,
        target: Option<NodeId>,
        deadline: tokio::time::Instant,
    ) -> Result<(), TransferError> {
        let Some(running) = self.running() else { return Err(TransferError::NotLeader { leader: None }) };
        let _closed = Closed::close(&self.closed);
        let leadership = self.leadership.subscribe();
        hand_over(&running.raft, self.endpoint.local.me, target, leadership, deadline).await
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopping.load(Ordering::Acquire) || self.fatal.get().is_some()
    }
}

impl RaftGroup {
    /// Takes part in the group. A group that is formed runs when this returns; else it returns at once in state
    /// *waiting*, and the rest happens behind it.
    ///
    /// # Errors
    /// Settings that cannot work, a folder of another cluster, group or node, damaged files.
    pub async fn start(
        config: GroupConfig,
        transport: Arc<Transport>,
        deps: Deps,
        make_apply: MakeApply,
    ) -> Result<Self, StartError> {
        Self::start_with(config, transport, deps, make_apply, false).await
    }

    pub(crate) async fn start_with(
        config: GroupConfig,
        transport: Arc<Transport>,
        deps: Deps,
        make_apply: MakeApply,
        leader_restore: bool,
    ) -> Result<Self, StartError> {
        config.validate()?;
        let (opening, fs, random) = (config.clone(), deps.fs.clone(), deps.random.clone());
        let opened = transport.handle().spawn_blocking(move || {
            mq_store::fs::create_dir_durably(&*fs, &opening.dir)?;
            let files = Arc::new(GroupFiles::open(fs, &opening.dir)?);
            let formation = Formation::open(files.clone(), &opening, &random)?;
            Ok::<_, StartError>((files, Arc::new(formation)))
        });
        let (files, formation) = opened.await.map_err(|e| StartError::Raft(e.to_string()))??;
        let meta = formation.meta();
        let clock = GroupClock::new(deps.clock.clone());
        let local =
            Local::new(&config.cluster, &config.group, meta.node_id, &meta.store_id, &meta.group_uuid);
        let endpoint = Arc::new(Endpoint::new(Parts {
            local: Arc::new(local),
            clock: clock.clone(),
            faults: transport.faults.clone(),
            peers: transport.peers.clone(),
            formation,
            append_stall: config.timers.append_stall(),
            append_window: config.limits.append_window,
        }));
        let inner = Arc::new(Inner {
            fatal: FatalCell::new(&config.group, deps.on_fatal.clone()),
            config,
            deps,
            endpoint: endpoint.clone(),
            clock,
            leadership: watch::channel(Leadership::default()).0,
            leader_restore,
            retention: RetentionFloor::default(),
            files,
            make_apply,
            uncommitted: Arc::default(),
            closed: Arc::default(),
            stopping: AtomicBool::new(false),
            running: RwLock::new(None),
            lifecycle: tokio::sync::Mutex::default(),
            tasks: Mutex::default(),
            running_tasks: Mutex::default(),
            transport,
        });
        inner.transport.register(endpoint)?;
        let group = Self { inner };
        group.begin(meta.joined).await?;
        Ok(group)
    }

    async fn begin(&self, joined: bool) -> Result<(), StartError> {
        self.inner.spawn(end_on_fatal(self.inner.clone()));
        self.inner.spawn(watchdog::watch(self.inner.clone()));
        if !joined {
            self.inner.spawn(form_and_start(self.inner.clone()));
            return Ok(());
        }
        let started = start_raft(&self.inner, Start::Join).await;
        if started.is_err() {
            self.inner.tasks.lock().abort_all();
            self.inner.running_tasks.lock().abort_all();
            self.inner.transport.deregister(&self.inner.endpoint);
        }
        started
    }

    /// Proposes items for `term`. All of one call land in one frame, in order, together with those of other calls.
    ///
    /// # Errors
    /// See [`ProposeError`]; `certainly_not_stored` tells what may be repeated.
    pub async fn propose(
        &self,
        term: Term,
        items: Vec<EncodedItem>,
        deadline: Instant,
    ) -> Result<Proposed, ProposeError> {
        let running = self.admit(term)?;
        let bytes: usize = items.iter().map(EncodedItem::len).sum();
        if bytes > running.body_limit {
            let (value, limit) = (bytes as u64, running.body_limit as u64);
            return Err(ProposeError::TooLarge { value, limit });
        }
        self.check_load(&running)?;
        let limit = self.inner.config.limits.uncommitted_bytes as u64;
        let admitted = self.inner.uncommitted.admit(bytes as u64, limit)?;
        let (answer, outcome) = oneshot::channel();
        let claim = Claim::default();
        let call = Call { term, items, bytes, admitted, answer, claim: claim.clone() };
        running.calls.try_send(call).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => {
                let limit = self.inner.config.limits.waiting_calls as u64;
                ProposeError::Busy { what: "waiting calls", value: limit, limit }
            }
            mpsc::error::TrySendError::Closed(_) => ProposeError::Stopped { unknown: false },
        })?;
        match tokio::time::timeout_at(deadline.into(), outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(ProposeError::Stopped { unknown: true }),
            // It is in a frame, which may still be stored.
            Err(_) if !claim.take() => Err(ProposeError::Deadline),
            Err(_) if !self.has_quorum(&running) => Err(ProposeError::NoQuorum),
            Err(_) => Err(ProposeError::Busy { what: "frames on the way", value: 2, limit: 2 }),
        }
    }

    /// A quorum has acknowledged this leader within the lease.
    fn has_quorum(&self, running: &Running) -> bool {
        let acked = running.raft.data_metrics().borrow_watched().last_quorum_acked;
        let lease = self.inner.config.timers.election_max;
        running.raft.voter_ids().count() == 1 || acked.is_some_and(|at| at.elapsed() < lease)
    }

    /// Nothing is proposed unless this node leads that term and is ready.
    fn admit(&self, term: Term) -> Result<Arc<Running>, ProposeError> {
        if self.inner.stopped() {
            return Err(ProposeError::Stopped { unknown: false });
        }
        let Some(running) = self.inner.running() else {
            return Err(ProposeError::NotLeader { leader: None });
        };
        let leadership = self.inner.leadership.borrow();
        if !leadership.me || leadership.term != term {
            return Err(ProposeError::NotLeader { leader: leadership.leader.clone() });
        }
        if !leadership.ready {
            return Err(ProposeError::NoQuorum);
        }
        if self.inner.closed.load(Ordering::Acquire) > 0 {
            return Err(ProposeError::NotLeader { leader: None });
        }
        if !self.has_quorum(&running) {
            return Err(ProposeError::NoQuorum);
        }
        Ok(running)
    }

    fn check_load(&self, running: &Running) -> Result<(), ProposeError> {
        let limits = &self.inner.config.limits;
        let unflushed = running.log.unflushed_bytes();
        if unflushed > limits.unflushed_bytes {
            let limit = limits.unflushed_bytes;
            return Err(ProposeError::Busy { what: "unflushed bytes", value: unflushed, limit });
        }
        let lag = {
            let data = running.raft.data_metrics();
            let data = data.borrow_watched();
            let next = |id: &Option<crate::types::LogId>| id.map_or(0, |id| id.index + 1);
            next(&data.local_committed).saturating_sub(next(&data.last_applied))
        };
        if lag > limits.apply_lag {
            let limit = limits.apply_lag;
            return Err(ProposeError::Busy { what: "entries that wait for apply", value: lag, limit });
        }
        Ok(())
    }

    /// Who leads; changes are seen in order, some may be skipped.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// Everything that a status output needs.
    #[must_use]
    pub fn status(&self) -> GroupStatusView {
        let inner = &self.inner;
        let running = inner.running();
        let mut view = match &running {
            Some(running) => {
                let leadership = inner.leadership.borrow().clone();
                status::running(&inner.config, &inner.endpoint, &running.raft, &running.log, &leadership)
            }
            None => status::waiting(&inner.config, &inner.endpoint),
        };
        view.uncommitted_bytes = inner.uncommitted.bytes();
        if let Some(fatal) = inner.fatal.get() {
            (view.state, view.stopped_by) = (GroupState::Stopped, fatal.to_string());
        } else if inner.stopping.load(Ordering::Acquire) {
            view.state = GroupState::Stopped;
        }
        view
    }

    /// The group's lease time now: exact on the leader, carried on elsewhere.
    #[must_use]
    pub fn lease_now(&self) -> u64 {
        self.inner.clock.lease_now()
    }

    /// The group's due time now (D17), Unix ms: on the leader the lower median of the voters' wall clocks, carried on by
    /// its monotonic clock; elsewhere the greatest that a leader told. Never falls on a node while it runs. 0 until a
    /// majority's clocks were heard. What is decided by it goes into the log as a command.
    #[must_use]
    pub fn due_time(&self) -> u64 {
        self.inner.clock.due_now()
    }

    /// The group's log, once it is formed.
    #[must_use]
    pub fn log(&self) -> Option<CommitLog> {
        self.inner.log()
    }

    /// This member.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.inner.endpoint.local.me
    }

    /// The group's UUID; empty while it has none.
    #[must_use]
    pub fn uuid(&self) -> String {
        self.inner.endpoint.local.uuid().to_string()
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.config.group
    }

    /// Hands leadership to `target`, or to the best member, and waits until another one leads. Nothing is proposed
    /// meanwhile.
    ///
    /// # Errors
    /// Not the leader, nobody has the whole log, or not in time.
    pub async fn transfer_leadership(
        &self,
        target: Option<NodeId>,
        deadline: Instant,
    ) -> Result<(), TransferError> {
        self.inner.transfer(target, deadline.into()).await
    }

    /// Hands over leadership, then stops Raft, the state (with a last checkpoint) and the log writer.
    pub async fn shutdown(&self) {
        let voters = self.inner.running().map_or(0, |running| running.raft.voter_ids().count());
        if self.inner.leadership.borrow().me && voters > 1 {
            let deadline = tokio::time::Instant::now() + HAND_OVER_TIMEOUT;
            if let Err(error) = self.inner.transfer(None, deadline).await {
                tracing::warn!(group = %self.inner.config.group, "leadership is not handed over: {error}");
            }
        }
        self.end(true).await;
    }

    /// Stops as a killed process would, as far as that is possible inside one: no hand-over, no last checkpoint.
    #[cfg(feature = "testkit")]
    pub async fn kill(&self) {
        self.inner.transport.deregister(&self.inner.endpoint);
        self.end(false).await;
    }

    async fn end(&self, checkpoint: bool) {
        let inner = &self.inner;
        if inner.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        // A restart in place is finished first: what it starts is ended here.
        let _lifecycle = inner.lifecycle.lock().await;
        let running = inner.take_running();
        inner.tasks.lock().abort_all();
        inner.running_tasks.lock().abort_all();
        if let Some(running) = running {
            if tokio::time::timeout(STOP_TIMEOUT, running.raft.shutdown()).await.is_err() {
                tracing::error!(group = %inner.config.group, "raft did not stop within {STOP_TIMEOUT:?}");
            }
            if let Err(error) = running.apply.lock().await.stop(checkpoint).await {
                inner.fatal.raise_apply(&error);
            }
            let log = running.log.clone();
            drop(tokio::task::spawn_blocking(move || log.stop()).await);
        }
        inner.leadership.send_modify(|l| (l.leader, l.me, l.ready) = (None, false, false));
        inner.transport.deregister(&inner.endpoint);
    }
}

/// A group that cannot go on leaves the network at once, so that the others elect.
async fn end_on_fatal(inner: Arc<Inner>) {
    loop {
        let Some(running) = inner.running() else {
            tokio::select! {
                () = inner.fatal.wait() => break,
                () = tokio::time::sleep(Duration::from_millis(100)) => continue,
            }
        };
        tokio::select! {
            () = inner.fatal.wait() => {}
            error = raft_ended(&running.raft) => {
                // Another one runs, or is about to: a restart in place.
                let same = |now: Arc<Running>| Arc::ptr_eq(&now, &running);
                if inner.fatal.get().is_none() && !inner.running().is_some_and(same) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                if !inner.stopping.load(Ordering::Acquire) {
                    inner.fatal.raise_internal(error);
                }
            }
        }
        break;
    }
    inner.endpoint.close();
    inner.leadership.send_modify(|l| (l.leader, l.me, l.ready) = (None, false, false));
    if let Some(running) = inner.running() {
        drop(tokio::time::timeout(STOP_TIMEOUT, running.raft.shutdown()).await);
    }
}

/// Looks now and then: the metrics themselves change with every entry.
async fn raft_ended(raft: &Raft) -> String {
    loop {
        if let Err(fatal) = &raft.metrics().borrow_watched().running_state {
            return fatal.to_string();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
