//! What the name group's log holds: kinds of items, and their bytes.
//!
//! The number stands in the header of every persisted item: it is never changed and never reused. The body is the
//! protobuf message of `proto/cluster/v1/name_command.proto` that is named here.

use mq_protocol::cluster::{NameDigestMark, NameKv, NameLost, NameReport};
use mq_store::{EncodedItem, ItemView};
use prost::Message;

/// `NameReport`: what a broker group's leader says of its group.
pub const REPORT: u8 = 1;
/// `NameLost`: a broker group was not heard of for the time-out.
pub const LOST: u8 = 2;
/// `NameKv`: a setting is put or deleted.
pub const KV: u8 = 3;
/// `NameDigestMark`: every member takes digests here.
pub const DIGEST_MARK: u8 = 30;

const VERSION: u16 = 1;

/// A replicated command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Registration of a broker group.
    Report(NameReport),
    /// Expiry of a broker group.
    Lost(NameLost),
    /// Change of a setting.
    Kv(NameKv),
    /// Digests are wanted.
    DigestMark(NameDigestMark),
}

impl Command {
    /// The item that carries it.
    #[must_use]
    pub fn encode(&self) -> EncodedItem {
        let (kind, body) = match self {
            Self::Report(report) => (REPORT, report.encode_to_vec()),
            Self::Lost(lost) => (LOST, lost.encode_to_vec()),
            Self::Kv(kv) => (KV, kv.encode_to_vec()),
            Self::DigestMark(mark) => (DIGEST_MARK, mark.encode_to_vec()),
        };
        EncodedItem::new(kind, 0, VERSION, &[&body])
    }

    /// Reads an item of the log; `None` for a kind, a version or bytes that this program does not know. The log holds
    /// such an item for ever, so it is answered and not an error.
    #[must_use]
    pub fn decode(item: &ItemView) -> Option<Self> {
        if item.version != VERSION {
            return None;
        }
        match item.kind {
            REPORT => NameReport::decode(item.body.clone()).ok().map(Self::Report),
            LOST => NameLost::decode(item.body.clone()).ok().map(Self::Lost),
            KV => NameKv::decode(item.body.clone()).ok().map(Self::Kv),
            DIGEST_MARK => NameDigestMark::decode(item.body.clone()).ok().map(Self::DigestMark),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_store::{BodyBuilder, items};

    use super::*;

    fn through_a_frame(item: &EncodedItem) -> Option<Command> {
        let mut body = BodyBuilder::new();
        body.push(item);
        let body = body.finish();
        let item = items(&body.body).next().expect("one item").expect("intact");
        Command::decode(&item)
    }

    #[test]
    fn commands_come_back_from_a_frame() {
        let report = NameReport { broker_group: "broker-a".into(), term: 7, ..NameReport::default() };
        for command in [
            Command::Report(report),
            Command::Lost(NameLost { broker_group: "broker-a".into(), ..NameLost::default() }),
            Command::DigestMark(NameDigestMark { mark: 9 }),
            Command::Kv(NameKv { namespace: "ns".into(), key: "k".into(), value: None, expected: Some(0) }),
        ] {
            assert_eq!(through_a_frame(&command.encode()), Some(command));
        }
    }

    #[test]
    fn an_unknown_kind_or_version_is_no_command() {
        assert_eq!(through_a_frame(&EncodedItem::new(99, 0, VERSION, &[])), None);
        assert_eq!(through_a_frame(&EncodedItem::new(REPORT, 0, VERSION + 1, &[])), None);
        assert_eq!(through_a_frame(&EncodedItem::new(REPORT, 0, VERSION, &[&[0xff; 3]])), None);
    }
}
