//! What stands behind the record of a message item.
//!
//! ```text
//!  0  topic id 4 | incarnation 4
//!  8  by the item's flags:
//!       0                    nothing more
//!       FLAG_NATIVE          producer id 8 | epoch 4 | floor 8 | sequence 8
//!       FLAG_SEND_KEY        send key 16
//! ```
//! Little-endian. Always: the length follows from the flags; at most one of the flags is set.

use crate::FormatError;
use crate::reader::Reader;

/// Item flag: the send was numbered by a native producer.
pub const FLAG_NATIVE: u8 = 1;
/// Item flag: the send is identified by a send key.
pub const FLAG_SEND_KEY: u8 = 2;

/// Topic of a message and identity of its send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Number of the topic.
    pub topic_id: u32,
    /// Life of the topic.
    pub incarnation: u32,
    /// How a repeat of the send is recognised.
    pub origin: Origin,
}

/// How a repeat of a send is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Not at all.
    Anonymous,
    /// By the numbers of a native producer.
    Native(NativeSend),
    /// By what it consists of ([`super::send_key`]).
    SendKey([u8; 16]),
}

/// Numbers of one send of a native producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeSend {
    /// Random, not 0.
    pub producer_id: u64,
    /// A higher one ends the lower ones.
    pub epoch: u32,
    /// Lowest sequence that is still outstanding.
    pub floor: u64,
    /// Number of this send within its broker group.
    pub sequence: u64,
}

impl Trailer {
    /// Flags of the item.
    #[must_use]
    pub fn flags(&self) -> u8 {
        match self.origin {
            Origin::Anonymous => 0,
            Origin::Native(_) => FLAG_NATIVE,
            Origin::SendKey(_) => FLAG_SEND_KEY,
        }
    }

    /// The trailer's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(36);
        out.extend_from_slice(&self.topic_id.to_le_bytes());
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        match self.origin {
            Origin::Anonymous => {}
            Origin::Native(NativeSend { producer_id, epoch, floor, sequence }) => {
                out.extend_from_slice(&producer_id.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&floor.to_le_bytes());
                out.extend_from_slice(&sequence.to_le_bytes());
            }
            Origin::SendKey(key) => out.extend_from_slice(&key),
        }
        out
    }

    /// Reads a trailer; `flags` are those of the item.
    pub fn parse(bytes: &[u8], flags: u8) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        let topic_id = reader.u32_le("topic id")?;
        let incarnation = reader.u32_le("incarnation")?;
        let origin = match flags {
            0 => Origin::Anonymous,
            FLAG_NATIVE => Origin::Native(NativeSend {
                producer_id: reader.u64_le("producer id")?,
                epoch: reader.u32_le("epoch")?,
                floor: reader.u64_le("floor")?,
                sequence: reader.u64_le("sequence")?,
            }),
            FLAG_SEND_KEY => Origin::SendKey(reader.array("send key")?),
            other => {
                return Err(FormatError::Value {
                    what: "flags of a message item",
                    found: u64::from(other),
                    expected: "0, 1 or 2",
                });
            }
        };
        reader.end("trailer")?;
        Ok(Self { topic_id, incarnation, origin })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn origin() -> impl Strategy<Value = Origin> {
        prop_oneof![
            Just(Origin::Anonymous),
            any::<(u64, u32, u64, u64)>().prop_map(|(producer_id, epoch, floor, sequence)| {
                Origin::Native(NativeSend { producer_id, epoch, floor, sequence })
            }),
            any::<[u8; 16]>().prop_map(Origin::SendKey),
        ]
    }

    #[test]
    fn bytes_never_change() {
        let native = NativeSend { producer_id: 0x11, epoch: 0x22, floor: 0x33, sequence: 0x44 };
        let trailer = Trailer { topic_id: 7, incarnation: 2, origin: Origin::Native(native) };
        let expected = [
            &[7, 0, 0, 0, 2, 0, 0, 0][..],
            &[0x11, 0, 0, 0, 0, 0, 0, 0],
            &[0x22, 0, 0, 0],
            &[0x33, 0, 0, 0, 0, 0, 0, 0],
            &[0x44, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!((trailer.encode(), trailer.flags()), (expected, 1));
        let anonymous = Trailer { origin: Origin::Anonymous, ..trailer };
        assert_eq!((anonymous.encode().len(), anonymous.flags()), (8, 0));
        let keyed = Trailer { origin: Origin::SendKey([9; 16]), ..trailer };
        assert_eq!((keyed.encode().len(), keyed.flags()), (24, 2));
    }

    proptest! {
        #[test]
        fn trailer_round_trips(topic_id in any::<u32>(), incarnation in any::<u32>(), origin in origin()) {
            let trailer = Trailer { topic_id, incarnation, origin };
            let mut bytes = trailer.encode();
            prop_assert_eq!(Trailer::parse(&bytes, trailer.flags()), Ok(trailer));
            bytes.push(0);
            prop_assert!(Trailer::parse(&bytes, trailer.flags()).is_err(), "a longer one is refused");
            bytes.truncate(bytes.len() - 2);
            prop_assert!(Trailer::parse(&bytes, trailer.flags()).is_err(), "a shorter one is refused");
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), flags in any::<u8>()) {
            let _ = Trailer::parse(&bytes, flags);
        }
    }
}
