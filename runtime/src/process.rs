//! The frame of a server's process: what stands around its start and its stop, whatever the server is.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use crate::admin_http::BindError;
use crate::config_file::ConfigError;
use crate::exit::Exit;
use crate::shutdown::Signals;
use crate::telemetry::TelemetryError;

/// A server's own reason not to start.
pub trait StartFailure: Error {
    /// The exit code that goes with it.
    fn exit(&self) -> Exit;
}

/// Why a process ends before it runs.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted<E: StartFailure> {
    /// Settings that cannot be read or used.
    #[error("{0}")]
    Settings(Box<ConfigError>),
    /// The log lines cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// A port is in use.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The server itself.
    #[error("{0}")]
    Start(E),
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Its words.
        source: std::io::Error,
    },
}

impl<E: StartFailure> From<ConfigError> for NotStarted<E> {
    fn from(error: ConfigError) -> Self {
        Self::Settings(Box::new(error))
    }
}

impl<E: StartFailure> NotStarted<E> {
    /// The exit code that goes with it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Settings(_) | Self::Telemetry(_) | Self::Bind(_) => Exit::Config,
            Self::Start(error) => error.exit(),
            Self::System { .. } => Exit::Failed,
        }
    }
}

/// Runs a server's `main`: an error goes to the error stream, and both ways out have their code.
pub fn run<E: StartFailure>(main: impl FnOnce() -> Result<Exit, NotStarted<E>>) -> ExitCode {
    // The allocator asks for huge pages, half of which would stay empty in a process this small.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        eprintln!("huge pages stay on: {error}");
    }
    match main() {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error}");
            error.exit().into()
        }
    }
}

/// Waits for an orderly stop, but not longer than `limit`, nor after another signal: ending as it is loses nothing.
pub async fn stop_within(limit: Duration, signals: &mut Signals, stop: impl Future<Output = ()>) {
    tokio::select! {
        ended = tokio::time::timeout(limit, stop) => {
            if ended.is_err() {
                tracing::warn!("did not stop in {limit:?}; ending as it is");
            }
        }
        name = signals.next() => tracing::warn!("{name} again, stopping at once"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("wiped")]
    struct Wiped;

    impl StartFailure for Wiped {
        fn exit(&self) -> Exit {
            Exit::Identity
        }
    }

    #[test]
    fn each_reason_has_its_code() {
        assert_eq!(NotStarted::Start(Wiped).exit(), Exit::Identity);
        let source = std::io::Error::other("x");
        assert_eq!(NotStarted::<Wiped>::System { what: "no folder", source }.exit(), Exit::Failed);
        assert_eq!(NotStarted::Start(Wiped).to_string(), "wiped");
    }
}
