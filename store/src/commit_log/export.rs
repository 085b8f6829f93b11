//! What other members get of this log's files: runs of frames and summaries of segments, everything checked.

use bytes::Bytes;

use super::entry::CommitLogConfig;
use super::frame::FrameHeader;
use super::frames::{FrameRun, SegmentSummary, clear_marks};
use super::handle::CommitLog;
use super::scan::Scanner;
use crate::error::Result;
use crate::segment::Segment;
use crate::{LogIndex, LogOffset, StoreError};

/// Read at once when a segment is summed up, bytes.
const STEP: usize = 1 << 20;

impl CommitLog {
    /// Frames from `from` on (a frame's first byte, or the end of a segment's last frame), as many as lie together and fit
    /// into `max_bytes`, at least one. Only what is flushed. Blocks on the disk; everything is checked, and damage is noted
    /// like in [`Self::read`].
    pub fn read_frames(&self, from: LogOffset, max_bytes: usize) -> Result<FrameRun> {
        let flushed = self.flushed_end();
        let (start, end) = self.frames_at(from)?;
        let end = end.min(flushed);
        if start >= end {
            return Err(StoreError::Limit {
                what: "offset of a flushed frame",
                value: from.0,
                limit: flushed.0,
            });
        }
        let epoch = self.shared().tail.lock().epoch;
        let read = self.run_of(start, end, max_bytes);
        self.settle(start, epoch, read)
    }

    fn run_of(&self, start: LogOffset, end: LogOffset, max_bytes: usize) -> Result<FrameRun> {
        let segment = self.segment_of(start)?;
        let limit = u64::from(self.shared().config.frame_limit).max(max_bytes as u64);
        let mut want = (end.0 - start.0).min(max_bytes as u64).max(1);
        loop {
            let mut bytes = vec![0; want as usize];
            let read = segment.read_at(&mut bytes, start)?;
            bytes.truncate(read);
            let len = whole_frames(&bytes, start, max_bytes);
            if len == 0 && want < limit.min(end.0 - start.0) {
                // The first frame alone is longer.
                want = limit.min(end.0 - start.0);
                continue;
            }
            bytes.truncate(len);
            if len == 0 {
                let found = format!("{read} bytes that are none");
                return Err(super::read::damage(&segment, start, "a whole frame", found));
            }
            let prev_crc = FrameHeader::decode(&bytes, start).map_or(0, |header| header.prev_crc);
            clear_marks(&mut bytes);
            let bytes = Bytes::from(bytes);
            super::frames::check_frames(&bytes, start, prev_crc).map_err(|why| match why {
                StoreError::Corrupt { offset, expected, found, .. } => {
                    super::read::damage(&segment, LogOffset(offset), expected, found)
                }
                other => other,
            })?;
            return Ok(FrameRun { start, next: LogOffset(start.0 + len as u64), bytes });
        }
    }

    /// Where the frames at or behind `from` begin, and the end of the frames of that segment.
    fn frames_at(&self, from: LogOffset) -> Result<(LogOffset, LogOffset)> {
        let tail = self.shared().tail.lock();
        let size = self.shared().config.segment_size;
        let base = LogOffset(from.0 - from.0 % size);
        if let Some((.., end)) = tail.index.segment(base).filter(|(.., end)| from < *end) {
            return Ok((from, end));
        }
        let next = LogOffset(base.0 + size);
        tail.index.segment(next).map(|(.., end)| (next, end)).ok_or(StoreError::Limit {
            what: "offset of a frame",
            value: from.0,
            limit: tail.end.0,
        })
    }

    /// Offset behind the last flushed frame.
    pub(super) fn flushed_end(&self) -> LogOffset {
        let tail = self.shared().tail.lock();
        let place = tail.flushed.and_then(|index| tail.index.place(index));
        place.map_or(tail.base.end, |(_, end)| end)
    }

    /// The segments from the oldest on, as far as they hold entries up to `upto` (which must be flushed); the last one only
    /// up to there. Blocks: every frame is read and checked.
    pub fn segment_summaries(&self, upto: LogIndex) -> Result<Vec<SegmentSummary>> {
        let (bases, epoch) = {
            let tail = self.shared().tail.lock();
            if tail.flushed.is_none_or(|flushed| flushed < upto) {
                return Err(tail.missing(upto));
            }
            (tail.index.bases(), tail.epoch)
        };
        let mut all = Vec::with_capacity(bases.len());
        for base in bases {
            let known = self.shared().tail.lock().index.segment(base);
            let Some((first, last, _)) = known else { continue };
            if first.index > upto {
                break;
            }
            let last = last.index.min(upto);
            let summary = self
                .segment_of(base)
                .and_then(|segment| summarise(&self.shared().config, &segment, Some(last)));
            all.push(self.settle(base, epoch, summary)?);
        }
        Ok(all)
    }
}

/// Length of the whole frames at the front of `bytes` that fit into `max_bytes`, at least the first one.
fn whole_frames(bytes: &[u8], start: LogOffset, max_bytes: usize) -> usize {
    let mut len = 0;
    while let Ok(header) = FrameHeader::decode(&bytes[len..], LogOffset(start.0 + len as u64)) {
        let next = len + header.total_len() as usize;
        if next > bytes.len() || (len > 0 && next > max_bytes) {
            break;
        }
        len = next;
    }
    len
}

/// Reads and checks a segment up to the entry `upto` (up to its first unreadable frame for None).
pub(super) fn summarise(
    config: &CommitLogConfig,
    segment: &Segment,
    upto: Option<LogIndex>,
) -> Result<SegmentSummary> {
    let mut scanner = Scanner::new(segment)?;
    let mut at = segment.base;
    let mut sum: Option<SegmentSummary> = None;
    let mut pending: Vec<u8> = Vec::with_capacity(STEP);
    loop {
        if sum.as_ref().is_some_and(|sum| upto.is_some_and(|upto| sum.last.index >= upto)) {
            break;
        }
        let header = match scanner.header(at)? {
            Ok(header) => header,
            Err(why) if upto.is_some() || sum.is_none() => {
                return Err(super::read::not_a_frame(segment, at, why));
            }
            Err(_) => break,
        };
        let total = header.total_len();
        if total > u64::from(config.frame_limit) {
            let expected = format!("a frame of at most {} bytes", config.frame_limit);
            return Err(super::read::damage(segment, at, expected, total.to_string()));
        }
        if let Some(before) = sum.as_ref().filter(|before| before.chain != header.prev_crc) {
            let expected = format!("prev_crc {:08x}", before.chain);
            return Err(super::read::damage(segment, at, expected, format!("{:08x}", header.prev_crc)));
        }
        let Some(frame) = scanner.frame(&header)? else {
            return Err(super::read::damage(segment, at, format!("a frame up to {}", header.end()), "less"));
        };
        let body = &frame[super::FRAME_HEADER_LEN..][..header.body_len as usize];
        let crc = crc32c::crc32c(body);
        if crc != header.body_crc {
            let expected = format!("body_crc {:08x}", header.body_crc);
            return Err(super::read::damage(segment, at, expected, format!("{crc:08x}")));
        }
        pending.clear();
        pending.extend_from_slice(frame);
        super::frame::clear_batch(&mut pending);
        let summary = sum.get_or_insert(SegmentSummary {
            base: segment.base,
            first: header.id,
            last: header.id,
            end: at,
            prev_crc: header.prev_crc,
            chain: 0,
            digest: 0,
            store_time: 0,
        });
        summary.digest = crc32c::crc32c_append(summary.digest, &pending);
        (summary.last, summary.chain) = (header.id, header.head_crc);
        summary.store_time = summary.store_time.max(header.store_time);
        at = header.end();
        summary.end = at;
    }
    sum.ok_or_else(|| super::read::damage(segment, at, "a frame", "nothing"))
}
