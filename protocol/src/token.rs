//! Opaque texts that clients hold and bring back.
//!
//! ```text
//! base64url without padding of
//!   version 1 (= 1) | kind 1 | broker group length 1, broker group | fields of the kind | crc32c of all before it 4
//!
//! kind 1, receipt handle   group id 4 | group incarnation 4 | topic id 4 | incarnation 4 | queue 4
//!                          position 8 | deliver index 8
//! kind 2, transaction id   log index 8 | item number 4
//! kind 3, recall handle    log index 8 | item number 4
//! ```
//! Little-endian. Always: no address and no term, so a token means the same at every node and after every failover;
//! what does not decode is refused as a whole, never guessed at.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::FormatError;
use crate::reader::Reader;

const VERSION: u8 = 1;
const KIND_RECEIPT: u8 = 1;
const KIND_TRANSACTION: u8 = 2;
const KIND_RECALL: u8 = 3;
/// Longer texts are none of ours and are not even decoded.
const TEXT_LIMIT: usize = 512;

/// A token cannot be used. What exactly is wrong helps nobody but us: it goes to the log, not to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than any of ours, or not base64url.
    #[error("not a token of this system")]
    Foreign,
    /// Ours in shape, but damaged or of another kind.
    #[error("damaged or misplaced token: {0}")]
    Format(#[from] FormatError),
}

/// One delivery of one message, as its consumer names it in an ack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReceiptHandle {
    /// Broker group that holds the queue.
    pub broker_group: String,
    /// Number of the subscription group.
    pub group_id: u32,
    /// Life of the subscription group.
    pub group_incarnation: u32,
    /// Number of the topic.
    pub topic_id: u32,
    /// Life of the topic.
    pub incarnation: u32,
    /// Queue of the topic.
    pub queue: u32,
    /// Queue offset.
    pub position: u64,
    /// Log index of the `deliver`, or of the client's latest `change_invisible`.
    pub deliver_index: u64,
}

impl ReceiptHandle {
    /// The text for the client.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut bytes = begin(KIND_RECEIPT, &self.broker_group);
        for number in [self.group_id, self.group_incarnation, self.topic_id, self.incarnation, self.queue] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.position.to_le_bytes());
        bytes.extend_from_slice(&self.deliver_index.to_le_bytes());
        seal(bytes)
    }

    /// What a client brought back.
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let bytes = open(text)?;
        let (broker_group, mut reader) = fields(&bytes, KIND_RECEIPT)?;
        let handle = Self {
            broker_group,
            group_id: reader.u32_le("group id")?,
            group_incarnation: reader.u32_le("group incarnation")?,
            topic_id: reader.u32_le("topic id")?,
            incarnation: reader.u32_le("incarnation")?,
            queue: reader.u32_le("queue")?,
            position: reader.u64_le("position")?,
            deliver_index: reader.u64_le("deliver index")?,
        };
        reader.end("receipt handle")?;
        Ok(handle)
    }
}

/// Place of a message in a group's log, as the producer of a transaction names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TransactionId {
    /// Broker group that holds the half message.
    pub broker_group: String,
    /// Log index of its frame.
    pub index: u64,
    /// Number of its item in the frame.
    pub item: u32,
}

impl TransactionId {
    /// The text for the client.
    #[must_use]
    pub fn encode(&self) -> String {
        encode_place(KIND_TRANSACTION, &self.broker_group, self.index, self.item)
    }

    /// What a client brought back.
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let (broker_group, index, item) = decode_place(text, KIND_TRANSACTION)?;
        Ok(Self { broker_group, index, item })
    }
}

/// Place of a delayed message in a group's log, as its producer names it to take it back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecallHandle {
    /// Broker group that holds the message.
    pub broker_group: String,
    /// Log index of its frame.
    pub index: u64,
    /// Number of its item in the frame.
    pub item: u32,
}

impl RecallHandle {
    /// The text for the client.
    #[must_use]
    pub fn encode(&self) -> String {
        encode_place(KIND_RECALL, &self.broker_group, self.index, self.item)
    }

    /// What a client brought back.
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let (broker_group, index, item) = decode_place(text, KIND_RECALL)?;
        Ok(Self { broker_group, index, item })
    }
}

fn encode_place(kind: u8, broker_group: &str, index: u64, item: u32) -> String {
    let mut bytes = begin(kind, broker_group);
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes.extend_from_slice(&item.to_le_bytes());
    seal(bytes)
}

fn decode_place(text: &str, kind: u8) -> Result<(String, u64, u32), TokenError> {
    let bytes = open(text)?;
    let (broker_group, mut reader) = fields(&bytes, kind)?;
    let index = reader.u64_le("log index")?;
    let item = reader.u32_le("item number")?;
    reader.end("token")?;
    Ok((broker_group, index, item))
}

/// Names of broker groups are at most [`crate::names::GROUP_LIMIT`] bytes, which fits the length byte; a longer
/// one, which no configuration lets through, is cut at a character.
fn begin(kind: u8, broker_group: &str) -> Vec<u8> {
    let cut = broker_group.floor_char_boundary(usize::from(u8::MAX));
    let mut bytes = vec![VERSION, kind, cut as u8];
    bytes.extend_from_slice(&broker_group.as_bytes()[..cut]);
    bytes
}

fn seal(mut bytes: Vec<u8>) -> String {
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes and checks the checksum, which it takes off.
fn open(text: &str) -> Result<Vec<u8>, TokenError> {
    if text.len() > TEXT_LIMIT {
        return Err(TokenError::Foreign);
    }
    let mut bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Foreign)?;
    let Some(at) = bytes.len().checked_sub(4) else {
        return Err(TokenError::Foreign);
    };
    let found = Reader::new(&bytes[at..]).u32_le("checksum")?;
    bytes.truncate(at);
    let expected = crc32c::crc32c(&bytes);
    if found == expected {
        Ok(bytes)
    } else {
        Err(FormatError::Checksum { what: "token", found, expected }.into())
    }
}

fn fields(bytes: &[u8], kind: u8) -> Result<(String, Reader<'_>), TokenError> {
    let mut reader = Reader::new(bytes);
    for (what, expected, wanted) in
        [("version of a token", "1", VERSION), ("kind of a token", "the kind that this call takes", kind)]
    {
        let found = reader.u8(what)?;
        if found != wanted {
            return Err(FormatError::Value { what, found: u64::from(found), expected }.into());
        }
    }
    let len = usize::from(reader.u8("length of the broker group")?);
    let broker_group = reader.text(len, "broker group")?.to_owned();
    Ok((broker_group, reader))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle() -> ReceiptHandle {
        ReceiptHandle {
            broker_group: "broker-a".to_owned(),
            group_id: 1,
            group_incarnation: 2,
            topic_id: 3,
            incarnation: 4,
            queue: 5,
            position: 6,
            deliver_index: 7,
        }
    }

    #[test]
    fn text_never_changes() {
        let golden = "AQEIYnJva2VyLWEBAAAAAgAAAAMAAAAEAAAABQAAAAYAAAAAAAAABwAAAAAAAAA7ao_o";
        assert_eq!(handle().encode(), golden);
        assert_eq!(ReceiptHandle::decode(golden), Ok(handle()));
    }

    #[test]
    fn kinds_do_not_mix() {
        let transaction = TransactionId { broker_group: "a".to_owned(), index: 1, item: 0 }.encode();
        assert!(matches!(RecallHandle::decode(&transaction), Err(TokenError::Format(_))));
        assert!(matches!(ReceiptHandle::decode(&transaction), Err(TokenError::Format(_))));
        assert!(matches!(TransactionId::decode(&handle().encode()), Err(TokenError::Format(_))));
    }

    #[test]
    fn foreign_texts_are_refused() {
        let longest = "A".repeat(TEXT_LIMIT + 1);
        for text in ["", "abc", "not base64!", "AAAA", "0 1 2 3 4 5 6 7 8", &longest] {
            assert_eq!(ReceiptHandle::decode(text), Err(TokenError::Foreign), "{text}");
        }
    }

    #[test]
    fn longest_broker_group_fits() {
        let handle = ReceiptHandle { broker_group: "g".repeat(255), ..handle() };
        assert_eq!(ReceiptHandle::decode(&handle.encode()), Ok(handle));
    }

    proptest! {
        #[test]
        fn tokens_round_trip(broker_group in "[a-z0-9-]{0,120}", numbers in any::<[u32; 5]>(), positions in any::<(u64, u64)>()) {
            let [group_id, group_incarnation, topic_id, incarnation, queue] = numbers;
            let (position, deliver_index) = positions;
            let handle = ReceiptHandle {
                broker_group: broker_group.clone(), group_id, group_incarnation, topic_id, incarnation, queue, position, deliver_index,
            };
            prop_assert_eq!(ReceiptHandle::decode(&handle.encode()), Ok(handle));
            let transaction = TransactionId { broker_group: broker_group.clone(), index: position, item: queue };
            prop_assert_eq!(TransactionId::decode(&transaction.encode()), Ok(transaction));
            let recall = RecallHandle { broker_group, index: position, item: queue };
            prop_assert_eq!(RecallHandle::decode(&recall.encode()), Ok(recall));
        }

        #[test]
        fn a_changed_character_is_noticed(at in any::<prop::sample::Index>(), with in "[A-Za-z0-9_-]") {
            let good = handle().encode();
            let at = at.index(good.len());
            let mut changed = good.clone();
            changed.replace_range(at..=at, &with);
            if changed != good {
                prop_assert!(ReceiptHandle::decode(&changed).is_err());
            }
        }

        #[test]
        fn any_text_gets_an_answer(text in any::<String>(), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = ReceiptHandle::decode(&text);
            // A right checksum over anything.
            let sealed = seal(bytes);
            let _ = ReceiptHandle::decode(&sealed);
            let _ = TransactionId::decode(&sealed);
            let _ = RecallHandle::decode(&sealed);
        }
    }
}
