//! openraft's own storage suite on the shipped log and writer.
//!
//! Its state machine is the one of the tests, and its watermark says yes to everything: the suite applies entries
//! that no log ever had.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mq_runtime::clock::SystemClock;
use mq_store::fs::OsFileSystem;
use mq_store::{
    CommitLog, CommitLogConfig, EntryId, FlushedWatermark, GroupFiles, GroupMeta, LogIndex, StoreError,
};
use openraft::StorageError;
use openraft::errors::ErrorSource;
use openraft::testing::log::{StoreBuilder, Suite};

use super::map_state::MapState;
use crate::clock::GroupClock;
use crate::config::Limits;
use crate::fatal::FatalCell;
use crate::log_storage::LogStorage;
use crate::state_machine::{ApplyThread, StateMachine};
use crate::types::TypeConfig;

struct AlwaysFlushed;

impl FlushedWatermark for AlwaysFlushed {
    fn flushed(&self) -> Option<EntryId> {
        None
    }

    fn wait(&self, _index: LogIndex) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Builder {
    root: PathBuf,
    built: AtomicU64,
}

impl Builder {
    fn open(&self) -> Result<(ApplyThread, LogStorage, StateMachine), std::io::Error> {
        let number = self.built.fetch_add(1, Ordering::Relaxed);
        let dir = self.root.join(number.to_string());
        let fs = Arc::new(OsFileSystem);
        let other = std::io::Error::other::<StoreError>;
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
        let (state, _applied) = MapState::new();
        let (thread, machine) =
            ApplyThread::start("suite", Box::new(state), Arc::new(AlwaysFlushed), fatal.clone())?;
        let clock = GroupClock::new(Arc::new(SystemClock::new()));
        let storage = LogStorage::new(log, files, clock, fatal, &Limits::default());
        Ok((thread, storage, machine))
    }
}

impl StoreBuilder<TypeConfig, LogStorage, StateMachine, ApplyThread> for Builder {
    async fn build(&self) -> Result<(ApplyThread, LogStorage, StateMachine), StorageError<TypeConfig>> {
        self.open().map_err(|error| {
            let source = openraft::type_config::alias::ErrorSourceOf::<TypeConfig>::from_error(&error);
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
