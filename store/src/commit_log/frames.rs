//! Runs of frames as other members get them: read here, checked and written there.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::WRITE_BATCH_MAX;
use super::entry::PlacedEntry;
use super::frame::{
    BatchMark, BatchNumber, FRAME_HEADER_LEN, FrameHeader, NotAFrame, clear_batch, set_batch,
};
use crate::error::Result;
use crate::fs::{File, FileSystem, OpenMode};
use crate::{EntryId, LogOffset, StoreError};

/// Whole frames of one segment, one behind the other, their node-local fields zero: equal on all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// Offset of the first frame.
    pub start: LogOffset,
    /// The frames.
    pub bytes: Bytes,
    /// Offset behind the last frame: where the next run is read from.
    pub next: LogOffset,
}

/// Content of one segment, or of its first part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Where the segment begins.
    pub base: LogOffset,
    /// Its first entry.
    pub first: EntryId,
    /// Its last entry.
    pub last: EntryId,
    /// Offset behind the last entry's frame.
    pub end: LogOffset,
    /// head_crc of the frame before the segment.
    pub prev_crc: u32,
    /// head_crc of the last frame.
    pub chain: u32,
    /// crc32c over the frames with their node-local fields zero.
    pub digest: u32,
    /// Greatest store time of its frames, ms since 1970; 0 if none has one.
    pub store_time: u64,
}

/// A wrong frame in bytes that came from elsewhere.
fn wrong(at: LogOffset, expected: impl Into<String>, found: impl Into<String>) -> StoreError {
    StoreError::corrupt("frames of another member".as_ref(), at.0, expected, found)
}

/// Takes apart frames that came from elsewhere and checks everything: headers, places one behind the other from `start`
/// on, chain from `prev_crc` on, rising indexes, bodies.
pub fn check_frames(bytes: &Bytes, start: LogOffset, prev_crc: u32) -> Result<Vec<PlacedEntry>> {
    walk(bytes, start, prev_crc, None)
}

/// Like [`check_frames`]; with a segment size, runs of several segments may follow each other.
pub(super) fn walk(
    bytes: &Bytes,
    start: LogOffset,
    prev_crc: u32,
    segment_size: Option<u64>,
) -> Result<Vec<PlacedEntry>> {
    let mut found: Vec<PlacedEntry> = Vec::new();
    let (mut at, mut offset, mut chain) = (0, start, prev_crc);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut header = FrameHeader::decode(rest, offset);
        if let (Err(_), Some(size)) = (&header, segment_size) {
            header = FrameHeader::decode(rest, LogOffset(offset.0.next_multiple_of(size)));
        }
        let header = header.map_err(|why| match why {
            NotAFrame::Nothing => wrong(offset, "a frame", "nothing"),
            NotAFrame::Unreadable { expected, found } => wrong(offset, expected, found),
        })?;
        let (offset_found, len) = (header.offset, header.total_len() as usize);
        if len > rest.len() {
            return Err(wrong(offset_found, format!("a frame of {len} bytes"), rest.len().to_string()));
        }
        if header.prev_crc != chain {
            return Err(wrong(
                offset_found,
                format!("prev_crc {chain:08x}"),
                format!("{:08x}", header.prev_crc),
            ));
        }
        if let Some(last) = found.last().filter(|last| last.entry.index >= header.id.index) {
            return Err(wrong(
                offset_found,
                format!("an index above {}", last.entry.index),
                header.id.index.to_string(),
            ));
        }
        let body_end = FRAME_HEADER_LEN + header.body_len as usize;
        let body = bytes.slice(at + FRAME_HEADER_LEN..at + body_end);
        let crc = crc32c::crc32c(&body);
        if crc != header.body_crc {
            return Err(wrong(
                offset_found,
                format!("body_crc {:08x}", header.body_crc),
                format!("{crc:08x}"),
            ));
        }
        if rest[body_end..len].iter().any(|b| *b != 0) {
            return Err(wrong(offset_found, "padding of zeros", "something else"));
        }
        at += len;
        (offset, chain) = (header.end(), header.head_crc);
        found.push(PlacedEntry {
            entry: header.entry(body),
            offset: offset_found,
            prev_crc: header.prev_crc,
            head_crc: header.head_crc,
        });
    }
    Ok(found)
}

/// Gives checked frames of one write batch their node-local marks.
pub(super) fn mark_batch(bytes: &mut [u8], frames: &[PlacedEntry], number: BatchNumber) {
    let mut at = 0;
    for (place, frame) in frames.iter().enumerate() {
        set_batch(&mut bytes[at..], BatchMark { number, first: place == 0 }, frame.head_crc);
        at += super::frame::frame_len(frame.entry.body.len()) as usize;
    }
}

/// Takes the node-local marks out of whole frames.
pub(super) fn clear_marks(bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        clear_batch(&mut bytes[at..]);
        let len = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        at += len as usize;
    }
}

/// Writes runs of frames, each checked, into a file that is to become a segment. Nothing survives a power cut before
/// [`SegmentWriter::sync`].
#[derive(Debug)]
pub struct SegmentWriter {
    file: Arc<dyn File>,
    path: PathBuf,
    base: LogOffset,
    end: LogOffset,
    chain: u32,
    last: Option<EntryId>,
    number: BatchNumber,
}

impl SegmentWriter {
    /// Begins the segment at `base`, whose first frame has `prev_crc`, or goes on behind the whole frames that the file holds
    /// already: these are read and checked again, what stands behind them is cut off.
    pub fn open(fs: &dyn FileSystem, path: &Path, base: LogOffset, prev_crc: u32) -> Result<Self> {
        let file = fs.open(path, OpenMode::Create)?;
        let mut writer = Self {
            file,
            path: path.to_path_buf(),
            base,
            end: base,
            chain: prev_crc,
            last: None,
            number: BatchNumber::default(),
        };
        writer.resume()?;
        Ok(writer)
    }

    fn resume(&mut self) -> Result<()> {
        let segment = crate::segment::Segment { base: self.base, file: Arc::clone(&self.file) };
        let mut scanner = super::scan::Scanner::new(&segment)?;
        while let Ok(header) = scanner.header(self.end)? {
            let body = scanner.body(&header)?;
            let whole = header.prev_crc == self.chain
                && header.batch.is_some()
                && header.end() <= LogOffset(scanner.file_end.0)
                && body.is_some_and(|body| crc32c::crc32c(&body) == header.body_crc);
            if !whole {
                break;
            }
            (self.end, self.chain, self.last) = (header.end(), header.head_crc, Some(header.id));
            self.number = header.batch.map_or(self.number, |mark| mark.number);
        }
        self.file.set_len(self.end.0 - self.base.0)
    }

    /// Offset behind the last frame written: the next run begins here.
    #[must_use]
    pub const fn end(&self) -> LogOffset {
        self.end
    }

    /// head_crc of the last frame written.
    #[must_use]
    pub const fn chain(&self) -> u32 {
        self.chain
    }

    /// Last entry written.
    #[must_use]
    pub const fn last(&self) -> Option<EntryId> {
        self.last
    }

    /// Checks a run and writes it behind what is there. Nothing is written on an error of the check.
    pub fn write(&mut self, bytes: &Bytes) -> Result<()> {
        if bytes.len() > WRITE_BATCH_MAX {
            let (value, limit) = (bytes.len() as u64, WRITE_BATCH_MAX as u64);
            return Err(StoreError::Limit { what: "bytes of a run of frames", value, limit });
        }
        let frames = check_frames(bytes, self.end, self.chain)?;
        let Some(last) = frames.last() else { return Ok(()) };
        if let (Some(before), Some(first)) = (self.last, frames.first())
            && first.entry.index <= before.index
        {
            return Err(wrong(self.end, format!("an index above {before}"), first.entry.index.to_string()));
        }
        let number = self.number.next();
        let mut marked = bytes.to_vec();
        mark_batch(&mut marked, &frames, number);
        self.file.write_at(&[IoSlice::new(&marked)], self.end.0 - self.base.0)?;
        self.number = number;
        (self.chain, self.last) = (last.head_crc, Some(last.entry.id()));
        self.end = LogOffset(self.end.0 + bytes.len() as u64);
        Ok(())
    }

    /// What was written survives a power cut on return, if the file's name does.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
