//! openraft's own storage suite on the shipped log and writer.
//!
//! Its state machine is the one of the tests, and its watermark says yes to everything: the suite applies entries
//! that no log ever had.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::Stream;
use mq_runtime::clock::SystemClock;
use mq_store::fs::OsFileSystem;
use mq_store::{
    CommitLog, CommitLogConfig, EntryId, FlushedWatermark, GroupFiles, GroupMeta, LogIndex, StoreError,
};
use openraft::errors::ErrorSource;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{ErrorSourceOf, SnapshotMetaOf, SnapshotOf};
use openraft::{OptionalSend, StorageError};
use parking_lot::Mutex;

use super::map_state::{AppliedLog, MapState};
use crate::apply::store_membership;
use crate::clock::GroupClock;
use crate::config::Limits;
use crate::fatal::FatalCell;
use crate::log_storage::LogStorage;
use crate::membership;
use crate::state_machine::{ApplyThread, StateMachine};
use crate::types::{LogId, StoredMembers, TypeConfig, entry_id};

struct AlwaysFlushed;

impl FlushedWatermark for AlwaysFlushed {
    fn flushed(&self) -> Option<EntryId> {
        None
    }

    fn wait(&self, _index: LogIndex) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The shipped adapter over a map, with snapshots that are no more than their meta data: the suite wants some.
struct Machine {
    shipped: StateMachine,
    applied: AppliedLog,
    newest: Arc<Mutex<Option<Meta>>>,
}

type Meta = SnapshotMetaOf<TypeConfig>;
type Snapshot = SnapshotOf<TypeConfig, ()>;

struct SnapshotBuilder {
    meta: Meta,
    newest: Arc<Mutex<Option<Meta>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        *self.newest.lock() = Some(self.meta.clone());
        Ok(Snapshot { meta: self.meta.clone(), snapshot: () })
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), io::Error> {
        self.shipped.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        self.shipped.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let (last_log_id, last_membership) = self.applied_state().await.expect("the thread runs");
        SnapshotBuilder { meta: Meta { last_log_id, last_membership }, newest: self.newest.clone() }
    }

    async fn install_snapshot(&mut self, meta: &Meta, _data: ()) -> Result<(), io::Error> {
        let members = meta.last_membership.log_id().map(|id| {
            let body = membership::encode(meta.last_membership.membership());
            store_membership(entry_id(&id), &body)
        });
        self.applied.install(meta.last_log_id.as_ref().map(entry_id), members);
        *self.newest.lock() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.newest.lock().clone().map(|meta| Snapshot { meta, snapshot: () }))
    }
}

struct Builder {
    root: PathBuf,
    built: AtomicU64,
}

impl Builder {
    fn open(&self) -> Result<(ApplyThread, LogStorage, Machine), io::Error> {
        let number = self.built.fetch_add(1, Ordering::Relaxed);
        let dir = self.root.join(number.to_string());
        let fs = Arc::new(OsFileSystem);
        let other = io::Error::other::<StoreError>;
        mq_store::fs::create_dir_durably(&*fs, &dir).map_err(other)?;
        let files = Arc::new(GroupFiles::open(fs, &dir).map_err(other)?);
        let config = CommitLogConfig {
            segment_size: 64 << 10,
            frame_limit: 16 << 10,
            chain_start: 7,
            ..CommitLogConfig::default()
        };
        let meta = GroupMeta {
            store_id: "suite".into(),
            segment_size: config.segment_size,
            frame_limit: config.frame_limit,
            chain_start: config.chain_start,
            ..GroupMeta::default()
        };
        files.save_meta(&meta).map_err(other)?;
        let (log, _report) = CommitLog::open(files.clone(), config, None).map_err(other)?;
        let fatal = FatalCell::new("suite", Arc::new(|_| {}));
        let (state, applied) = MapState::new();
        let (thread, shipped) =
            ApplyThread::start("suite", Box::new(state), Arc::new(AlwaysFlushed), fatal.clone())?;
        let clock = GroupClock::new(Arc::new(SystemClock::new()));
        let storage = LogStorage::new(log, files, clock, fatal, &Limits::default());
        let machine = Machine { shipped, applied, newest: Arc::default() };
        Ok((thread, storage, machine))
    }
}

impl StoreBuilder<TypeConfig, LogStorage, Machine, ApplyThread> for Builder {
    async fn build(&self) -> Result<(ApplyThread, LogStorage, Machine), StorageError<TypeConfig>> {
        self.open().map_err(|error| {
            let source = ErrorSourceOf::<TypeConfig>::from_error(&error);
            StorageError::read(source)
        })
    }
}

/// Runs `Suite::test_all` below `root`.
///
/// # Errors
/// The first storage error; a violated expectation panics inside the suite.
pub async fn storage_suite(root: PathBuf) -> Result<(), String> {
    let builder = Builder { root, built: AtomicU64::new(0) };
    Suite::test_all(builder).await.map_err(|error| error.to_string())
}
