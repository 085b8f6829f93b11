//! Items: what a frame's body consists of.
//!
//! ```text
//!  0       4       8          12     13      14        16
//!  +-------+-------+----------+------+-------+---------+----------------+-----------+
//!  | len   | crc   | position | kind | flags | version | body (len)     | 0 … to 8  |
//!  | u32   | u32   | u32      | u8   | u8    | u16     |                |           |
//!  +-------+-------+----------+------+-------+---------+----------------+-----------+
//!  little-endian; len = bytes of the body without padding
//!  crc = crc32c of len, kind, flags, version, body (not of itself, position, padding)
//!  position = bytes from the first byte of the frame to the first byte of this header
//! ```
//!
//! What always holds: an item starts at a multiple of 8 in its frame; the CRC does not depend on where the item lies, so
//! it is computed once, where the item is made; padding is zero.

use bytes::{BufMut, Bytes, BytesMut};

use crate::StoreError;
use crate::commit_log::FRAME_HEADER_LEN;
use crate::error::Result;

/// Bytes of an item's header.
pub const ITEM_HEADER_LEN: usize = 16;

const POSITION_AT: usize = 8;

const _: () = assert!(ITEM_HEADER_LEN.is_multiple_of(8));

/// The next multiple of 8.
#[must_use]
pub const fn padded(len: usize) -> usize {
    (len + 7) & !7
}

/// An item ready to be put into a frame; its position is filled in there. Clones share the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedItem {
    bytes: Bytes,
    body_len: usize,
}

impl EncodedItem {
    /// Encodes an item whose body is `parts` one after the other.
    ///
    /// # Panics
    /// If the body has 4 GiB or more; a frame's limit is far below that and is checked before.
    #[must_use]
    pub fn new(kind: u8, flags: u8, version: u16, parts: &[&[u8]]) -> Self {
        let body_len: usize = parts.iter().map(|p| p.len()).sum();
        let len = u32::try_from(body_len).expect("an item is bounded by the frame limit, far below 4 GiB");
        let total = padded(ITEM_HEADER_LEN + body_len);
        let mut out = BytesMut::with_capacity(total);
        out.put_u32_le(len);
        out.put_u32_le(0);
        out.put_u32_le(0);
        out.put_u8(kind);
        out.put_u8(flags);
        out.put_u16_le(version);
        for part in parts {
            out.put_slice(part);
        }
        let crc = item_crc(&out, body_len);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out.put_bytes(0, total - ITEM_HEADER_LEN - body_len);
        Self { bytes: out.freeze(), body_len }
    }

    /// Bytes in a frame: header, body and padding.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never true: an item has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Kind of the item.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.bytes[12]
    }

    /// Flags of the item.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.bytes[13]
    }

    /// Version of the kind's body.
    #[must_use]
    pub fn version(&self) -> u16 {
        u16::from_le_bytes([self.bytes[14], self.bytes[15]])
    }

    /// The body without padding.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.bytes.slice(ITEM_HEADER_LEN..ITEM_HEADER_LEN + self.body_len)
    }
}

/// An item read from a frame, its CRC checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemView {
    /// Kind of the item.
    pub kind: u8,
    /// Flags of the item.
    pub flags: u8,
    /// Version of the kind's body.
    pub version: u16,
    /// Bytes from the frame's first byte to the item's header.
    pub position: u32,
    /// The body without padding.
    pub body: Bytes,
}

/// The fields of an item's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemHeader {
    pub(crate) len: u32,
    pub(crate) crc: u32,
    pub(crate) position: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) version: u16,
}

impl ItemHeader {
    /// Takes the fields apart; says nothing about their truth.
    pub(crate) fn decode(bytes: &[u8; ITEM_HEADER_LEN]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            len: word(0),
            crc: word(4),
            position: word(POSITION_AT),
            kind: bytes[12],
            flags: bytes[13],
            version: u16::from_le_bytes([bytes[14], bytes[15]]),
        }
    }
}

/// CRC of the item whose header (crc and position ignored) and unpadded body `bytes` starts with.
pub(crate) fn item_crc(bytes: &[u8], body_len: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[0..4]);
    crc32c::crc32c_append(crc, &bytes[12..ITEM_HEADER_LEN + body_len])
}

/// The items of a frame's body, in order, each with its CRC and position checked.
#[must_use]
pub fn items(frame_body: &Bytes) -> ItemIter {
    ItemIter { body: frame_body.clone(), at: 0 }
}

/// See [`items`]. Ends after the first error.
#[derive(Clone, Debug)]
pub struct ItemIter {
    body: Bytes,
    at: usize,
}

impl ItemIter {
    fn fail(&mut self, expected: impl Into<String>, found: impl Into<String>) -> StoreError {
        let offset = (FRAME_HEADER_LEN + self.at) as u64;
        self.at = self.body.len();
        StoreError::corrupt("a frame's body".as_ref(), offset, expected, found)
    }

    fn read(&mut self) -> Result<ItemView> {
        let rest = &self.body[self.at..];
        let Some(head) = rest.first_chunk::<ITEM_HEADER_LEN>() else {
            return Err(self.fail("an item header of 16 bytes", format!("{} bytes", rest.len())));
        };
        let header = ItemHeader::decode(head);
        let body_len = header.len as usize;
        if body_len > rest.len() - ITEM_HEADER_LEN || padded(ITEM_HEADER_LEN + body_len) > rest.len() {
            let room = rest.len() - ITEM_HEADER_LEN;
            return Err(self.fail(format!("an item body of at most {room} bytes"), format!("{body_len}")));
        }
        let crc = item_crc(rest, body_len);
        if crc != header.crc {
            return Err(self.fail(format!("item crc {:08x}", header.crc), format!("{crc:08x}")));
        }
        let position = FRAME_HEADER_LEN + self.at;
        if header.position as usize != position {
            return Err(self.fail(format!("item position {position}"), format!("{}", header.position)));
        }
        let start = self.at + ITEM_HEADER_LEN;
        self.at += padded(ITEM_HEADER_LEN + body_len);
        Ok(ItemView {
            kind: header.kind,
            flags: header.flags,
            version: header.version,
            position: header.position,
            body: self.body.slice(start..start + body_len),
        })
    }
}

impl Iterator for ItemIter {
    type Item = Result<ItemView>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.body.len()).then(|| self.read())
    }
}

/// A frame's body with what its header says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBody {
    /// The items one after the other.
    pub body: Bytes,
    /// crc32c of `body`.
    pub crc: u32,
    /// Number of items.
    pub count: u32,
}

/// Gathers items into a frame's body and fills in their positions.
#[derive(Debug, Default)]
pub struct BodyBuilder {
    bytes: BytesMut,
    count: u32,
}

impl BodyBuilder {
    /// Nothing gathered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an item behind the others.
    pub fn push(&mut self, item: &EncodedItem) {
        let start = self.bytes.len();
        let position = u32::try_from(FRAME_HEADER_LEN + start)
            .expect("a frame is bounded by its limit, far below 4 GiB");
        self.bytes.extend_from_slice(&item.bytes);
        let at = start + POSITION_AT;
        self.bytes[at..at + 4].copy_from_slice(&position.to_le_bytes());
        self.count += 1;
    }

    /// Bytes gathered so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if no item was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Items gathered so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The body, with its CRC.
    #[must_use]
    pub fn finish(self) -> FrameBody {
        let body = self.bytes.freeze();
        FrameBody { crc: crc32c::crc32c(&body), body, count: self.count }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body_of(items: &[EncodedItem]) -> FrameBody {
        let mut builder = BodyBuilder::new();
        for item in items {
            builder.push(item);
        }
        builder.finish()
    }

    #[test]
    fn bytes_are_as_drawn() {
        let item = EncodedItem::new(1, 2, 0x0403, &[b"ab", b"c"]);
        let frame = body_of(&[item.clone(), item]);
        let mut covered = vec![3, 0, 0, 0, 1, 2, 3, 4];
        covered.extend_from_slice(b"abc");
        let crc = crc32c::crc32c(&covered).to_le_bytes();
        let mut expected = vec![3, 0, 0, 0];
        expected.extend_from_slice(&crc);
        expected.extend_from_slice(&[72, 0, 0, 0, 1, 2, 3, 4, b'a', b'b', b'c', 0, 0, 0, 0, 0]);
        assert_eq!(&frame.body[..24], &expected[..]);
        assert_eq!(frame.body[24 + 8..24 + 12], [96, 0, 0, 0]);
        assert_eq!(frame.crc, crc32c::crc32c(&frame.body));
        assert_eq!((frame.count, frame.body.len()), (2, 48));
    }

    proptest! {
        #[test]
        fn items_come_back_as_they_went_in(
            parts in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u16>(),
                prop::collection::vec(any::<u8>(), 0..70)), 0..8)
        ) {
            let encoded: Vec<EncodedItem> =
                parts.iter().map(|(k, f, v, b)| EncodedItem::new(*k, *f, *v, &[b])).collect();
            let frame = body_of(&encoded);
            let back: Vec<ItemView> =
                items(&frame.body).collect::<Result<_>>().expect("what was encoded is whole");
            prop_assert_eq!(back.len(), parts.len());
            for (view, (kind, flags, version, body)) in back.iter().zip(&parts) {
                prop_assert_eq!((view.kind, view.flags, view.version), (*kind, *flags, *version));
                prop_assert_eq!(&view.body[..], &body[..]);
                prop_assert_eq!(view.position % 8, 0);
            }
        }

        #[test]
        fn a_flipped_bit_outside_of_the_padding_is_noticed(
            body in prop::collection::vec(any::<u8>(), 1..40), bit in any::<prop::sample::Index>()
        ) {
            let frame = body_of(&[EncodedItem::new(7, 0, 1, &[&body])]);
            let bit = bit.index((ITEM_HEADER_LEN + body.len()) * 8);
            let mut bytes = frame.body.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read: Result<Vec<ItemView>> = items(&Bytes::from(bytes)).collect();
            prop_assert!(read.is_err());
        }
    }
}
