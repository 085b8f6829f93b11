//! The way out of a process: a signal or a failure, and who hears of it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

/// Asks everybody to stop, once, and remembers why. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    failure: Arc<Mutex<Option<Failure>>>,
}

/// Why a process stops by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// For people.
    pub reason: String,
}

impl Shutdown {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fires when the process is to stop. Children end with it.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Asks everybody to stop.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Asks everybody to stop because something failed. The first failure decides the exit code.
    pub fn fail(&self, exit: Exit, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(code = exit.code(), "stopping: {reason}");
        self.failure.lock().get_or_insert(Failure { exit, reason });
        self.token.cancel();
    }

    /// The failure, if one was the reason.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().clone()
    }

    /// Exit code of the process.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.failure.lock().as_ref().map_or(Exit::Done, |failure| failure.exit)
    }

    /// Waits until somebody asks to stop: a signal, [`Self::stop`] or [`Self::fail`].
    pub async fn wait(&self, signals: &mut Signals) {
        tokio::select! {
            () = self.token.cancelled() => {}
            name = signals.next() => {
                tracing::info!("{name} received, stopping");
                self.stop();
            }
        }
    }
}

/// SIGTERM and SIGINT. From its making on they no longer end the process by themselves.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes them over.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one. A second one while the process stops means: stop at once.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn first_failure_decides() {
        let shutdown = Shutdown::new();
        assert_eq!((shutdown.exit(), shutdown.token().is_cancelled()), (Exit::Done, false));
        shutdown.clone().fail(Exit::Disk, "fsync failed");
        shutdown.fail(Exit::Failed, "and then this");
        assert!(shutdown.token().is_cancelled());
        let failure = Failure { exit: Exit::Disk, reason: "fsync failed".to_owned() };
        assert_eq!((shutdown.exit(), shutdown.failure()), (Exit::Disk, Some(failure)));
    }

    #[tokio::test]
    async fn sigterm_ends_the_wait_and_not_the_process() {
        let mut signals = Signals::new().expect("signals can be taken over");
        let shutdown = Shutdown::new();
        let process = rustix::process::getpid();
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("own process");
        let waited = tokio::time::timeout(Duration::from_secs(5), shutdown.wait(&mut signals)).await;
        waited.expect("the signal ends the wait");
        assert!(shutdown.token().is_cancelled());
        assert_eq!(shutdown.exit(), Exit::Done);
    }

    #[tokio::test]
    async fn failure_ends_the_wait() {
        let mut signals = Signals::new().expect("signals can be taken over");
        let shutdown = Shutdown::new();
        shutdown.fail(Exit::Identity, "another cluster's folder");
        shutdown.wait(&mut signals).await;
        assert_eq!(shutdown.exit().code(), 72);
    }
}
