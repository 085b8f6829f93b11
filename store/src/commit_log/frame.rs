//! The frame: one Raft entry as it lies in the CommitLog.
//!
//! ```text
//!   0          4        6     7      8          12         16         20         24       28      32
//!   +----------+--------+-----+------+----------+----------+----------+----------+--------+-------+
//!   |total_len | magic, |kind |flags | head_crc | prev_crc | body_crc | body_len | count  | batch |
//!   |u32       | version|u8   |u8    | u32      | u32      | u32      | u32      | u32    | u32   |
//!   +----------+--------+-----+------+----------+----------+----------+----------+--------+-------+
//!   | term u64         | index u64         | phys_offset u64    | store_time u64   | lease_time u64 |
//!   32                 40                  48                   56                 64              72
//!   | body (body_len) | zeros to a multiple of 8 |
//!
//!   little-endian; total_len = 72 + body_len + padding; 0 = nothing here
//!   head_crc = crc32c of the header without head_crc and batch
//!   prev_crc = head_crc of the frame before; the first frame of a log has the log's chain start
//!   batch    = node-local: bits 0-14 number of the write batch, bit 15 first frame of its batch,
//!              bits 16-31 check over the lower 16 bits and head_crc
//! ```
//!
//! What always holds: a frame starts at a multiple of 8; it never spans two segments; all of it but `batch` is a
//! function of the log's content, so it is equal on all replicas.

use super::{FrameKind, LogEntry};
use crate::item::padded;
use crate::{EntryId, LogIndex, LogOffset, Term};

/// Bytes of a frame's header.
pub const FRAME_HEADER_LEN: usize = 72;

/// Magic (upper byte) and version (lower byte) of the frame layout.
const MAGIC_VERSION: u16 = 0xF301;

const HEAD_CRC_AT: usize = 8;
const PREV_CRC_AT: usize = 12;
const BODY_CRC_AT: usize = 16;
const BODY_LEN_AT: usize = 20;
const COUNT_AT: usize = 24;
const BATCH_AT: usize = 28;
const TERM_AT: usize = 32;
const INDEX_AT: usize = 40;
const PHYS_OFFSET_AT: usize = 48;
const STORE_TIME_AT: usize = 56;
const LEASE_TIME_AT: usize = 64;

const _: () = assert!(LEASE_TIME_AT + 8 == FRAME_HEADER_LEN);
const _: () = assert!(FRAME_HEADER_LEN.is_multiple_of(8));
const _: () = assert!(BATCH_AT + 4 == TERM_AT && PREV_CRC_AT == HEAD_CRC_AT + 4);

/// Bytes of a frame with a body of `body_len` bytes.
pub(crate) const fn frame_len(body_len: usize) -> u64 {
    (FRAME_HEADER_LEN + padded(body_len)) as u64
}

/// The place of the next frame of `len` bytes: right behind `end`, or, if it does not fit into the rest of that segment,
/// at the start of the next. A function of these values only, so that all replicas place alike.
pub(crate) const fn place(end: LogOffset, len: u64, segment_size: u64) -> LogOffset {
    let rest = segment_size - end.0 % segment_size;
    if len <= rest { end } else { LogOffset(end.0 + rest) }
}

/// Number of a write batch: 15 bits, counted round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchNumber(u16);

impl BatchNumber {
    pub(crate) const fn next(self) -> Self {
        Self((self.0 + 1) & 0x7FFF)
    }
}

/// What the node-local field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchMark {
    pub(crate) number: BatchNumber,
    pub(crate) first: bool,
}

impl BatchMark {
    fn encode(self, head_crc: u32) -> u32 {
        let low = self.number.0 | (u16::from(self.first) << 15);
        u32::from(low) | (u32::from(Self::check(low, head_crc)) << 16)
    }

    fn decode(word: u32, head_crc: u32) -> Option<Self> {
        let low = (word & 0xFFFF) as u16;
        let check = (word >> 16) as u16;
        (check == Self::check(low, head_crc))
            .then_some(Self { number: BatchNumber(low & 0x7FFF), first: low & 0x8000 != 0 })
    }

    fn check(low: u16, head_crc: u32) -> u16 {
        let crc = crc32c::crc32c_append(head_crc, &low.to_le_bytes());
        ((crc >> 16) ^ (crc & 0xFFFF)) as u16
    }
}

/// A header, its fields taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    pub(crate) flags: u8,
    pub(crate) head_crc: u32,
    pub(crate) prev_crc: u32,
    pub(crate) body_crc: u32,
    pub(crate) body_len: u32,
    pub(crate) count: u32,
    /// None if the node-local field's own check does not hold.
    pub(crate) batch: Option<BatchMark>,
    pub(crate) id: EntryId,
    pub(crate) offset: LogOffset,
    pub(crate) store_time: u64,
    pub(crate) lease_time: u64,
}

/// Why bytes are no frame header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotAFrame {
    /// Zeros, or fewer bytes than a header has: nothing was written here.
    Nothing,
    /// Something else than a header that was written at this place.
    Unreadable { expected: String, found: String },
}

impl FrameHeader {
    /// Bytes of the whole frame.
    pub(crate) const fn total_len(&self) -> u64 {
        frame_len(self.body_len as usize)
    }

    /// Offset behind the frame.
    pub(crate) const fn end(&self) -> LogOffset {
        LogOffset(self.offset.0 + self.total_len())
    }

    /// The entry of this header with its body.
    pub(crate) fn entry(&self, body: bytes::Bytes) -> LogEntry {
        LogEntry {
            kind: self.kind,
            flags: self.flags,
            term: self.id.term,
            index: self.id.index,
            store_time: self.store_time,
            lease_time: self.lease_time,
            count: self.count,
            body,
            body_crc: self.body_crc,
        }
    }

    /// The *readable* header that was written at `offset` (head_crc right, phys_offset = its place), or why there is
    /// none.
    pub(crate) fn decode(bytes: &[u8], offset: LogOffset) -> Result<Self, NotAFrame> {
        let Some(raw) = bytes.first_chunk::<FRAME_HEADER_LEN>() else {
            return if bytes.iter().all(|b| *b == 0) {
                Err(NotAFrame::Nothing)
            } else {
                Err(unreadable(format!("{FRAME_HEADER_LEN} bytes of header"), format!("{}", bytes.len())))
            };
        };
        let magic = u16::from_le_bytes([raw[4], raw[5]]);
        if magic != MAGIC_VERSION {
            return if raw.iter().all(|b| *b == 0) {
                Err(NotAFrame::Nothing)
            } else {
                Err(unreadable(format!("magic {MAGIC_VERSION:04x}"), format!("{magic:04x}")))
            };
        }
        let (stated, head_crc) = (u32_at(raw, HEAD_CRC_AT), head_crc(raw));
        if stated != head_crc {
            return Err(unreadable(format!("head_crc {stated:08x}"), format!("{head_crc:08x}")));
        }
        let phys_offset = u64_at(raw, PHYS_OFFSET_AT);
        if phys_offset != offset.0 {
            return Err(unreadable(format!("phys_offset {offset}"), format!("{phys_offset}")));
        }
        let Some(kind) = FrameKind::from_u8(raw[6]) else {
            return Err(unreadable("a frame kind of 1 to 3", format!("{}", raw[6])));
        };
        let body_len = u32_at(raw, BODY_LEN_AT);
        if u64::from(u32_at(raw, 0)) != frame_len(body_len as usize) {
            return Err(unreadable(
                format!("total_len {}", frame_len(body_len as usize)),
                format!("{}", u32_at(raw, 0)),
            ));
        }
        Ok(Self {
            kind,
            flags: raw[7],
            head_crc,
            prev_crc: u32_at(raw, PREV_CRC_AT),
            body_crc: u32_at(raw, BODY_CRC_AT),
            body_len,
            count: u32_at(raw, COUNT_AT),
            batch: BatchMark::decode(u32_at(raw, BATCH_AT), head_crc),
            id: EntryId { term: Term(u64_at(raw, TERM_AT)), index: LogIndex(u64_at(raw, INDEX_AT)) },
            offset,
            store_time: u64_at(raw, STORE_TIME_AT),
            lease_time: u64_at(raw, LEASE_TIME_AT),
        })
    }
}

fn unreadable(expected: impl Into<String>, found: impl Into<String>) -> NotAFrame {
    NotAFrame::Unreadable { expected: expected.into(), found: found.into() }
}

fn u32_at(raw: &[u8; FRAME_HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; FRAME_HEADER_LEN], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | (u64::from(u32_at(raw, at + 4)) << 32)
}

fn head_crc(raw: &[u8; FRAME_HEADER_LEN]) -> u32 {
    let crc = crc32c::crc32c(&raw[..HEAD_CRC_AT]);
    let crc = crc32c::crc32c_append(crc, &raw[PREV_CRC_AT..BATCH_AT]);
    crc32c::crc32c_append(crc, &raw[TERM_AT..])
}

/// The header of `entry` at `offset` behind a frame of `prev_crc`, and its head_crc. `batch` is left zero: only the
/// writer knows it.
///
/// The caller has checked the body's length against the frame limit, which is below 4 GiB.
pub(crate) fn encode_header(
    entry: &LogEntry,
    offset: LogOffset,
    prev_crc: u32,
) -> ([u8; FRAME_HEADER_LEN], u32) {
    let mut raw = [0; FRAME_HEADER_LEN];
    let body_len = entry.body.len() as u32;
    let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(frame_len(entry.body.len()) as u32).to_le_bytes());
    put(4, &MAGIC_VERSION.to_le_bytes());
    put(6, &[entry.kind as u8, entry.flags]);
    put(PREV_CRC_AT, &prev_crc.to_le_bytes());
    put(BODY_CRC_AT, &entry.body_crc.to_le_bytes());
    put(BODY_LEN_AT, &body_len.to_le_bytes());
    put(COUNT_AT, &entry.count.to_le_bytes());
    put(TERM_AT, &entry.term.0.to_le_bytes());
    put(INDEX_AT, &entry.index.0.to_le_bytes());
    put(PHYS_OFFSET_AT, &offset.0.to_le_bytes());
    put(STORE_TIME_AT, &entry.store_time.to_le_bytes());
    put(LEASE_TIME_AT, &entry.lease_time.to_le_bytes());
    let crc = head_crc(&raw);
    raw[HEAD_CRC_AT..HEAD_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    (raw, crc)
}

/// Writes the node-local field into an encoded header.
pub(crate) fn set_batch(raw: &mut [u8], mark: BatchMark, head_crc: u32) {
    raw[BATCH_AT..BATCH_AT + 4].copy_from_slice(&mark.encode(head_crc).to_le_bytes());
}

/// Takes the node-local field out of an encoded header.
pub(crate) fn clear_batch(raw: &mut [u8]) {
    raw[BATCH_AT..BATCH_AT + 4].fill(0);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn entry(body: Vec<u8>) -> LogEntry {
        LogEntry::new(FrameKind::Items, EntryId::new(0x0101, 0x0202), Bytes::from(body))
    }

    #[test]
    fn bytes_are_as_drawn() {
        let mut e = entry(vec![9; 13]);
        (e.flags, e.count, e.store_time, e.lease_time, e.body_crc) = (7, 3, 0x55, 0x66, 0x1122_3344);
        let (mut raw, crc) = encode_header(&e, LogOffset(0x1000), 0xAABB_CCDD);
        set_batch(&mut raw, BatchMark { number: BatchNumber(0x1234), first: true }, crc);
        let mut expected = vec![72 + 16, 0, 0, 0, 0x01, 0xF3, 1, 7];
        expected.extend_from_slice(&crc.to_le_bytes());
        expected
            .extend_from_slice(&[0xDD, 0xCC, 0xBB, 0xAA, 0x44, 0x33, 0x22, 0x11, 13, 0, 0, 0, 3, 0, 0, 0]);
        expected.extend_from_slice(&[0x34, 0x92]);
        assert_eq!(raw[..30], expected[..]);
        assert_eq!(raw[32..50], [1, 1, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0x10]);
        assert_eq!((raw[56], raw[64]), (0x55, 0x66));
        let mut covered = raw[..8].to_vec();
        covered.extend_from_slice(&raw[12..28]);
        covered.extend_from_slice(&raw[32..]);
        assert_eq!(crc32c::crc32c(&covered), crc);
    }

    #[test]
    fn a_frame_that_does_not_fit_starts_the_next_segment() {
        assert_eq!(place(LogOffset(0), 100, 1024), LogOffset(0));
        assert_eq!(place(LogOffset(924), 100, 1024), LogOffset(924));
        assert_eq!(place(LogOffset(928), 100, 1024), LogOffset(1024));
        assert_eq!(place(LogOffset(1024), 1024, 1024), LogOffset(1024));
        assert_eq!(place(LogOffset(1032), 1024, 1024), LogOffset(2048));
    }

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_went_in(
            body in prop::collection::vec(any::<u8>(), 0..100), offset in any::<u32>(), prev in any::<u32>(),
            number in 0u16..0x8000, first in any::<bool>(), flags in any::<u8>(), times in any::<(u64, u64)>()
        ) {
            let mut e = entry(body);
            (e.flags, e.store_time, e.lease_time) = (flags, times.0, times.1);
            let offset = LogOffset(u64::from(offset) * 8);
            let (mut raw, crc) = encode_header(&e, offset, prev);
            let mark = BatchMark { number: BatchNumber(number), first };
            set_batch(&mut raw, mark, crc);
            let header = FrameHeader::decode(&raw, offset).expect("just encoded");
            prop_assert_eq!(header.entry(e.body.clone()), e);
            prop_assert_eq!((header.head_crc, header.prev_crc, header.batch), (crc, prev, Some(mark)));
        }

        #[test]
        fn any_flipped_bit_is_noticed(bit in 0..FRAME_HEADER_LEN * 8) {
            let (mut raw, crc) = encode_header(&entry(vec![1; 20]), LogOffset(64), 5);
            set_batch(&mut raw, BatchMark { number: BatchNumber(77), first: false }, crc);
            raw[bit / 8] ^= 1 << (bit % 8);
            let noticed = FrameHeader::decode(&raw, LogOffset(64)).map_or(true, |h| h.batch.is_none());
            prop_assert!(noticed);
        }
    }
}
