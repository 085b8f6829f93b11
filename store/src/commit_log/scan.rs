//! Reading frames from segments one after the other, and telling a torn tail from damage.

use bytes::Bytes;

use super::WRITE_BATCH_MAX;
use super::frame::{BatchNumber, FRAME_HEADER_LEN, FrameHeader, NotAFrame};
use crate::LogOffset;
use crate::error::Result;
use crate::segment::Segment;

const WINDOW: usize = 256 << 10;

/// Reads a segment from front to back through a window.
pub(super) struct Scanner<'a> {
    pub(super) segment: &'a Segment,
    /// Offset behind the file's last byte.
    pub(super) file_end: LogOffset,
    window: Vec<u8>,
    window_at: u64,
}

/// What a search behind a failure found.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// First byte that is not zero.
    pub(super) leftover: Option<LogOffset>,
    /// Readable frames with their node-local mark, if that is whole.
    pub(super) frames: Vec<FrameHeader>,
}

impl Behind {
    /// A frame that cannot belong to the unfinished batch: of another batch than `failed`, or, where the failed header says
    /// nothing, one that begins a batch, or one of another batch than the first one found.
    pub(super) fn later_batch(&self, failed: Option<BatchNumber>) -> Option<&FrameHeader> {
        let mut batch = failed;
        self.frames.iter().find(|frame| {
            let Some(mark) = frame.batch else { return false };
            let other = batch.is_some_and(|b| b != mark.number);
            batch.get_or_insert(mark.number);
            other || (failed.is_none() && mark.first)
        })
    }
}

impl<'a> Scanner<'a> {
    pub(super) fn new(segment: &'a Segment) -> Result<Self> {
        let file_end = segment.end()?;
        Ok(Self { segment, file_end, window: Vec::new(), window_at: segment.base.0 })
    }

    /// Up to `len` bytes at `offset`; fewer where the file ends.
    fn bytes(&mut self, offset: LogOffset, len: usize) -> Result<&[u8]> {
        let len = (self.file_end.0.saturating_sub(offset.0)).min(len as u64) as usize;
        let inside =
            offset.0 >= self.window_at && offset.0 + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            let take = (self.file_end.0.saturating_sub(offset.0)).min(len.max(WINDOW) as u64) as usize;
            self.window.resize(take, 0);
            let read = self.segment.read_at(&mut self.window, offset)?;
            self.window.truncate(read);
            self.window_at = offset.0;
        }
        let start = (offset.0 - self.window_at) as usize;
        let end = (start + len).min(self.window.len());
        Ok(&self.window[start..end])
    }

    /// The readable header at `offset`.
    pub(super) fn header(&mut self, offset: LogOffset) -> Result<Result<FrameHeader, NotAFrame>> {
        Ok(FrameHeader::decode(self.bytes(offset, FRAME_HEADER_LEN)?, offset))
    }

    /// The body of that frame, or None if the file ends before.
    pub(super) fn body(&mut self, header: &FrameHeader) -> Result<Option<Bytes>> {
        let len = header.body_len as usize;
        let body = self.bytes(LogOffset(header.offset.0 + FRAME_HEADER_LEN as u64), len)?;
        Ok((body.len() == len).then(|| Bytes::copy_from_slice(body)))
    }

    /// The whole frame, header and padding with it, or None if the file ends before.
    pub(super) fn frame(&mut self, header: &FrameHeader) -> Result<Option<&[u8]>> {
        let len = header.total_len() as usize;
        let bytes = self.bytes(header.offset, len)?;
        Ok((bytes.len() == len).then_some(bytes))
    }

    /// Looks at everything from `from` on, as far as a write batch that began at or before it can reach, for readable
    /// frames.
    pub(super) fn behind(&mut self, from: LogOffset) -> Result<Behind> {
        let end = LogOffset(self.file_end.0.min(from.0 + WRITE_BATCH_MAX as u64));
        let mut found = Behind::default();
        let mut at = from;
        while at < end {
            let window = self.bytes(at, WINDOW.min((end.0 - at.0) as usize))?;
            if window.is_empty() {
                break;
            }
            let len = window.len();
            // Frames start at multiples of 8, and none begins with zeros.
            let next = window.chunks(8).position(|c| c.iter().any(|b| *b != 0));
            let Some(skip) = next.map(|n| n * 8) else {
                at = LogOffset(at.0 + len as u64);
                continue;
            };
            at = LogOffset(at.0 + skip as u64);
            found.leftover.get_or_insert(at);
            if let Ok(header) = self.header(at)? {
                found.frames.push(header);
            }
            at = LogOffset(at.0 + 8);
        }
        Ok(found)
    }
}
