//! File, environment and flags as one document that remembers where each value came from.
//!
//! Every source has a range of positions of its own: the file begins at 0, the others follow. TOML values carry the
//! positions they were read at, so the position in an error says which source it is about.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::error::ConfigError;
use super::place::Excerpt;
use super::schema::Key;

/// Up to so many changed characters a key counts as misspelt rather than as invented.
const TYPOS_MAX: usize = 3;

#[derive(Debug)]
pub struct Document {
    file: Source,
    /// In order of rising precedence.
    overrides: Vec<Override>,
    /// Dotted keys of the settings' type.
    keys: Vec<String>,
}

#[derive(Debug)]
struct Source {
    origin: String,
    /// As a person would write it.
    text: String,
    /// Position of its first byte.
    start: usize,
}

/// A value from the environment or a flag.
#[derive(Debug)]
struct Override {
    source: Source,
    key: Key,
    /// Where in the text the value begins.
    value_at: usize,
}

impl Source {
    fn excerpt(&self, span: &Range<usize>) -> Excerpt {
        let local = |at: usize| at.saturating_sub(self.start);
        Excerpt::new(&self.origin, &self.text, &(local(span.start)..local(span.end)))
    }

    fn end(&self) -> usize {
        self.start + self.text.len() + 1
    }
}

impl Document {
    pub fn new(
        file: Option<String>,
        text: String,
        keys: &[Key],
        environment: &[(String, String)],
        set: &[String],
    ) -> Result<Self, ConfigError> {
        let file = Source { origin: file.unwrap_or_else(|| "no file".to_owned()), text, start: 0 };
        let dotted = keys.iter().map(Key::dotted).collect();
        let mut document = Self { file, overrides: Vec::new(), keys: dotted };
        for (name, value) in environment {
            if let Some(key) = keys.iter().find(|key| key.variable() == *name) {
                document.push(format!("environment {name}"), value.clone(), 0, key.clone());
            }
        }
        for given in set {
            let (name, _) = given.split_once('=').ok_or_else(|| ConfigError::Set { given: given.clone() })?;
            let found = keys.iter().find(|key| key.dotted() == name.trim());
            let Some(key) = found else {
                let place = Excerpt::new("--set", given, &(0..name.len()));
                let nearest = document.nearest(name.trim(), "");
                return Err(ConfigError::UnknownKey { key: name.trim().to_owned(), nearest, place });
            };
            document.push("--set".to_owned(), given.clone(), name.len() + 1, key.clone());
        }
        Ok(document)
    }

    fn push(&mut self, origin: String, text: String, value_at: usize, key: Key) {
        let start = self.overrides.last().map_or(self.file.end(), |last| last.source.end());
        self.overrides.push(Override { source: Source { origin, text, start }, key, value_at });
    }

    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let mut root = DeTable::parse(&self.file.text).map_err(|error| self.explain(&error))?;
        // A value of TOML is read at the end of so much white space that its positions are those of its source.
        let padded: Vec<String> = self.overrides.iter().map(Override::padded).collect();
        for (over, padded) in self.overrides.iter().zip(&padded) {
            let value = over.value(padded).map_err(|error| self.explain(&error))?;
            insert(root.get_mut(), &over.key.path, value);
        }
        T::deserialize(Deserializer::from(root)).map_err(|error| self.explain(&error))
    }

    /// The error of serde or of the TOML parser, with its place.
    fn explain(&self, error: &toml::de::Error) -> ConfigError {
        let place = error.span().map(|span| self.excerpt(&span)).filter(|place| !place.text.is_empty());
        let unknown = error.message().strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
        match (unknown, place) {
            (Some((name, others)), Some(place)) => {
                ConfigError::UnknownKey { key: name.to_owned(), nearest: self.nearest(name, others), place }
            }
            (_, place) => ConfigError::Malformed { problem: error.message().trim().to_owned(), place },
        }
    }

    fn excerpt(&self, span: &Range<usize>) -> Excerpt {
        let over = self.overrides.iter().rfind(|over| over.source.start <= span.start);
        over.map_or(&self.file, |over| &over.source).excerpt(span)
    }

    /// The key that a misspelt one probably means: of those that serde names in `others`, else of all.
    fn nearest(&self, name: &str, others: &str) -> Option<String> {
        let siblings: Vec<&str> = others.split('`').skip(1).step_by(2).collect();
        let all: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        let best = |candidates: &[&str]| {
            let distance = |candidate: &&&str| strsim::damerau_levenshtein(name, candidate);
            let best = candidates.iter().min_by_key(distance)?;
            (distance(&best) <= TYPOS_MAX.min(name.len() / 2)).then(|| (*best).to_owned())
        };
        // The right name in the wrong table.
        let elsewhere =
            || all.iter().find(|key| key.rsplit('.').next() == Some(name)).map(|key| (*key).to_owned());
        best(&siblings).or_else(elsewhere).or_else(|| best(&all))
    }

    pub fn reject(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Rejected { key: key.to_owned(), problem, place: self.place(key) }
    }

    /// Where the value of a key comes from: a flag or variable that set it or a table around it, else the longest
    /// part of the key that stands in the file.
    fn place(&self, key: &str) -> Option<Excerpt> {
        let covers = |over: &&Override| {
            let dotted = over.key.dotted();
            key.strip_prefix(dotted.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if let Some(over) = self.overrides.iter().rev().find(covers) {
            let start = over.source.start + over.value_at;
            return Some(over.source.excerpt(&(start..over.source.end() - 1)));
        }
        let root = DeTable::parse(&self.file.text).ok()?;
        let span = find(root.get_ref(), key)?;
        Some(self.file.excerpt(&span))
    }
}

impl Override {
    fn padded(&self) -> String {
        const ASSIGN: &str = "v=";
        let pad = (self.source.start + self.value_at).saturating_sub(ASSIGN.len());
        format!("{}{ASSIGN}{}", " ".repeat(pad), &self.source.text[self.value_at..])
    }

    /// A text as it is, or in quotes; everything else as TOML.
    fn value<'a>(&'a self, padded: &'a str) -> Result<Spanned<DeValue<'a>>, toml::de::Error> {
        let raw = self.source.text[self.value_at..].trim();
        let start = self.source.start + self.value_at;
        let span = start..self.source.end() - 1;
        if self.key.text && !raw.starts_with(['"', '\'']) {
            return Ok(Spanned::new(span, DeValue::String(Cow::Borrowed(raw))));
        }
        let mut table = DeTable::parse(padded)?.into_inner();
        let value = std::mem::take(&mut table).into_iter().next().map(|(_, value)| value);
        Ok(value.unwrap_or_else(|| Spanned::new(span, DeValue::String(Cow::Borrowed(raw)))))
    }
}

/// Puts a value at a path; tables on the way are made. What stands in the way is replaced: the type check that
/// follows says what is wrong.
fn insert<'a>(table: &mut DeTable<'a>, path: &[String], value: Spanned<DeValue<'a>>) {
    let [name, rest @ ..] = path else { return };
    let key = || Spanned::new(value.span(), Cow::Owned(name.clone()));
    if rest.is_empty() {
        table.insert(key(), value);
        return;
    }
    let entry =
        table.entry(key()).or_insert_with(|| Spanned::new(value.span(), DeValue::Table(DeTable::new())));
    if !entry.get_ref().is_table() {
        *entry = Spanned::new(value.span(), DeValue::Table(DeTable::new()));
    }
    if let DeValue::Table(inner) = entry.get_mut() {
        insert(inner, rest, value);
    }
}

/// Positions of the value of a dotted key, or of the last part of it that is there.
fn find(root: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let parts = key.split(['.', '[']).map(|part| part.trim_end_matches(']'));
    let mut span = None;
    let mut here: Option<&DeValue<'_>> = None;
    for part in parts {
        let table = match here {
            None => Some(root),
            Some(value) => value.as_table(),
        };
        let next = match (table, here.and_then(DeValue::as_array)) {
            (Some(table), _) => table.iter().find(|(name, _)| name.get_ref() == part).map(|(_, value)| value),
            (None, Some(list)) => part.parse::<usize>().ok().and_then(|at| list.get(at)),
            (None, None) => None,
        };
        let Some(next) = next else { break };
        span = Some(next.span());
        here = Some(next.get_ref());
    }
    span
}
