//! Reading entries by index and items by place: from the ring, else from the files.

use bytes::Bytes;

use super::entry::{ItemRead, PlacedEntry};
use super::frame::{FRAME_HEADER_LEN, FrameHeader, NotAFrame};
use super::handle::CommitLog;
use crate::error::Result;
use crate::item::{ITEM_HEADER_LEN, ItemHeader, item_crc, padded};
use crate::segment::Segment;
use crate::{LogIndex, LogOffset, StoreError};

/// Taken with an item's header in one read; longer items need a second one.
const ITEM_GUESS: usize = 4 << 10;

impl CommitLog {
    /// Entries `[from, to_exclusive)`, as many as lie together and fit into `max_bytes`, at least one; fewer than asked for is
    /// normal, the caller goes on behind them. [`StoreError::Missing`] if `from` is not held. Blocks on the disk for entries
    /// that left the ring; their bodies are checked.
    pub fn read(&self, from: LogIndex, to_exclusive: LogIndex, max_bytes: usize) -> Result<Vec<PlacedEntry>> {
        let shared = self.shared();
        let (span, epoch) = {
            let tail = shared.tail.lock();
            if from >= to_exclusive {
                return Ok(Vec::new());
            }
            if tail.index.id(from).is_none() || tail.purged.is_some_and(|p| from <= p.index) {
                return Err(tail.missing(from));
            }
            let to = match tail.ring.first() {
                Some(hot) if from >= hot => {
                    return Ok(tail.ring.range(from, to_exclusive, max_bytes as u64));
                }
                Some(hot) => to_exclusive.min(hot),
                None => to_exclusive,
            };
            let Some(span) = tail.index.span(from, to, max_bytes as u64) else {
                return Err(tail.missing(from));
            };
            (span, tail.epoch)
        };
        let result = self.read_span(span.start, span.end, span.frames as usize);
        if result.is_err() {
            // A truncation took them away while they were read: then it is not damage.
            let tail = shared.tail.lock();
            if tail.epoch != epoch || tail.index.id(from).is_none() {
                return Err(tail.missing(from));
            }
        }
        self.settle(span.start, epoch, result)
    }

    fn read_span(&self, start: LogOffset, end: LogOffset, frames: usize) -> Result<Vec<PlacedEntry>> {
        let segment = self.segment_of(start)?;
        let mut bytes = vec![0; (end.0 - start.0) as usize];
        let read = segment.read_at(&mut bytes, start)?;
        bytes.truncate(read);
        let bytes = Bytes::from(bytes);
        let mut found = Vec::with_capacity(frames);
        let mut at = 0;
        while found.len() < frames {
            let offset = LogOffset(start.0 + at as u64);
            let header = readable(&segment, &bytes[at.min(bytes.len())..], offset)?;
            let body_at = at + FRAME_HEADER_LEN;
            let body_end = body_at + header.body_len as usize;
            if body_end > bytes.len() {
                let expected = format!("a frame up to {}", header.end());
                return Err(damage(&segment, offset, expected, format!("{} bytes", bytes.len() - at)));
            }
            let body = bytes.slice(body_at..body_end);
            let crc = crc32c::crc32c(&body);
            if crc != header.body_crc {
                let expected = format!("body_crc {:08x}", header.body_crc);
                return Err(damage(&segment, offset, expected, format!("{crc:08x}")));
            }
            at += header.total_len() as usize;
            found.push(PlacedEntry {
                entry: header.entry(body),
                offset,
                prev_crc: header.prev_crc,
                head_crc: header.head_crc,
            });
        }
        Ok(found)
    }

    /// The item whose body begins at `body_offset`, checked by its own CRC and its frame's header. Blocks on the disk if the
    /// frame left the ring. Only for entries that are applied: those are never cut off.
    pub fn read_item(&self, body_offset: LogOffset) -> Result<ItemRead> {
        if let Some(item) = self.item_in_ring(body_offset) {
            return item;
        }
        let end = self.end();
        if body_offset >= end || body_offset.0 < (FRAME_HEADER_LEN + ITEM_HEADER_LEN) as u64 {
            return Err(StoreError::Limit {
                what: "offset of an item",
                value: body_offset.0,
                limit: end.0.saturating_sub(1),
            });
        }
        let at = LogOffset(body_offset.0 - ITEM_HEADER_LEN as u64);
        let (start, epoch) = (self.physical_start(), self.shared().tail.lock().epoch);
        if at < start {
            return Err(StoreError::Limit {
                what: "offset of an item below the log's first frame",
                value: body_offset.0,
                limit: start.0,
            });
        }
        let read = self.read_item_at(at);
        self.settle(at, epoch, read)
    }

    fn read_item_at(&self, at: LogOffset) -> Result<ItemRead> {
        let segment = self.segment_of(at)?;
        let (header, bytes) = read_item_bytes(&segment, at, u64::from(self.shared().config.frame_limit))?;
        let position = u64::from(header.position);
        if position < FRAME_HEADER_LEN as u64 || position > at.0 - segment.base.0 {
            let expected = "an item position inside of the segment";
            return Err(damage(&segment, at, expected, position.to_string()));
        }
        let frame_at = LogOffset(at.0 - position);
        if self.damage().iter().any(|range| range.offset <= frame_at && frame_at < range.end()) {
            return Err(damage(&segment, at, "an item of a whole frame", "a frame that is noted as damaged"));
        }
        let frame = self.read_header(frame_at)?;
        let room = u64::from(frame.body_len) + FRAME_HEADER_LEN as u64;
        if position + padded(ITEM_HEADER_LEN + header.len as usize) as u64 > room {
            let expected = format!("an item inside of the frame at {}", frame.offset);
            return Err(damage(&segment, at, expected, format!("{} bytes at {position}", header.len)));
        }
        Ok(item_read(header, bytes, &frame))
    }

    /// Like [`Self::read_item`], from memory only: None if the frame left the ring (or the item is damaged). Never blocks.
    #[must_use]
    pub fn read_item_hot(&self, body_offset: LogOffset) -> Option<ItemRead> {
        self.item_in_ring(body_offset)?.ok()
    }

    fn item_in_ring(&self, body_offset: LogOffset) -> Option<Result<ItemRead>> {
        let entry = {
            let tail = self.shared().tail.lock();
            tail.ring.holding(body_offset)?.clone()
        };
        let position = (body_offset.0 - entry.offset.0).checked_sub(ITEM_HEADER_LEN as u64)?;
        let start = (position as usize).checked_sub(FRAME_HEADER_LEN)?;
        let rest = entry.entry.body.slice(start..);
        let header = ItemHeader::decode(rest.first_chunk()?);
        let wrong = |expected: String, found: String| {
            let at = body_offset.0 - ITEM_HEADER_LEN as u64;
            Some(Err(StoreError::corrupt("the tail ring".as_ref(), at, expected, found)))
        };
        if rest.len() - ITEM_HEADER_LEN < header.len as usize || u64::from(header.position) != position {
            return wrong(format!("an item at position {position}"), format!("{header:?}"));
        }
        let crc = item_crc(&rest, header.len as usize);
        if crc != header.crc {
            return wrong(format!("item crc {:08x}", header.crc), format!("{crc:08x}"));
        }
        Some(Ok(ItemRead {
            kind: header.kind,
            flags: header.flags,
            version: header.version,
            body: rest.slice(ITEM_HEADER_LEN..ITEM_HEADER_LEN + header.len as usize),
            frame_offset: entry.offset,
            term: entry.entry.term,
            index: entry.entry.index,
            store_time: entry.entry.store_time,
            lease_time: entry.entry.lease_time,
        }))
    }

    /// The readable header at `offset`, from disk.
    pub(super) fn read_header(&self, offset: LogOffset) -> Result<FrameHeader> {
        let segment = self.segment_of(offset)?;
        let mut bytes = [0; FRAME_HEADER_LEN];
        let read = segment.read_at(&mut bytes, offset)?;
        readable(&segment, &bytes[..read], offset)
    }

    pub(super) fn segment_of(&self, offset: LogOffset) -> Result<Segment> {
        let shared = self.shared();
        shared.segments.containing(offset).ok_or_else(|| {
            let base = LogOffset(offset.0 - offset.0 % shared.config.segment_size);
            StoreError::corrupt(
                &shared.segments.path(base),
                offset.0 - base.0,
                "a segment of the log",
                "no file",
            )
        })
    }
}

/// The header and the bytes (header and body) of the item at `at`, its CRC checked.
fn read_item_bytes(segment: &Segment, at: LogOffset, limit: u64) -> Result<(ItemHeader, Bytes)> {
    let mut bytes = vec![0; ITEM_HEADER_LEN + ITEM_GUESS];
    let mut read = segment.read_at(&mut bytes, at)?;
    let Some(header) = bytes[..read].first_chunk().map(ItemHeader::decode) else {
        return Err(damage(segment, at, "an item header of 16 bytes", format!("{read} bytes")));
    };
    let len = ITEM_HEADER_LEN + header.len as usize;
    if len as u64 > limit {
        return Err(damage(segment, at, format!("an item of at most {limit} bytes"), len.to_string()));
    }
    if len > bytes.len() {
        bytes.resize(len, 0);
        read += segment.read_at(&mut bytes[read..], LogOffset(at.0 + read as u64))?;
    }
    if read < len {
        return Err(damage(segment, at, format!("an item of {len} bytes"), format!("{read} bytes")));
    }
    let crc = item_crc(&bytes, header.len as usize);
    if crc != header.crc {
        return Err(damage(segment, at, format!("item crc {:08x}", header.crc), format!("{crc:08x}")));
    }
    Ok((header, Bytes::from(bytes)))
}

fn item_read(header: ItemHeader, bytes: Bytes, frame: &FrameHeader) -> ItemRead {
    ItemRead {
        kind: header.kind,
        flags: header.flags,
        version: header.version,
        body: bytes.slice(ITEM_HEADER_LEN..ITEM_HEADER_LEN + header.len as usize),
        frame_offset: frame.offset,
        term: frame.id.term,
        index: frame.id.index,
        store_time: frame.store_time,
        lease_time: frame.lease_time,
    }
}

fn readable(segment: &Segment, bytes: &[u8], offset: LogOffset) -> Result<FrameHeader> {
    FrameHeader::decode(bytes, offset).map_err(|why| not_a_frame(segment, offset, why))
}

pub(super) fn not_a_frame(segment: &Segment, offset: LogOffset, why: NotAFrame) -> StoreError {
    let (expected, found) = match why {
        NotAFrame::Nothing => ("a frame".into(), "nothing".into()),
        NotAFrame::Unreadable { expected, found } => (expected, found),
    };
    damage(segment, offset, expected, found)
}

pub(super) fn damage(
    segment: &Segment,
    at: LogOffset,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> StoreError {
    StoreError::corrupt(segment.file.path(), at.0 - segment.base.0, expected, found)
}
