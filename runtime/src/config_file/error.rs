//! Settings that cannot be used.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::place::Excerpt;

/// Why settings cannot be used. Its text is several lines for people: message, place, line, carets.
#[derive(Debug, Clone)]
pub enum ConfigError {
    /// The file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
    /// `--set` without `=`.
    Set {
        /// As given.
        given: String,
    },
    /// A key that does not exist.
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// The key that was probably meant.
        nearest: Option<String>,
        /// Where it stands.
        place: Excerpt,
    },
    /// A value of the wrong type, a missing key, or no TOML at all.
    Malformed {
        /// What is wrong.
        problem: String,
        /// Where; none when something is missing altogether.
        place: Option<Excerpt>,
    },
    /// A value that the settings' own check refuses.
    Rejected {
        /// The key, dotted.
        key: String,
        /// What is wrong with the value.
        problem: String,
        /// Where the value comes from; none when it is a default.
        place: Option<Excerpt>,
    },
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => {
                write!(f, "cannot read settings from {}: {source}", path.display())
            }
            Self::Set { given } => write!(f, "`--set {given}`: must be key=value"),
            Self::UnknownKey { key, nearest, place } => {
                writeln!(f, "unknown setting `{key}`")?;
                let hint = nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"));
                place.draw(f, hint.as_deref())
            }
            Self::Malformed { problem, place } => {
                write!(f, "{problem}")?;
                draw(f, place.as_ref())
            }
            Self::Rejected { key, problem, place } => {
                write!(f, "setting `{key}`: {problem}")?;
                draw(f, place.as_ref())
            }
        }
    }
}

fn draw(f: &mut fmt::Formatter<'_>, place: Option<&Excerpt>) -> fmt::Result {
    let Some(place) = place else { return Ok(()) };
    writeln!(f)?;
    place.draw(f, None)
}
