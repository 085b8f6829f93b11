//! Kinds of the items in a broker group's log.
//!
//! The number stands in the header of every persisted item: it is never changed and never reused. A message and a
//! pointer have binary bodies ([`crate::message`]); every other body is the protobuf message of
//! `proto/cluster/v1/command.proto` that is named here. A kind that not all voters know is refused until the
//! group's feature level allows it.

/// A message: record and trailer.
pub const MESSAGE: u8 = 1;
/// A pointer to a message that the log already holds.
pub const PLACE: u8 = 2;

/// `DeliverCommand`: messages of a queue are handed to a client.
pub const DELIVER: u8 = 10;
/// `AckCommand`: deliveries are settled.
pub const ACK: u8 = 11;
/// `ChangeInvisibleCommand`: a delivery comes again at another time.
pub const CHANGE_INVISIBLE: u8 = 12;
/// `ClientGoneCommand`: a client went away on purpose.
pub const CLIENT_GONE: u8 = 13;
/// Reserved: a consumer offset.
pub const COMMIT_OFFSET: u8 = 14;
/// Reserved: an offset set by an administrator.
pub const RESET_OFFSET: u8 = 15;
/// Reserved: the lock of a queue.
pub const QUEUE_LOCK: u8 = 16;
/// Reserved: the end of a transaction.
pub const END_TRANSACTION: u8 = 17;
/// Reserved: a check of a transaction.
pub const CHECK_TRANSACTION: u8 = 18;
/// Reserved: a delayed message is taken back.
pub const RECALL: u8 = 19;

/// `TopicCommand`: create, change, delete.
pub const TOPIC: u8 = 20;
/// `SubscriptionGroupCommand`: create, change, delete.
pub const SUBSCRIPTION_GROUP: u8 = 21;
/// `ProducerCommand`: a higher epoch of a native producer.
pub const PRODUCER: u8 = 22;
/// Reserved: the lower bound of the log.
pub const RETENTION: u8 = 23;
/// Reserved: a payload that is written again before its segment goes.
pub const RESCUE: u8 = 24;

/// `DigestMarkCommand`: every member computes its digests here.
pub const DIGEST_MARK: u8 = 30;
/// `FeatureLevelCommand`: what all voters understand.
pub const FEATURE_LEVEL: u8 = 31;
/// Reserved: the due time moves.
pub const TIME: u8 = 32;

/// Version of every kind's body so far.
pub const VERSION: u16 = 1;

/// Name of a kind, for people and metrics.
#[must_use]
pub fn kind_name(kind: u8) -> &'static str {
    match kind {
        MESSAGE => "message",
        PLACE => "place",
        DELIVER => "deliver",
        ACK => "ack",
        CHANGE_INVISIBLE => "change_invisible",
        CLIENT_GONE => "client_gone",
        COMMIT_OFFSET => "commit_offset",
        RESET_OFFSET => "reset_offset",
        QUEUE_LOCK => "queue_lock",
        END_TRANSACTION => "end_transaction",
        CHECK_TRANSACTION => "check_transaction",
        RECALL => "recall",
        TOPIC => "topic",
        SUBSCRIPTION_GROUP => "subscription_group",
        PRODUCER => "producer",
        RETENTION => "retention",
        RESCUE => "rescue",
        DIGEST_MARK => "digest_mark",
        FEATURE_LEVEL => "feature_level",
        TIME => "time",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_of_kinds_never_change() {
        let kinds = [
            (1, "message"),
            (2, "place"),
            (10, "deliver"),
            (11, "ack"),
            (12, "change_invisible"),
            (13, "client_gone"),
            (14, "commit_offset"),
            (20, "topic"),
            (21, "subscription_group"),
            (22, "producer"),
            (30, "digest_mark"),
            (31, "feature_level"),
            (32, "time"),
        ];
        for (number, name) in kinds {
            assert_eq!(kind_name(number), name);
        }
        let known: Vec<_> = (0..=u8::MAX).map(kind_name).filter(|name| *name != "unknown").collect();
        assert_eq!(known.iter().collect::<BTreeSet<_>>().len(), known.len(), "a name stands for one kind");
    }
}
