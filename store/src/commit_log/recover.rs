//! What is done with the files of a log before anything else may use them (`recover`).
//!
//! 1. An open truncation is finished.
//! 2. Frames are read from the oldest segment on as long as each continues the one before: header readable at its place,
//!    index, chain, node-local mark, and above the checkpoint the body's checksum. Where a segment's frames end, the next
//!    one goes on if its first frame continues the chain.
//!    Segments that the checkpoint covers whole are not read: their files in `raft/sparse` say what they hold, and only the
//!    first and the last frame are looked at ([`super::sealed`]); the time does not depend on the log's size.
//! 3. Where that ends, it is judged. Everything before the last write batch was synced, and a batch never spans two segments.
//!    *Torn tail*: only frames of one unfinished batch, or nothing, stand behind the end; they are zeroed. *Damage*: a later
//!    batch or a later segment's frame stands behind it, or the log ends below the last checkpoint: nothing is touched.
//! 4. Everything accepted is synced, files and folder: a killed process leaves bytes that only the page cache has, and
//!    Raft counts what is here as flushed.

use std::io::IoSlice;

use super::entry::{CommitLogConfig, Covered, PlacedEntry, RecoveryReport};
use super::frame::{BatchNumber, FRAME_HEADER_LEN, FrameHeader, NotAFrame};
use super::ring::Ring;
use super::scan::{Behind, Scanner};
use super::sealed::Sealed;
use super::tail::{Base, Tail};
use crate::error::Result;
use crate::flush::truncate_files;
use crate::fs::create_dir_durably;
use crate::group_files::{GroupFiles, GroupMeta, Intent};
use crate::log_index::EntryIndex;
use crate::segment::{Segment, Segments};
use crate::snapshot::finish_install;
use crate::{EntryId, LogIndex, LogOffset, StoreError};

/// A recovered log.
pub(super) struct Recovered {
    pub(super) segments: Segments,
    pub(super) tail: Tail,
    /// Batch of the last frame.
    pub(super) batch: BatchNumber,
    /// Segments that have no file in `raft/sparse` that fits, or were read although they have one.
    pub(super) unsealed: Vec<LogOffset>,
    pub(super) report: RecoveryReport,
}

/// Why a segment's frames end where they end.
struct Stop {
    at: LogOffset,
    /// Batch of the frame there, if its header is readable.
    batch: Option<BatchNumber>,
    /// Where to look for what stands behind.
    behind: LogOffset,
    /// head_crc of the last frame that was accepted.
    chain: u32,
    /// The frame there is broken, not a whole one of another history.
    broken: bool,
    expected: String,
    found: String,
}

struct Recovery<'a> {
    config: &'a CommitLogConfig,
    checkpointed: Option<EntryId>,
    /// Where the checkpoint's entry ends, and its chain value.
    covered_end: Option<(LogOffset, u32)>,
    tail: Tail,
    batch: BatchNumber,
    /// Where the last batch begins.
    batch_start: LogOffset,
    /// Segments that were read whole and have another one behind them.
    unsealed: Vec<LogOffset>,
    report: RecoveryReport,
}

/// Opens the log of `files`. What it returns survives a power cut.
pub(super) fn recover(
    files: &GroupFiles,
    config: &CommitLogConfig,
    covered: Option<Covered>,
) -> Result<Recovered> {
    let dir = files.dir().join("commitlog");
    // Before anything is opened: it replaces the folder.
    finish_install(files)?;
    create_dir_durably(&**files.fs(), &dir)?;
    let meta = files.meta().unwrap_or_default();
    let segments =
        Segments::open(std::sync::Arc::clone(files.fs()), dir, config.segment_size, meta.physical_start)?;
    let mut recovery = Recovery::new(config, &meta, covered.map(|covered| covered.last));
    recovery.covered_end = covered.and_then(|covered| covered.end);
    if let Some(Intent::Truncate { cut, first, old_end: _, head_crc }) = meta.intent {
        finish(&segments, cut, first, head_crc)?;
        files.update_meta(|meta| meta.intent = None)?;
        recovery.report.finished_truncation = true;
    }
    let all = segments.all();
    let (last, stop) = recovery.read_all(files, &segments, &all)?;
    if let Some(stop) = stop {
        let later = &all[last + 1..];
        let torn = recovery.judge(&all[last], &stop, later)?;
        recovery.check_checkpoint(&all[last], &stop)?;
        if let Some(next) = later.first() {
            segments.remove_from(next.base)?;
        }
        if torn.leftover.is_some() {
            let end = all[last].end()?;
            recovery.report.torn_bytes += end.0 - stop.at.0;
            all[last].zero(stop.at, end)?;
        }
        recovery.write_last_batch_again(&all[last])?;
    } else {
        recovery.check_empty(&segments)?;
    }
    for segment in segments.all() {
        segment.file.sync_all()?;
    }
    segments.sync_dir()?;
    Ok(recovery.done(segments))
}

/// Finishes a truncation. If another frame than the one to be cut stands there already, the intent was done and only its
/// clearing was lost (one of its two slots is older): then nothing is touched.
fn finish(segments: &Segments, cut: LogOffset, first: LogOffset, head_crc: u32) -> Result<()> {
    for at in [cut, first] {
        let Some(segment) = segments.containing(at) else { continue };
        if let Ok(header) = Scanner::new(&segment)?.header(at)?
            && header.head_crc != head_crc
        {
            tracing::warn!(%cut, "a finished truncation was still noted as open");
            return Ok(());
        }
    }
    tracing::info!(%cut, "finishing a truncation");
    truncate_files(segments, cut)
}

impl<'a> Recovery<'a> {
    fn new(config: &'a CommitLogConfig, meta: &GroupMeta, checkpointed: Option<EntryId>) -> Self {
        let chain = if meta.physical_start == LogOffset(0) { config.chain_start } else { meta.chain_start };
        let base = Base { end: meta.physical_start, chain };
        let tail = Tail {
            index: EntryIndex::new(config.segment_size),
            ring: Ring::new(config.ring_bytes),
            base,
            end: base.end,
            chain: base.chain,
            purged: meta.purged,
            checkpointed: checkpointed.map(|c| c.index),
            epoch: 0,
            flushed: None,
            queue: std::collections::VecDeque::new(),
            unflushed_bytes: 0,
            writing_since: None,
            failed: None,
            stopping: false,
        };
        Self {
            config,
            checkpointed,
            covered_end: None,
            tail,
            batch: BatchNumber::default(),
            batch_start: base.end,
            unsealed: Vec::new(),
            report: RecoveryReport::default(),
        }
    }

    /// Reads frames through all segments; returns where they end: the segment and why. None if there is no segment.
    fn read_all(
        &mut self,
        files: &GroupFiles,
        segments: &Segments,
        all: &[Segment],
    ) -> Result<(usize, Option<Stop>)> {
        let Some(oldest) = all.first() else { return Ok((0, None)) };
        if oldest.base != self.tail.base.end {
            if let Ok(header) = Scanner::new(oldest)?.header(oldest.base)? {
                return Err(StoreError::Damaged {
                    path: segments.path(self.tail.base.end),
                    from: self.tail.base.end,
                    to: oldest.base,
                    chain_before: self.tail.base.chain,
                    chain_after: header.prev_crc,
                    expected: "the log's oldest segment".into(),
                    found: "no file".into(),
                });
            }
            return Err(StoreError::corrupt(
                segments.dir(),
                0,
                format!("the log's oldest segment {}", segments.path(self.tail.base.end).display()),
                oldest.file.path().display().to_string(),
            ));
        }
        let mut last = self.skip_sealed(files, all)?;
        let mut stop = self.read_segment(&all[last])?;
        while let Some(next) = all.get(last + 1) {
            // A missing segment is judged as what it is: the later ones do not continue this one.
            if next.base.0 != all[last].base.0 + self.config.segment_size || !self.continues(next)? {
                break;
            }
            self.unsealed.push(all[last].base);
            last += 1;
            stop = self.read_segment(next)?;
        }
        self.report.segments = last + 1;
        Ok((last, Some(stop)))
    }

    /// Takes the oldest segments as their files in `raft/sparse` describe them, as far as the checkpoint covers all of them
    /// and each is continued by the next. Returns how many.
    fn skip_sealed(&mut self, files: &GroupFiles, all: &[Segment]) -> Result<usize> {
        let Some(covered) = self.checkpointed else { return Ok(0) };
        let mut count = 0;
        while let [segment, next, ..] = &all[count..] {
            if next.base.0 != segment.base.0 + self.config.segment_size {
                break;
            }
            let Some(sealed) = Sealed::load(files, segment)? else { break };
            let (first, (last, _)) = sealed.frames.ends();
            let follows = sealed.prev_crc == self.tail.chain
                && self.tail.index.last().is_none_or(|before| before.index.0 + 1 == first.index.0);
            let continued = Scanner::new(next)?
                .header(next.base)?
                .is_ok_and(|header| header.prev_crc == sealed.chain && header.id.index.0 == last.index.0 + 1);
            if !follows || !continued || last.index >= covered.index {
                break;
            }
            self.report.frames += sealed.frames.offsets.len() as u64;
            self.report.skipped += 1;
            (self.tail.end, self.tail.chain) = (LogOffset(sealed.frames.end), sealed.chain);
            self.tail.index.push_segment(sealed.frames);
            count += 1;
        }
        Ok(count)
    }

    /// True if the segment's first frame follows the last frame read.
    fn continues(&self, segment: &Segment) -> Result<bool> {
        let header = Scanner::new(segment)?.header(segment.base)?;
        Ok(header.is_ok_and(|h| h.prev_crc == self.tail.chain && self.index_follows(h.id.index)))
    }

    /// The next index; only over what is purged there may be a hole.
    fn index_follows(&self, index: LogIndex) -> bool {
        let Some(last) = self.tail.index.last() else { return true };
        let next = last.index.0 + 1;
        index.0 == next || self.tail.purged.is_some_and(|p| index.0 > next && index.0 <= p.index.0 + 1)
    }

    fn read_segment(&mut self, segment: &Segment) -> Result<Stop> {
        let mut scanner = Scanner::new(segment)?;
        let segment_end = LogOffset(segment.base.0 + self.config.segment_size);
        let mut at = segment.base;
        loop {
            let header = match scanner.header(at)? {
                Ok(header) => header,
                Err(why) => return Ok(Stop::unreadable(at, why, self.tail.chain)),
            };
            if let Some((expected, found)) = self.misfit(&header, segment_end) {
                let broken = header.batch.is_none() && header.prev_crc == self.tail.chain;
                return Ok(Stop { broken, ..self.stop(&header, expected, found) });
            }
            let checked = self.checkpointed.is_some_and(|c| header.id.index <= c.index);
            let body = if checked { None } else { Some(scanner.body(&header)?) };
            match body {
                Some(None) => {
                    let found = format!("the file's end at {}", scanner.file_end);
                    return Ok(self.stop(&header, format!("a frame up to {}", header.end()), found));
                }
                Some(Some(body)) => {
                    let crc = crc32c::crc32c(&body);
                    if crc != header.body_crc {
                        let expected = format!("body_crc {:08x}", header.body_crc);
                        return Ok(self.stop(&header, expected, format!("{crc:08x}")));
                    }
                    self.accept(&header);
                    self.remember(&header, body);
                }
                None if header.end() > LogOffset(scanner.file_end.0.next_multiple_of(8)) => {
                    let found = format!("the file's end at {}", scanner.file_end);
                    return Ok(self.stop(&header, format!("a frame up to {}", header.end()), found));
                }
                None => self.accept(&header),
            }
            at = header.end();
        }
    }

    /// What is wrong with a readable frame at this place, as (expected, found).
    fn misfit(&self, header: &FrameHeader, segment_end: LogOffset) -> Option<(String, String)> {
        let limit = u64::from(self.config.frame_limit);
        if header.total_len() > limit {
            return Some((format!("a frame of at most {limit} bytes"), header.total_len().to_string()));
        }
        if header.end() > segment_end {
            return Some((
                format!("a frame within the segment's end {segment_end}"),
                header.end().to_string(),
            ));
        }
        if header.prev_crc != self.tail.chain {
            let first = header.offset == self.tail.base.end;
            let by = if first { ", where the log begins by raft/meta" } else { "" };
            let expected = format!("prev_crc {:08x}{by}", self.tail.chain);
            return Some((expected, format!("{:08x}", header.prev_crc)));
        }
        if !self.index_follows(header.id.index) {
            let last = self.tail.index.last().map_or(0, |l| l.index.0);
            return Some((format!("index {}", last + 1), header.id.index.to_string()));
        }
        header.batch.is_none().then(|| ("a batch field with its check".into(), "another value".into()))
    }

    fn accept(&mut self, header: &FrameHeader) {
        if self.tail.index.last().is_some_and(|last| header.id.index.0 != last.index.0 + 1) {
            self.tail.index.clear();
            self.tail.ring.truncate(None);
            self.tail.base = Base { end: self.tail.end, chain: self.tail.chain };
        }
        self.tail.index.push(header.id, header.offset, header.end());
        (self.tail.end, self.tail.chain) = (header.end(), header.head_crc);
        if let Some(mark) = header.batch {
            if mark.first || mark.number != self.batch {
                self.batch_start = header.offset;
            }
            self.batch = mark.number;
        }
        self.report.frames += 1;
    }

    fn remember(&mut self, header: &FrameHeader, body: bytes::Bytes) {
        self.tail.ring.push(PlacedEntry {
            entry: header.entry(body),
            offset: header.offset,
            prev_crc: header.prev_crc,
            head_crc: header.head_crc,
        });
        self.tail.ring.trim(Some(header.id.index));
    }

    /// The readable frame is not accepted.
    fn stop(&self, header: &FrameHeader, expected: String, found: String) -> Stop {
        Stop {
            at: header.offset,
            batch: header.batch.map(|mark| mark.number),
            behind: LogOffset(header.offset.0 + FRAME_HEADER_LEN as u64),
            chain: self.tail.chain,
            broken: true,
            expected,
            found,
        }
    }

    /// Torn tail (what is left of it) or damage.
    fn judge(&self, segment: &Segment, stop: &Stop, later: &[Segment]) -> Result<Behind> {
        let behind = Scanner::new(segment)?.behind(stop.behind)?;
        if let Some(frame) = behind.later_batch(stop.batch) {
            let what = format!("a later batch at {}", frame.offset);
            return Err(stop.before(segment, behind.frames.first().unwrap_or(frame), &what));
        }
        let torn = stop.behind > stop.at || behind.leftover.is_some();
        for (at, next) in later.iter().enumerate() {
            let mut scanner = Scanner::new(next)?;
            if let Ok(header) = scanner.header(next.base)? {
                let what = format!("the first frame of segment {}", next.base);
                return Err(stop.before(segment, behind.frames.first().unwrap_or(&header), &what));
            }
            // The unfinished batch may be the first of the next segment; then this one was synced before, so it is whole.
            let inside = scanner.behind(next.base)?;
            let impossible = inside.later_batch(None).or_else(|| {
                let alone = at == 0 && !torn;
                inside.frames.first().filter(|_| !alone)
            });
            if let Some(frame) = impossible {
                let what = format!("a frame at {}", frame.offset);
                return Err(stop.before(segment, behind.frames.first().unwrap_or(frame), &what));
            }
        }
        let leftover = behind.leftover.or((stop.behind > stop.at).then_some(stop.at));
        Ok(Behind { leftover, ..behind })
    }

    /// After a failed sync the page cache may show bytes that are not on the disk and count as clean, so that the next sync
    /// says yes without writing them. Only the last batch can be such; written again, the sync below means it.
    fn write_last_batch_again(&self, segment: &Segment) -> Result<()> {
        let (start, end) = (self.batch_start.max(segment.base), self.tail.end);
        if self.tail.index.last().is_none() || start >= end {
            return Ok(());
        }
        let mut bytes = vec![0; (end.0 - start.0) as usize];
        let read = segment.read_at(&mut bytes, start)?;
        bytes.truncate(read);
        segment.file.write_at(&[IoSlice::new(&bytes)], start.0 - segment.base.0)
    }

    fn ends_below_checkpoint(&self) -> Option<EntryId> {
        let end = self.tail.index.last().map(|l| l.index).max(self.tail.purged.map(|p| p.index));
        self.checkpointed.filter(|c| end.is_none_or(|end| end < c.index))
    }

    /// A log that ends below its checkpoint has lost confirmed entries. The checkpoint's record says where they end and with
    /// which chain value, so another member's frames can be proven.
    fn check_checkpoint(&self, segment: &Segment, stop: &Stop) -> Result<()> {
        let Some(c) = self.ends_below_checkpoint() else { return Ok(()) };
        let what = format!("a checkpoint at entry {c}");
        match self.covered_end.filter(|(end, _)| stop.broken && *end > stop.at) {
            Some((end, chain_after)) => Err(StoreError::Damaged {
                path: segment.file.path().to_path_buf(),
                from: stop.at,
                to: end,
                chain_before: stop.chain,
                chain_after,
                expected: stop.expected.clone(),
                found: format!("{}, with {what} behind it", stop.found),
            }),
            None => Err(stop.damage(segment, &what)),
        }
    }

    fn check_empty(&self, segments: &Segments) -> Result<()> {
        match self.ends_below_checkpoint() {
            Some(c) => Err(StoreError::corrupt(
                segments.dir(),
                0,
                format!("entries up to {c}, which a checkpoint covers"),
                "no segment",
            )),
            None => Ok(()),
        }
    }

    fn done(self, segments: Segments) -> Recovered {
        let Self { mut tail, batch, unsealed, mut report, .. } = self;
        if let (Some(purged), Some(last)) = (tail.purged, tail.index.last())
            && last.index < purged.index
        {
            tail.index.clear();
            tail.ring.truncate(None);
            tail.base = Base { end: tail.end, chain: tail.chain };
        }
        tail.flushed = tail.last().or(tail.purged).map(|id| id.index);
        (report.end, report.last) = (tail.end, tail.last());
        Recovered { segments, tail, batch, unsealed, report }
    }
}

impl Stop {
    fn unreadable(at: LogOffset, why: NotAFrame, chain: u32) -> Self {
        let (expected, found) = match why {
            NotAFrame::Nothing => ("a frame".into(), "nothing".into()),
            NotAFrame::Unreadable { expected, found } => (expected, found),
        };
        Self { at, batch: None, behind: at, chain, broken: true, expected, found }
    }

    /// Damage in front of the readable frame `next`: fetched from another member, if the failure is a broken frame.
    fn before(&self, segment: &Segment, next: &FrameHeader, behind: &str) -> StoreError {
        if !self.broken {
            return self.damage(segment, behind);
        }
        StoreError::Damaged {
            path: segment.file.path().to_path_buf(),
            from: self.at,
            to: next.offset,
            chain_before: self.chain,
            chain_after: next.prev_crc,
            expected: self.expected.clone(),
            found: format!("{}, with {behind} behind it", self.found),
        }
    }

    fn damage(&self, segment: &Segment, behind: &str) -> StoreError {
        StoreError::corrupt(
            segment.file.path(),
            self.at.0 - segment.base.0,
            self.expected.clone(),
            format!("{}, with {behind} behind it", self.found),
        )
    }
}
