//! Damage that a read finds: noted durably in `raft/meta`, told, and repaired with another member's frames.
//!
//! What always holds: a noted range begins and ends where frames begin; the chain values on both sides are those of readable
//! frames, so frames that fit between them are the ones that were written here.

use std::io::IoSlice;

use bytes::Bytes;

use super::frame::{BatchNumber, FrameHeader, frame_len};
use super::frames::{mark_batch, walk};
use super::handle::CommitLog;
use super::scan::Scanner;
use crate::error::Result;
use crate::fs::OpenMode;
use crate::group_files::{DamagedRange, GroupFiles};
use crate::segment::Segment;
use crate::{LogOffset, StoreError};

/// Most ranges that are noted; beyond that the two nearest ones become one.
const RANGES_MAX: usize = 32;

/// Told of a range that a read found, after it was noted.
pub type DamageCallback = Box<dyn Fn(&DamagedRange) + Send + Sync>;

impl CommitLog {
    /// Ranges that are noted as damaged. Reads of them fail until they are repaired.
    #[must_use]
    pub fn damage(&self) -> Vec<DamagedRange> {
        self.shared().files.damage()
    }

    /// Sets whom to tell when a read finds damage that was not known; on the reader's thread, after it was noted.
    pub fn on_damage(&self, callback: DamageCallback) {
        *self.shared().on_damage.lock() = Some(callback);
    }

    /// What a failed read of something at `at` means: a truncation or a drop meanwhile, damage (noted, told), or what it
    /// says.
    pub(super) fn settle<T>(&self, at: LogOffset, epoch: u64, read: Result<T>) -> Result<T> {
        let shared = self.shared();
        let (expected, found) = match &read {
            Err(StoreError::Corrupt { expected, found, .. }) => (expected.clone(), found.clone()),
            Err(StoreError::Io { op: "pread", source, .. }) if source.raw_os_error() == Some(EIO) => {
                ("bytes".to_owned(), source.to_string())
            }
            _ => return read,
        };
        let base = LogOffset(at.0 - at.0 % shared.config.segment_size);
        if at < self.physical_start() {
            let (value, limit) = (at.0, self.physical_start().0);
            return Err(StoreError::Limit { what: "offset below the log's first frame", value, limit });
        }
        if shared.tail.lock().epoch != epoch {
            return read;
        }
        let ranges = self.examine(base)?;
        let Some(range) = ranges.iter().find(|r| r.offset <= at && at < r.end()).or(ranges.first()) else {
            return read;
        };
        if shared.tail.lock().epoch != epoch {
            return read;
        }
        for range in &ranges {
            self.note(range)?;
        }
        Err(StoreError::Damaged {
            path: shared.segments.path(base),
            from: range.offset,
            to: range.end(),
            chain_before: range.chain_before,
            chain_after: range.chain_after,
            expected,
            found,
        })
    }

    fn note(&self, range: &DamagedRange) -> Result<()> {
        let shared = self.shared();
        let _noting = shared.noting.lock();
        if shared.files.damage().iter().any(|r| r.offset <= range.offset && range.end() <= r.end()) {
            return Ok(());
        }
        tracing::error!(
            segment = %shared.segments.path(LogOffset(range.offset.0 - range.offset.0 % shared.config.segment_size)).display(),
            from = %range.offset,
            to = %range.end(),
            "damage in the log: not read again before another member's frames are in its place"
        );
        shared.files.update_meta(|meta| add(&mut meta.damage, *range))?;
        if let Some(tell) = &*shared.on_damage.lock() {
            tell(range);
        }
        Ok(())
    }

    /// The damaged ranges of the segment at `base`, as far as it is flushed.
    fn examine(&self, base: LogOffset) -> Result<Vec<DamagedRange>> {
        let shared = self.shared();
        let known = {
            let tail = shared.tail.lock();
            let flushed = tail.flushed;
            tail.index.segment(base).and_then(|(first, last, end)| {
                let whole = flushed.is_some_and(|f| f >= last.index);
                let end = if whole { end } else { tail.index.place(flushed?)?.1 };
                (flushed? >= first.index).then_some((first.index, end, last.index.min(flushed?)))
            })
        };
        let Some((first, end, last)) = known else { return Ok(Vec::new()) };
        let Some(segment) = shared.segments.starting_at(base) else { return Ok(Vec::new()) };
        let chain_end = self.prev_crc_of(crate::LogIndex(last.0 + 1))?;
        let chain = self.prev_crc_of(first)?;
        let mut scanner = Scanner::new(&segment)?;
        let (Some(chain), Some(chain_end)) = (chain, chain_end) else {
            // The segment's neighbours cannot be read either: not provable from here.
            return Ok(Vec::new());
        };
        ranges(&mut scanner, (base, chain), (end, chain_end), u64::from(shared.config.frame_limit))
    }

    /// The chain value in front of the entry `index`, from the frame before it or from its own header, whichever can be
    /// read.
    fn prev_crc_of(&self, index: crate::LogIndex) -> Result<Option<u32>> {
        let shared = self.shared();
        let (own, before) = {
            let tail = shared.tail.lock();
            if let Some(entry) = tail.ring.get(index) {
                return Ok(Some(entry.prev_crc));
            }
            let before = index.0.checked_sub(1).map(crate::LogIndex);
            if tail.index.last().map(|l| l.index) == before {
                return Ok(Some(tail.chain));
            }
            if tail.index.first().map(|f| f.index) == Some(index) {
                return Ok(Some(tail.base.chain));
            }
            let place = |index| tail.index.place(index).map(|(offset, _)| offset);
            (place(index), before.and_then(place))
        };
        for (at, own) in [(own, true), (before, false)] {
            let Some(at) = at else { continue };
            if let Ok(header) = self.read_header(at) {
                return Ok(Some(if own { header.prev_crc } else { header.head_crc }));
            }
        }
        Ok(None)
    }
}

/// Input/output error of the system.
const EIO: i32 = 5;

/// What is damaged from `start` (offset, chain value before) to `end` (offset, chain value behind).
fn ranges(
    scanner: &mut Scanner<'_>,
    start: (LogOffset, u32),
    end: (LogOffset, u32),
    frame_limit: u64,
) -> Result<Vec<DamagedRange>> {
    let mut found = Vec::new();
    let (mut at, mut chain) = start;
    while at < end.0 {
        let good = whole(scanner, at, frame_limit)?.filter(|header| header.prev_crc == chain);
        if let Some(header) = good {
            (at, chain) = (header.end(), header.head_crc);
            continue;
        }
        let mut next = LogOffset(at.0 + 8);
        let mut behind = end;
        while next < end.0 {
            if let Some(header) = whole(scanner, next, frame_limit)? {
                behind = (next, header.prev_crc);
                break;
            }
            next = LogOffset(next.0 + 8);
        }
        found.push(DamagedRange {
            offset: at,
            len: behind.0.0 - at.0,
            chain_before: chain,
            chain_after: behind.1,
        });
        (at, chain) = behind;
    }
    Ok(found)
}

/// The frame at `at`, header and body checked.
fn whole(scanner: &mut Scanner<'_>, at: LogOffset, frame_limit: u64) -> Result<Option<FrameHeader>> {
    let Ok(header) = scanner.header(at)? else { return Ok(None) };
    if header.total_len() > frame_limit {
        return Ok(None);
    }
    let body = scanner.body(&header)?;
    Ok(body.filter(|body| crc32c::crc32c(body) == header.body_crc).map(|_| header))
}

/// Adds a range, sorted; ranges that touch become one.
fn add(list: &mut Vec<DamagedRange>, range: DamagedRange) {
    list.push(range);
    list.sort_by_key(|r| r.offset);
    let mut at = 0;
    while at + 1 < list.len() {
        if list[at].end() >= list[at + 1].offset {
            join(list, at);
        } else {
            at += 1;
        }
    }
    while list.len() > RANGES_MAX {
        let gap = |at: usize| list[at + 1].offset.0 - list[at].end().0;
        let nearest = (0..list.len() - 1).min_by_key(|at| gap(*at)).unwrap_or(0);
        join(list, nearest);
    }
}

fn join(list: &mut Vec<DamagedRange>, at: usize) {
    let next = list.remove(at + 1);
    let one = &mut list[at];
    if next.end() > one.end() {
        (one.len, one.chain_after) = (next.end().0 - one.offset.0, next.chain_after);
    }
}

/// Puts another member's frames in the place of a damaged range: `bytes` are runs of frames ([`super::FrameRun::bytes`])
/// one behind the other, from the range's first byte to its end. They are taken only if the chain fits at both ends, which
/// proves that they are what was written here. On return they survive a power cut and the range is off the list.
///
/// Works before the log is opened, and while it is open on ranges below its tail.
pub fn repair(files: &GroupFiles, range: &DamagedRange, bytes: &Bytes) -> Result<()> {
    let meta = files.meta().unwrap_or_default();
    let size = meta.segment_size.max(1);
    let refused = |expected: String, found: String| {
        StoreError::corrupt("frames of another member".as_ref(), range.offset.0, expected, found)
    };
    let frames = walk(bytes, range.offset, range.chain_before, Some(size))?;
    let Some(last) = frames.last() else {
        return Err(refused(format!("frames up to {}", range.end()), "nothing".into()));
    };
    let end = LogOffset(last.offset.0 + frame_len(last.entry.body.len()));
    if last.head_crc != range.chain_after {
        let expected = format!("chain value {:08x} at the end", range.chain_after);
        return Err(refused(expected, format!("{:08x}", last.head_crc)));
    }
    let rolls = range.end().0.is_multiple_of(size) && end.0 > range.end().0 - size && end < range.end();
    if end != range.end() && !rolls {
        return Err(refused(format!("frames up to {}", range.end()), format!("frames up to {end}")));
    }
    let mut rest = bytes.to_vec();
    let mut at = 0;
    while at < frames.len() {
        let base = LogOffset(frames[at].offset.0 - frames[at].offset.0 % size);
        let count = frames[at..].iter().take_while(|f| f.offset.0 - f.offset.0 % size == base.0).count();
        let some = &frames[at..at + count];
        let len: u64 = some.iter().map(|f| frame_len(f.entry.body.len())).sum();
        let behind = rest.split_off(len as usize);
        mark_batch(&mut rest, some, BatchNumber::default());
        // Where the next frame lies in another segment, nothing may stand behind this one.
        let sealed = at + count < frames.len() || rolls;
        write(files, base, some[0].offset, &rest, sealed)?;
        rest = behind;
        at += count;
    }
    files.update_meta(|meta| meta.damage.retain(|r| r.offset < range.offset || r.end() > range.end()))?;
    tracing::warn!(from = %range.offset, to = %range.end(), "a damaged range of the log was repaired");
    Ok(())
}

fn write(files: &GroupFiles, base: LogOffset, at: LogOffset, bytes: &[u8], sealed: bool) -> Result<()> {
    let dir = files.dir().join("commitlog");
    let file = files.fs().open(&dir.join(format!("{:020}", base.0)), OpenMode::Create)?;
    let segment = Segment { base, file };
    segment.file.write_at(&[IoSlice::new(bytes)], at.0 - base.0)?;
    let (behind, end) = (LogOffset(at.0 + bytes.len() as u64), segment.end()?);
    if sealed && end > behind {
        segment.zero(behind, end)?;
    }
    segment.file.sync_all()?;
    files.fs().sync_dir(&dir)
}
