//! A disk that hangs, watched from outside of Raft's core, which hangs with it (D11).

use std::sync::Arc;
use std::time::Duration;

use mq_store::StoreError;

use crate::group::Inner;

const LOOK: Duration = Duration::from_millis(250);
/// The oldest unflushed write is this old: somebody else shall lead.
const HAND_OVER: Duration = Duration::from_secs(2);
/// This old: stop answering, so that the others elect.
const SILENCE: Duration = Duration::from_secs(5);
/// This old: the process ends; its sockets would live on in a hung fdatasync.
const END: Duration = Duration::from_secs(10);

/// Runs for the group's whole life.
pub(crate) async fn watch(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(log) = inner.log() else { continue };
        let Some(age) = log.oldest_unflushed().map(|at| at.elapsed()) else { continue };
        if age > END {
            let source = std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("a write is not flushed after {} s", age.as_secs()),
            );
            inner.fatal.raise_store(&StoreError::io("fdatasync", &inner.config.dir, source));
            return;
        }
        if age > SILENCE {
            tracing::error!(group = %inner.config.group, "disk hangs for {age:?}: leaving the network");
            inner.endpoint.close();
        } else if age > HAND_OVER && inner.leadership.borrow().me {
            tracing::warn!(group = %inner.config.group, "disk hangs for {age:?}: handing over leadership");
            inner.transfer(None, tokio::time::Instant::now() + LOOK * 4).await.ok();
        }
    }
}
