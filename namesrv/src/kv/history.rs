//! The last changes, for watchers and for listings that go on where they began.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::{Entry, Name};

/// Most changes that are kept.
const EVENTS_MAX: usize = 10_000;
/// Most bytes of values that are kept.
const BYTES_MAX: usize = 16 << 20;
/// Bytes of keys and values in one page, unless a single entry has more.
pub(super) const PAGE_BYTES: usize = 1 << 20;

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub name: Name,
    /// The revision that it made.
    pub revision: u64,
    /// What the key holds since; `None`: it was deleted.
    pub after: Option<Entry>,
    /// What it held before.
    pub before: Option<Entry>,
}

impl Event {
    fn bytes(&self) -> usize {
        let value = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.value.len());
        self.name.0.len() + self.name.1.len() + value(&self.after) + value(&self.before)
    }
}

/// Part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In the order of namespace and key.
    pub entries: Vec<(Name, Entry)>,
    /// There are more behind.
    pub more: bool,
    /// The revision that it shows.
    pub revision: u64,
}

/// Changes in the order of their revisions, without a gap, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Everything behind this revision is here.
    floor: u64,
    events: VecDeque<Event>,
    bytes: usize,
}

impl History {
    pub(super) fn beginning_at(revision: u64) -> Self {
        Self { floor: revision, ..Self::default() }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some(gone) = self.events.pop_front() else { break };
            self.bytes -= gone.bytes();
            self.floor = gone.revision;
        }
    }

    /// Changes behind `revision` in their order; `None` when some of them are not kept any more.
    #[must_use]
    pub fn behind(&self, revision: u64) -> Option<impl Iterator<Item = &Event>> {
        let skipped = usize::try_from(revision.checked_sub(self.floor)?).ok()?;
        Some(self.events.range((Bound::Included(skipped.min(self.events.len())), Bound::Unbounded)))
    }

    /// What the keys that were changed behind `revision` held at it.
    pub(super) fn undone_to(&self, revision: u64) -> Option<BTreeMap<Name, Option<Entry>>> {
        let mut held = BTreeMap::new();
        for event in self.behind(revision)? {
            held.entry(event.name.clone()).or_insert_with(|| event.before.clone());
        }
        Some(held)
    }
}
