//! Log lines: to stderr, one per event.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Shape of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Environment variable that overrides the filter of the settings, in the syntax of `tracing-subscriber`
/// (`info,mq_raft=debug`).
pub const FILTER_VARIABLE: &str = "MQ_LOG";

/// A filter that cannot be read, or a second call.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter's text.
    #[error("log filter `{filter}`: {reason}")]
    Filter {
        /// As given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Log lines already go somewhere.
    #[error("log lines already have a destination")]
    Twice,
}

/// Sends log lines to stderr from now on. `default_filter` counts where the environment names none.
pub fn init(default_filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let from_environment = std::env::var(FILTER_VARIABLE).ok().filter(|filter| !filter.is_empty());
    let filter = filter(from_environment.as_deref().unwrap_or(default_filter))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let set = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    set.map_err(|_| TelemetryError::Twice)
}

fn filter(filter: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|error| TelemetryError::Filter { filter: filter.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_filter_is_named() {
        filter("info,mq_raft=debug").expect("a filter");
        let error = filter("mq_raft=loud").expect_err("no such level");
        assert!(error.to_string().starts_with("log filter `mq_raft=loud`: "), "{error}");
    }

    #[test]
    fn second_start_is_refused() {
        init("off", LogFormat::Json).expect("the first one");
        assert!(matches!(init("off", LogFormat::Text), Err(TelemetryError::Twice)));
    }
}
