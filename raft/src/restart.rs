//! A group stopped and started again on its folder while its handle stays valid, for what cannot be done under a
//! running Raft: installing a snapshot.
//!
//! What always holds: between the end of the old log writer and the opening of the new log nothing of this group has a
//! file of its log open for writing. A failure on the way stops the group like any other one.

use std::sync::Arc;
use std::time::Duration;

use mq_store::{GroupFiles, StoreError};

use crate::bootstrap::Start;
use crate::error::StartError;
use crate::group::{Inner, RaftGroup, STOP_TIMEOUT};
use crate::start::{raise, start_raft};

/// The writer has this long for what is queued: longer is a hanging disk, which ends the process (D11).
const WRITER_TIMEOUT: Duration = Duration::from_secs(10);

impl RaftGroup {
    /// Stops Raft, state and log, lets `change` work on the folder, and starts them again. Calls meanwhile are answered
    /// as on a node that does not lead. Goes on to its end when the caller does not wait for it.
    ///
    /// # Errors
    /// The group is stopping, not formed, or could not go on; then it has stopped.
    pub async fn restart_in_place(
        &self,
        change: impl FnOnce(&GroupFiles) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StartError> {
        let inner = self.inner.clone();
        // Not a task of the group: its end waits for this one.
        let restarted = self.inner.transport.handle().spawn(restart(inner, change));
        restarted.await.map_err(|e| StartError::Raft(e.to_string()))?
    }
}

async fn restart(
    inner: Arc<Inner>,
    change: impl FnOnce(&GroupFiles) -> Result<(), StoreError> + Send + 'static,
) -> Result<(), StartError> {
    let _lifecycle = inner.lifecycle.lock().await;
    if inner.stopped() {
        return Err(StartError::Store(StoreError::Stopped));
    }
    stop(&inner).await?;
    let files = inner.files.clone();
    let changed = tokio::task::spawn_blocking(move || change(&files)).await;
    let changed = changed.map_err(|e| StartError::Raft(e.to_string())).and_then(|done| Ok(done?));
    let started = match changed {
        Ok(()) => start_raft(&inner, Start::Join).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &started {
        raise(&inner, error);
    }
    started
}

async fn stop(inner: &Inner) -> Result<(), StartError> {
    let Some(running) = inner.take_running() else {
        return Err(StartError::Raft(format!("group {} is not formed", inner.config.group)));
    };
    inner.endpoint.take_raft();
    inner.running_tasks.lock().abort_all();
    inner.leadership.send_modify(|l| (l.leader, l.me, l.ready) = (None, false, false));
    if tokio::time::timeout(STOP_TIMEOUT, running.raft.shutdown()).await.is_err() {
        let error = StartError::Raft(format!("raft did not stop within {STOP_TIMEOUT:?}"));
        raise(inner, &error);
        return Err(error);
    }
    if let Err(error) = running.apply.lock().await.stop(false).await {
        inner.fatal.raise_apply(&error);
        return Err(StartError::Apply(error));
    }
    let log = running.log.clone();
    let stopped = tokio::task::spawn_blocking(move || log.stop());
    if tokio::time::timeout(WRITER_TIMEOUT, stopped).await.is_err() {
        let text = format!("the log writer did not end within {WRITER_TIMEOUT:?}");
        let source = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
        let error = StoreError::io("fdatasync", &inner.config.dir, source);
        inner.fatal.raise_store(&error);
        return Err(error.into());
    }
    match running.log.failed() {
        Some(error) => {
            inner.fatal.raise_store(&error);
            Err(error.into())
        }
        None => Ok(()),
    }
}
