//! From an identity to a running Raft: log, state, apply thread, core.

use std::collections::BTreeMap;
use std::sync::Arc;

use mq_store::commit_log::{CommitLog, CommitLogConfig};
use mq_store::{GroupMeta, StateStore, StoreError};
use openraft::errors::{InitializeError, RaftError};
use openraft::{Config, SnapshotPolicy};
use tokio::sync::{mpsc, oneshot};

use crate::apply::ApplyDeps;
use crate::bootstrap::{Start, form};
use crate::config::{GroupConfig, NodeId, Timers};
use crate::error::{IdentityMismatch, StartError};
use crate::group::{Inner, Running};
use crate::log_storage::LogStorage;
use crate::network::client::Network;
use crate::network::presence;
use crate::proposer::Proposer;
use crate::state_machine::{ApplyThread, StateMachine};
use crate::types::{Node, Raft};
use crate::{election, leadership, repair, vote};

/// What a frame needs besides its body: header and padding.
pub(crate) const FRAME_OVERHEAD: usize = mq_store::FRAME_HEADER_LEN + 8;

/// Forms the group first, if it is not yet, then starts Raft. Failures are fatal for the group.
pub(crate) async fn form_and_start(inner: Arc<Inner>) {
    let formed = form(&inner.endpoint, &inner.config, &inner.deps.random).await;
    let start = match formed {
        Ok(start) => start,
        Err(mismatch) => return inner.fatal.raise_identity(mismatch),
    };
    let waiting = match &start {
        Start::Join => inner.config.members.first().map_or("", |m| &m.node),
        Start::Initialise(_) => "",
    };
    let waiting = if waiting.is_empty() { String::new() } else { format!("{waiting} (to form the group)") };
    inner.endpoint.formation.set_waiting_for(waiting);
    if let Err(error) = start_raft(&inner, start).await {
        raise(&inner, &error);
    }
}

/// A start that failed behind a running group ends it.
pub(crate) fn raise(inner: &Inner, error: &StartError) {
    match error {
        StartError::Identity(mismatch) => inner.fatal.raise_identity(mismatch),
        StartError::Store(error) => inner.fatal.raise_store(error),
        StartError::Apply(error) => inner.fatal.raise_apply(error),
        error => inner.fatal.raise_internal(error),
    }
}

/// Opens everything and starts Raft; returns when it runs.
pub(crate) async fn start_raft(inner: &Arc<Inner>, start: Start) -> Result<(), StartError> {
    let Opened { log, storage, apply, machine } = open_repaired(inner).await?;
    let me = inner.endpoint.local.me;
    let config = Arc::new(raft_config(&inner.config, inner.leader_restore).validate().map_err(raft_error)?);
    let network = Network { endpoint: inner.endpoint.clone() };
    let new = Raft::new(me, config, network, storage, machine);
    let raft = inner.transport.handle().spawn(new).await.map_err(raft_error)?.map_err(raft_error)?;
    inner.endpoint.set_raft(raft.clone(), log.clone());
    if let Start::Initialise(stores) = start {
        let nodes = initial_nodes(&inner.config, &stores);
        match raft.initialize(nodes).await {
            // It was already: a restart in the middle of forming.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(raft_error(error)),
        }
    }
    let (calls, receiver) = mpsc::channel(inner.config.limits.waiting_calls);
    let meta = inner.endpoint.formation.meta();
    let body_limit = (meta.frame_limit as usize).saturating_sub(FRAME_OVERHEAD);
    let proposer = Proposer {
        raft: raft.clone(),
        clock: inner.clock.clone(),
        limits: inner.config.limits.clone(),
        body_limit,
        patience: inner.config.timers.heartbeat,
    };
    inner.spawn_running(proposer.run(receiver));
    inner.spawn_running(leadership::follow(
        raft.clone(),
        me,
        inner.clock.clone(),
        inner.endpoint.clone(),
        inner.leadership.clone(),
    ));
    inner.spawn_running(election::watch(inner.endpoint.clone(), raft.clone()));
    for member in inner.config.members.iter().filter(|m| m.id != me) {
        inner.spawn_running(presence::watch(inner.endpoint.clone(), member.id, member.raft_address.clone()));
    }
    inner.run(Running { raft, log, calls, apply: tokio::sync::Mutex::new(apply), body_limit });
    Ok(())
}

/// Opens; ranges of the log that are damaged come from another member first.
async fn open_repaired(inner: &Arc<Inner>) -> Result<Opened, StartError> {
    repair::repair_noted(inner).await?;
    for _ in 0..repair::REPAIRS_MAX {
        let opening = inner.clone();
        let opened = inner.transport.handle().spawn_blocking(move || open(&opening));
        match opened.await.map_err(raft_error)? {
            Err(StartError::Store(damage @ StoreError::Damaged { .. })) => {
                repair::repair(inner, &damage).await?;
            }
            opened => return opened,
        }
    }
    let opening = inner.clone();
    inner.transport.handle().spawn_blocking(move || open(&opening)).await.map_err(raft_error)?
}

struct Opened {
    log: CommitLog,
    storage: LogStorage,
    apply: ApplyThread,
    machine: StateMachine,
}

fn open(inner: &Inner) -> Result<Opened, StartError> {
    let files = &inner.files;
    mq_store::snapshot::finish_install(files)?;
    let meta = files.meta().unwrap_or_default();
    let limits = &inner.config.limits;
    let config = CommitLogConfig {
        segment_size: meta.segment_size,
        frame_limit: meta.frame_limit,
        ring_bytes: limits.ring_bytes,
        write_batch_bytes: limits.write_batch_bytes.max(meta.frame_limit as usize),
        chain_start: crc32c::crc32c(meta.group_uuid.as_bytes()),
    };
    // What a checkpoint covers must be in the log: an end below it is damage, not a torn tail.
    let covered = StateStore::covered_log(inner.deps.fs.as_ref(), &inner.config.dir.join("state"))?;
    let (log, report) = CommitLog::open_covered(files.clone(), config, covered)?;
    tracing::info!(group = %inner.config.group, ?report, "log recovered");
    check_unjoined(inner, &meta, &log)?;
    if files.vote().is_none() {
        // From now on a missing vote file means a wiped folder.
        let (done, saved) = oneshot::channel();
        log.save_vote(vote::no_vote(meta.node_id), Box::new(move |result| drop(done.send(result))));
        saved.blocking_recv().unwrap_or(Err(StoreError::Stopped))?;
    }
    let deps = ApplyDeps {
        log: log.clone(),
        dir: inner.config.dir.clone(),
        meta,
        fs: inner.deps.fs.clone(),
        files: files.clone(),
        retention: inner.retention.clone(),
    };
    let state = (inner.make_apply)(deps)?;
    let group = &inner.config.group;
    let (apply, machine) = ApplyThread::start(group, state, log.watermark(), inner.fatal.clone())
        .map_err(|e| StartError::Raft(format!("apply thread: {e}")))?;
    let storage =
        LogStorage::new(log.clone(), files.clone(), inner.clock.clone(), inner.fatal.clone(), limits);
    storage.restore_clock()?;
    Ok(Opened { log, storage, apply, machine })
}

/// A member that has not joined has no entries.
fn check_unjoined(inner: &Inner, meta: &GroupMeta, log: &CommitLog) -> Result<(), IdentityMismatch> {
    match log.last() {
        Some(last) if !meta.joined => Err(IdentityMismatch {
            place: inner.config.dir.display().to_string(),
            what: "content",
            expected: "no log before the member joined".to_owned(),
            found: format!("entries up to {last}"),
        }),
        _ => Ok(()),
    }
}

fn initial_nodes(config: &GroupConfig, stores: &BTreeMap<NodeId, String>) -> BTreeMap<NodeId, Node> {
    let node = |m: &crate::config::MemberConfig| Node {
        node: m.node.clone(),
        raft_address: m.raft_address.clone(),
        api_address: m.api_address.clone(),
        client_address: m.client_address.clone(),
        role: m.role,
        store_id: stores.get(&m.id).cloned().unwrap_or_default(),
    };
    config.members.iter().map(|m| (m.id, node(m))).collect()
}

fn raft_error(error: impl std::fmt::Display) -> StartError {
    StartError::Raft(error.to_string())
}

fn raft_config(config: &GroupConfig, leader_restore: bool) -> Config {
    let Timers { heartbeat, election_min, election_max, quorum_loss_probe, backoff } = &config.timers;
    let ms = |time: &std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: format!("{}/{}", config.cluster, config.group),
        heartbeat_interval: ms(heartbeat),
        heartbeat_min_interval: Some(ms(heartbeat)),
        election_timeout_min: ms(election_min),
        election_timeout_max: ms(election_max),
        quorum_loss_probe_interval: Some(ms(quorum_loss_probe)),
        backoff: (*backoff).to_owned(),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        // On, it would resume an old term and give an id that followers hold to another entry: confirmed data is
        // lost (tests/scenarios/leader_restore.rs).
        enable_leader_restore: Some(leader_restore),
        allow_log_reversion: Some(false),
        ..Config::default()
    }
}
