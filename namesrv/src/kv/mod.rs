//! Settings by namespace and key, each with the revision of its last change.
//!
//! Pure: commands in, outcome out; no I/O, no clock. What always holds:
//! * The revision of the table rises by one with every change, and with nothing else; no two changes share one.
//! * A condition is judged where the command stands in the log, never before: of two that expect the same revision, one
//!   is done.
//! * The outcome is a function of the commands applied so far. What happened ([`History`]) is a way to ask for it again,
//!   bounded, and begins anew with each start of the process.

mod history;

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use mq_protocol::cluster::{NameKv, NameKvRecord};

pub use history::{Event, History, Page};

/// Longest namespace, bytes.
pub const NAMESPACE_MAX: usize = 127;
/// Longest key, bytes.
pub const KEY_MAX: usize = 512;
/// Longest value, bytes.
pub const VALUE_MAX: usize = 64 << 10;
/// Most keys of all namespaces together. A constant of the feature level: every member decides by it.
pub const KEYS_MAX: usize = 100_000;
/// Most bytes of keys and values together. A constant of the feature level, too.
pub const BYTES_MAX: usize = 32 << 20;

/// Namespace and key; neither holds a 0.
pub type Name = (String, String);

/// What a key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// Revision of its last change.
    pub revision: u64,
    /// Revision of the change that made it.
    pub created: u64,
}

/// What a command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is as the command says.
    Applied,
    /// Nothing was there to delete.
    Unchanged,
    /// The key has another revision.
    Mismatch,
    /// There are too many keys or bytes.
    Full,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct KvTable {
    entries: BTreeMap<Name, Entry>,
    revision: u64,
    bytes: usize,
    history: History,
}

/// Bytes that an entry counts for.
fn size(name: &Name, value: &Bytes) -> usize {
    name.0.len() + name.1.len() + value.len()
}

impl KvTable {
    /// The table that these records describe, as the state returns them.
    #[must_use]
    pub fn load(records: Vec<(Name, NameKvRecord)>, revision: u64) -> Self {
        let entry = |(name, record): (Name, NameKvRecord)| {
            let NameKvRecord { value, revision, created } = record;
            (name, Entry { value, revision, created })
        };
        let entries: BTreeMap<Name, Entry> = records.into_iter().map(entry).collect();
        let bytes = entries.iter().map(|(name, entry)| size(name, &entry.value)).sum();
        Self { entries, revision, bytes, history: History::beginning_at(revision) }
    }

    /// Revision of the newest change of any key.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What a key holds.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What happened lately.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Applies a command.
    pub fn apply(&mut self, command: &NameKv) -> Outcome {
        let NameKv { namespace, key, value, expected } = command;
        let name = (namespace.clone(), key.clone());
        let before = self.entries.get(&name);
        let revision = before.map_or(0, |entry| entry.revision);
        if expected.is_some_and(|expected| expected != revision) {
            return Outcome::Mismatch;
        }
        match (value, before) {
            (None, None) => return Outcome::Unchanged,
            (Some(value), before) => {
                let old = before.map_or(0, |entry| size(&name, &entry.value));
                let too_many = before.is_none() && self.entries.len() >= KEYS_MAX;
                if too_many || self.bytes - old + size(&name, value) > BYTES_MAX {
                    return Outcome::Full;
                }
            }
            (None, Some(_)) => {}
        }
        self.change(name, value.clone());
        Outcome::Applied
    }

    fn change(&mut self, name: Name, value: Option<Bytes>) {
        self.revision += 1;
        let revision = self.revision;
        let before = match &value {
            Some(value) => {
                let created = self.entries.get(&name).map_or(revision, |entry| entry.created);
                self.bytes += size(&name, value);
                self.entries.insert(name.clone(), Entry { value: value.clone(), revision, created })
            }
            None => self.entries.remove(&name),
        };
        if let Some(before) = &before {
            self.bytes -= size(&name, &before.value);
        }
        let after = self.entries.get(&name).cloned();
        self.history.push(Event { name, revision, after, before });
    }

    /// Entries of a namespace (all for an empty one) behind `after`, as they were at `revision`; `None` when that is no
    /// longer kept. 0 stands for the newest revision; a newer one than that is not known here.
    #[must_use]
    pub fn page(&self, namespace: &str, after: &Name, limit: usize, revision: u64) -> Option<Page> {
        let revision = if revision == 0 { self.revision } else { revision };
        let undone = self.history.undone_to(revision)?;
        let mut entries = Vec::new();
        let mut bytes = 0;
        let begin = if namespace.is_empty() || after.0.as_str() >= namespace {
            Bound::Excluded(after.clone())
        } else {
            Bound::Included((namespace.to_owned(), String::new()))
        };
        let mut now = self.entries.range((begin.clone(), Bound::Unbounded)).peekable();
        let mut old = undone.range((begin, Bound::Unbounded)).peekable();
        let mut more = false;
        loop {
            let next = match (now.peek(), old.peek()) {
                (None, None) => break,
                (Some((now, _)), Some((old, _))) => (*now).min(*old).clone(),
                (Some((name, _)), None) | (None, Some((name, _))) => (*name).clone(),
            };
            let present = now.next_if(|(name, _)| **name == next).map(|(_, entry)| entry);
            let entry =
                old.next_if(|(name, _)| **name == next).map_or(present, |(_, before)| before.as_ref());
            if !namespace.is_empty() && next.0 != namespace {
                break;
            }
            let Some(entry) = entry else { continue };
            let len = size(&next, &entry.value);
            if entries.len() == limit || (!entries.is_empty() && bytes + len > history::PAGE_BYTES) {
                more = true;
                break;
            }
            bytes += len;
            entries.push((next, entry.clone()));
        }
        Some(Page { entries, more, revision })
    }
}

#[cfg(test)]
mod tests;
