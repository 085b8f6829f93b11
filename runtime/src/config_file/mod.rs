//! Settings: one TOML file, then the environment, then `--set`; what comes later wins.
//!
//! * A key has the same meaning in all three: `limits.poll_ms_max`, `MQ_LIMITS_POLL_MS_MAX`, `--set
//!   limits.poll_ms_max=…`. Which keys exist is asked from the settings' type itself (`schema.rs`).
//! * A key that does not exist, in the file or in `--set`, is an error with its place and the nearest key. The type
//!   must say `#[serde(deny_unknown_fields)]` on every level.
//! * Of the environment only the names of existing keys are read; others that begin with `MQ_` are reported as
//!   [`Loaded::unknown_environment`], because container platforms put such names there by themselves.
//! * Whatever else is wrong with a value, the error names where it came from.

mod error;
mod merge;
mod place;
mod schema;

use std::path::PathBuf;

use serde::de::DeserializeOwned;

pub use error::ConfigError;
pub use schema::Key;

use merge::Document;

/// Prefix of all environment names.
pub const ENVIRONMENT_PREFIX: &str = "MQ_";

/// Where settings come from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file; none means that everything is given otherwise.
    pub file: Option<PathBuf>,
    /// Environment variables: name and value.
    pub environment: Vec<(String, String)>,
    /// Values of `--set`: `key=value`.
    pub set: Vec<String>,
}

impl Sources {
    /// A file, the process's environment, and what `--set` gave.
    #[must_use]
    pub fn new(file: Option<PathBuf>, set: Vec<String>) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX))
            .collect();
        Self { file, environment, set }
    }

    /// Reads, lays one over the other, and makes the settings.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Loaded<T>, ConfigError> {
        let text = match &self.file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source: source.into() })?,
            None => String::new(),
        };
        let file = self.file.as_ref().map(|path| path.display().to_string());
        let keys = schema::keys::<T>();
        let document = Document::new(file, text, &keys, &self.environment, &self.set)?;
        let settings = document.deserialize()?;
        let unknown_environment = self.unknown_environment(&keys);
        Ok(Loaded { settings, unknown_environment, document })
    }

    fn unknown_environment(&self, keys: &[Key]) -> Vec<String> {
        let known = |name: &str| {
            name == crate::telemetry::FILTER_VARIABLE || keys.iter().any(|key| key.variable() == name)
        };
        self.environment.iter().map(|(name, _)| name).filter(|name| !known(name)).cloned().collect()
    }
}

/// Settings that have the right shape.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The settings. Their values are not checked against each other yet.
    pub settings: T,
    /// Environment names that begin with `MQ_` and mean nothing here; worth a warning.
    pub unknown_environment: Vec<String>,
    document: Document,
}

impl<T> Loaded<T> {
    /// An error about a value, with the place it came from: the file's line, the variable, the flag. `key` is dotted
    /// and may count list entries: `broker.group[0].members[1].raft`.
    #[must_use]
    pub fn reject(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        self.document.reject(key, problem.into())
    }
}

/// A value against its range. The text names the value and the range: `0 is out of range; allowed are 1 to 10`.
pub fn in_range<N: PartialOrd + std::fmt::Display>(value: N, min: N, max: N) -> Result<(), String> {
    if min <= value && value <= max {
        return Ok(());
    }
    Err(format!("{value} is out of range; allowed are {min} to {max}"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
