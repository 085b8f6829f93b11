//! Properties of a record.
//!
//! ```text
//! key \x01 value \x02 key \x01 value \x02 …        UTF-8; the last \x02 may be missing
//! ```
//! Always: neither key nor value holds a separator; a key stands once. System and user properties share one space of
//! names, so users may not take a name of [`is_reserved`].

use std::collections::BTreeMap;

use crate::FormatError;

const KEY_END: u8 = 1;
const VALUE_END: u8 = 2;

/// Keys of system properties, as RocketMQ spells them.
pub mod name {
    /// Index keys, joined by a space.
    pub const KEYS: &str = "KEYS";
    /// Lengths in characters of the index keys; only where a key itself holds a space.
    pub const KEY_LENGTHS: &str = "__KEY_LENGTHS";
    /// The tag.
    pub const TAGS: &str = "TAGS";
    /// Message id given by the client.
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    /// Message group.
    pub const SHARDING_KEY: &str = "__SHARDINGKEY";
    /// Trace text.
    pub const TRACE_CONTEXT: &str = "TRACE_CONTEXT";
    /// Host of the client, as it names itself.
    pub const BORN_HOST: &str = "__BORNHOST";
    /// Absolute delivery time, ms.
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    /// `true` on a half message of a transaction.
    pub const TRAN_MSG: &str = "TRAN_MSG";
    /// Age before the first check of a transaction, s.
    pub const CHECK_IMMUNITY_TIME: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    /// Priority.
    pub const PRIORITY: &str = "__PRIORITY";
    /// Sub-topic of a lite topic.
    pub const LITE_TOPIC: &str = "__LITE_TOPIC";
    /// Origin of a dead letter: topic.
    pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
    /// Origin of a dead letter: message id.
    pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
}

/// Names that belong to the system; sorted.
const RESERVED: &[&str] = &[
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "CORRELATION_ID",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INSTANCE_ID",
    "KEYS",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    "ORIGIN_MESSAGE_ID",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REDIRECT",
    "REPLY_TO_CLIENT",
    "RETRY_TOPIC",
    "TAGS",
    "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRACE_CONTEXT",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "TRANSFER_FLAG",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "UNIQ_KEY",
    "WAIT",
    "__BORNHOST",
    "__CRC32#",
    "__KEY_LENGTHS",
    "__LITE_TOPIC",
    "__PRIORITY",
    "__SHARDINGKEY",
    "__transactionId__",
];

/// Prefix of properties that the classic protocol never stores.
const TRANSIENT_PREFIX: &str = "__RMQ.TRANSIENT.";

/// Whether a key belongs to the system.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    RESERVED.binary_search(&key).is_ok() || key.starts_with(TRANSIENT_PREFIX)
}

/// Writes properties one behind the other.
#[derive(Debug, Default)]
pub struct PropertiesBuilder {
    bytes: Vec<u8>,
}

impl PropertiesBuilder {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one property. The caller gives each key once.
    pub fn push(&mut self, key: &str, value: &str) -> Result<(), FormatError> {
        if [key, value].iter().any(|text| text.bytes().any(|byte| byte == KEY_END || byte == VALUE_END)) {
            return Err(FormatError::Separator { key: key.escape_debug().to_string() });
        }
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.push(KEY_END);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(VALUE_END);
        Ok(())
    }

    /// The encoded properties.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Properties of a record, decoded. Of a key that stands twice the last value counts, as in RocketMQ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Properties<'a> {
    /// Decodes. A part without key separator is passed over, as RocketMQ does.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let text = std::str::from_utf8(bytes).map_err(|_| FormatError::Text { what: "properties" })?;
        let values = text
            .split(char::from(VALUE_END))
            .filter_map(|property| property.split_once(char::from(KEY_END)))
            .collect();
        Ok(Self { values })
    }

    /// Value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied()
    }

    /// All properties, by rising key.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.values.iter().map(|(key, value)| (*key, *value))
    }

    /// Properties of the application, by rising key.
    pub fn user(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter(|(key, _)| !is_reserved(key))
    }

    /// Lays `over` over these: what it names replaces what is here.
    pub fn overlay(&mut self, over: Properties<'a>) {
        self.values.extend(over.values);
    }
}

/// Value of one key, without decoding the others: what a filter by tag asks of every record.
#[must_use]
pub fn find<'a>(bytes: &'a [u8], key: &str) -> Option<&'a str> {
    let property = bytes.split(|byte| *byte == VALUE_END).rfind(|property| {
        property.strip_prefix(key.as_bytes()).is_some_and(|rest| rest.first() == Some(&KEY_END))
    })?;
    std::str::from_utf8(&property[key.len() + 1..]).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reserved_names_are_sorted_and_hold_all_that_are_written() {
        assert!(RESERVED.is_sorted(), "binary search needs it");
        for key in [
            name::KEYS,
            name::KEY_LENGTHS,
            name::TAGS,
            name::UNIQ_KEY,
            name::SHARDING_KEY,
            name::TRACE_CONTEXT,
            name::BORN_HOST,
            name::TIMER_DELIVER_MS,
            name::TRAN_MSG,
            name::CHECK_IMMUNITY_TIME,
            name::PRIORITY,
            name::LITE_TOPIC,
            name::DLQ_ORIGIN_TOPIC,
            name::DLQ_ORIGIN_MESSAGE_ID,
        ] {
            assert!(is_reserved(key), "{key}");
        }
        assert!(is_reserved("__RMQ.TRANSIENT.x"));
        assert!(!is_reserved("tags") && !is_reserved("region") && !is_reserved(""));
    }

    #[test]
    fn bytes_never_change() {
        let mut builder = PropertiesBuilder::new();
        builder.push("TAGS", "a").expect("no separator");
        builder.push("k", "").expect("no separator");
        assert_eq!(builder.finish(), b"TAGS\x01a\x02k\x01\x02");
    }

    #[test]
    fn last_separator_may_be_missing_and_the_last_value_counts() {
        let properties = Properties::parse(b"a\x011\x02a\x012\x02lonely\x02b\x013").expect("UTF-8");
        assert_eq!(properties.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!(find(b"a\x011\x02a\x012\x02b\x013", "a"), Some("2"));
    }

    #[test]
    fn separators_are_refused() {
        for (key, value) in [("a\u{1}", "b"), ("a", "b\u{2}")] {
            let error = PropertiesBuilder::new().push(key, value);
            assert!(matches!(error, Err(FormatError::Separator { .. })), "{error:?}");
        }
    }

    #[test]
    fn find_wants_the_whole_key() {
        assert_eq!(find(b"XTAGS\x01x\x02TAGSX\x01y\x02TAGS\x01z\x02", "TAGS"), Some("z"));
        assert_eq!(find(b"XTAGS\x01x\x02v\x01TAGS", "TAGS"), None);
    }

    proptest! {
        #[test]
        fn properties_round_trip(values in prop::collection::btree_map("[^\u{1}\u{2}]{1,8}", "[^\u{1}\u{2}]{0,12}", 0..20)) {
            let mut builder = PropertiesBuilder::new();
            for (key, value) in &values {
                builder.push(key, value).expect("no separator");
            }
            let bytes = builder.finish();
            let read = Properties::parse(&bytes).expect("own bytes");
            let read: BTreeMap<_, _> = read.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            for (key, value) in &values {
                prop_assert_eq!(find(&bytes, key), Some(value.as_str()));
            }
            prop_assert_eq!(read, values);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(0u8..5, 0..60), more in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Properties::parse(&bytes);
            let _ = Properties::parse(&more);
            let _ = find(&bytes, "\u{3}");
        }
    }
}
