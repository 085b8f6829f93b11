//! Where each log entry lies: Raft index -> physical offset, and its term. In memory only; recovery rebuilds it from the
//! frames' headers.
//!
//! Costs 4 bytes per entry (its offset in its segment, counted in 8-byte units, so a segment may have up to 32 GiB), and 16
//! bytes per change of the term.

use crate::{EntryId, LogIndex, LogOffset, Term};

/// Greatest segment whose offsets fit into 32 bits.
pub(crate) const SEGMENT_SIZE_MAX: u64 = 8 << 32;

/// Entries of one segment, without a hole.
#[derive(Debug)]
struct Run {
    first: u64,
    base: u64,
    /// (offset - base) / 8 of each entry.
    offsets: Vec<u32>,
    /// Offset behind the last entry.
    end: u64,
}

impl Run {
    fn next(&self) -> u64 {
        self.first + self.offsets.len() as u64
    }

    fn offset(&self, at: usize) -> u64 {
        self.base + u64::from(self.offsets[at]) * 8
    }
}

/// All frames of one segment: index, term and place of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frames {
    pub(crate) base: u64,
    /// Offset behind the last frame.
    pub(crate) end: u64,
    /// Index of the first frame, which lies at `base`.
    pub(crate) first: u64,
    /// First index of each term, beginning with that of the first frame.
    pub(crate) terms: Vec<(u64, Term)>,
    /// (offset - base) / 8 of each frame; at least one.
    pub(crate) offsets: Vec<u32>,
}

impl Frames {
    /// Id and offset of the first and the last frame.
    pub(crate) fn ends(&self) -> (EntryId, (EntryId, LogOffset)) {
        let term = |at: Option<&(u64, Term)>| at.map_or(Term(0), |(_, term)| *term);
        let last = self.first + (self.offsets.len() as u64).saturating_sub(1);
        let offset = self.offsets.last().map_or(self.base, |unit| self.base + u64::from(*unit) * 8);
        (
            EntryId { term: term(self.terms.first()), index: LogIndex(self.first) },
            (EntryId { term: term(self.terms.last()), index: LogIndex(last) }, LogOffset(offset)),
        )
    }
}

/// A range of whole frames, one behind the other in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: LogOffset,
    pub(crate) end: LogOffset,
    pub(crate) frames: u64,
}

/// The dense index of one log.
#[derive(Debug)]
pub(crate) struct EntryIndex {
    segment_size: u64,
    runs: Vec<Run>,
    /// First index of each term.
    terms: Vec<(u64, Term)>,
}

impl EntryIndex {
    pub(crate) const fn new(segment_size: u64) -> Self {
        Self { segment_size, runs: Vec::new(), terms: Vec::new() }
    }

    /// Adds the entry that follows the last one (any entry if there is none).
    pub(crate) fn push(&mut self, id: EntryId, offset: LogOffset, end: LogOffset) {
        let base = offset.0 - offset.0 % self.segment_size;
        let unit = ((offset.0 - base) / 8) as u32;
        match self.runs.last_mut() {
            Some(run) if run.base == base => {
                debug_assert_eq!(run.next(), id.index.0, "entries are dense");
                run.offsets.push(unit);
                run.end = end.0;
            }
            _ => self.runs.push(Run { first: id.index.0, base, offsets: vec![unit], end: end.0 }),
        }
        if self.terms.last().is_none_or(|(_, term)| *term != id.term) {
            self.terms.push((id.index.0, id.term));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.terms.clear();
    }

    pub(crate) fn first(&self) -> Option<EntryId> {
        self.id(LogIndex(self.runs.first()?.first))
    }

    pub(crate) fn last(&self) -> Option<EntryId> {
        self.id(LogIndex(self.runs.last()?.next() - 1))
    }

    /// The entry at `index`, if it is there.
    pub(crate) fn id(&self, index: LogIndex) -> Option<EntryId> {
        self.run_of(index)?;
        let after = self.terms.partition_point(|(first, _)| *first <= index.0);
        Some(EntryId { term: self.terms[after - 1].1, index })
    }

    /// Where the entry lies: its first byte and the byte behind it.
    pub(crate) fn place(&self, index: LogIndex) -> Option<(LogOffset, LogOffset)> {
        let run = &self.runs[self.run_of(index)?];
        let at = (index.0 - run.first) as usize;
        Some((LogOffset(run.offset(at)), LogOffset(self.end_of(run, at))))
    }

    /// First and last entry of the segment that begins at `base`, and the offset behind its last frame.
    pub(crate) fn segment(&self, base: LogOffset) -> Option<(EntryId, EntryId, LogOffset)> {
        let at = self.runs.binary_search_by_key(&base.0, |run| run.base).ok()?;
        let run = &self.runs[at];
        Some((self.id(LogIndex(run.first))?, self.id(LogIndex(run.next() - 1))?, LogOffset(run.end)))
    }

    /// Where the segments begin whose frames are known, oldest first.
    pub(crate) fn bases(&self) -> Vec<LogOffset> {
        self.runs.iter().map(|run| LogOffset(run.base)).collect()
    }

    /// All frames of the segment that begins at `base`, if its first one is known.
    pub(crate) fn frames(&self, base: LogOffset) -> Option<Frames> {
        let at = self.runs.binary_search_by_key(&base.0, |run| run.base).ok()?;
        let run = &self.runs[at];
        if run.offsets.first() != Some(&0) {
            return None;
        }
        let mut terms = vec![(run.first, self.id(LogIndex(run.first))?.term)];
        terms.extend(self.terms.iter().filter(|(from, _)| *from > run.first && *from < run.next()));
        Some(Frames { base: run.base, end: run.end, first: run.first, terms, offsets: run.offsets.clone() })
    }

    /// Adds a segment whose first frame follows the last one known (any segment if there is none).
    pub(crate) fn push_segment(&mut self, frames: Frames) {
        let Frames { base, end, first, terms, offsets } = frames;
        debug_assert!(self.runs.last().is_none_or(|run| run.next() == first), "entries are dense");
        self.runs.push(Run { first, base, offsets, end });
        for (from, term) in terms {
            if self.terms.last().is_none_or(|(_, last)| *last != term) {
                self.terms.push((from, term));
            }
        }
    }

    /// Forgets every segment below `floor`.
    pub(crate) fn drop_below(&mut self, floor: LogOffset) {
        self.runs.retain(|run| run.base >= floor.0);
        let Some(first) = self.runs.first().map(|run| run.first) else {
            self.terms.clear();
            return;
        };
        let of_first = self.terms.partition_point(|(from, _)| *from <= first).saturating_sub(1);
        self.terms.drain(..of_first);
        if let Some(term) = self.terms.first_mut() {
            term.0 = first;
        }
    }

    /// The frames `[from, to)` as far as they lie in one segment and within `max_bytes`, at least one.
    pub(crate) fn span(&self, from: LogIndex, to: LogIndex, max_bytes: u64) -> Option<Span> {
        let run = &self.runs[self.run_of(from)?];
        let at = (from.0 - run.first) as usize;
        let most = (to.0.min(run.next()).saturating_sub(run.first) as usize).max(at + 1);
        let start = run.offset(at);
        let limit = start.saturating_add(max_bytes);
        // The ends rise: find how many frames end within the limit.
        let (mut low, mut high) = (at + 1, most);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.end_of(run, middle - 1) <= limit {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Some(Span {
            start: LogOffset(start),
            end: LogOffset(self.end_of(run, low - 1)),
            frames: (low - at) as u64,
        })
    }

    /// Drops every entry above `last`, all of them for None.
    pub(crate) fn truncate(&mut self, last: Option<LogIndex>) {
        let keep = last.map_or(0, |l| l.0 + 1);
        while let Some(run) = self.runs.last_mut() {
            if run.next() <= keep {
                break;
            }
            if run.first >= keep {
                self.runs.pop();
                continue;
            }
            let kept = (keep - run.first) as usize;
            run.end = run.offset(kept);
            run.offsets.truncate(kept);
        }
        while self.terms.last().is_some_and(|(first, _)| *first >= keep) {
            self.terms.pop();
        }
    }

    fn end_of(&self, run: &Run, at: usize) -> u64 {
        if at + 1 < run.offsets.len() { run.offset(at + 1) } else { run.end }
    }

    fn run_of(&self, index: LogIndex) -> Option<usize> {
        let at = self.runs.partition_point(|run| run.first <= index.0).checked_sub(1)?;
        (index.0 < self.runs[at].next()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> EntryIndex {
        let mut index = EntryIndex::new(1024);
        for (i, term, offset, end) in
            [(2, 1, 0, 400), (3, 1, 400, 1000), (4, 2, 1024, 1104), (5, 4, 1104, 1200), (6, 4, 1200, 2048)]
        {
            index.push(EntryId::new(term, i), LogOffset(offset), LogOffset(end));
        }
        index
    }

    #[test]
    fn finds_places_and_terms() {
        let index = index();
        assert_eq!(index.first(), Some(EntryId::new(1, 2)));
        assert_eq!(index.last(), Some(EntryId::new(4, 6)));
        assert_eq!(index.id(LogIndex(4)), Some(EntryId::new(2, 4)));
        assert_eq!(index.place(LogIndex(3)), Some((LogOffset(400), LogOffset(1000))));
        assert_eq!(index.place(LogIndex(5)), Some((LogOffset(1104), LogOffset(1200))));
        assert_eq!((index.place(LogIndex(1)), index.place(LogIndex(7))), (None, None));
    }

    #[test]
    fn a_span_ends_with_the_segment_the_range_or_the_budget() {
        let index = index();
        let span =
            |from, to, max| index.span(LogIndex(from), LogIndex(to), max).map(|s| (s.start.0, s.end.0));
        assert_eq!(span(2, 7, 1 << 20), Some((0, 1000)));
        assert_eq!(span(4, 7, 1 << 20), Some((1024, 2048)));
        assert_eq!(span(4, 6, 1 << 20), Some((1024, 1200)));
        assert_eq!(span(4, 7, 176), Some((1024, 1200)));
        assert_eq!(span(4, 7, 175), Some((1024, 1104)));
        assert_eq!(span(4, 7, 1), Some((1024, 1104)), "at least one");
    }

    #[test]
    fn truncation_keeps_what_is_below() {
        for keep in 2..=6 {
            let mut cut = index();
            cut.truncate(Some(LogIndex(keep)));
            assert_eq!(cut.last(), index().id(LogIndex(keep)));
            assert_eq!(cut.place(LogIndex(keep)), index().place(LogIndex(keep)));
            assert_eq!(cut.place(LogIndex(keep + 1)), None);
        }
        let mut none = index();
        none.truncate(None);
        assert_eq!((none.first(), none.last()), (None, None));
    }
}
