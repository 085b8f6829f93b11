use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::message::record::{PROPERTIES_LIMIT, Record};
use crate::message::{MessageItem, Origin, Trailer};
use crate::names::{Field, Problem};
use crate::{FormatError, v2};

fn arrival() -> Arrival {
    Arrival {
        queue_id: 3,
        received_ms: 1_700_000_000_123,
        peer: "10.0.0.9:5000".parse().expect("an address"),
        store_host: "127.0.0.1:8081".parse().expect("an address"),
    }
}

fn message() -> v2::Message {
    v2::Message {
        topic: Some(v2::Resource { resource_namespace: String::new(), name: "orders".to_owned() }),
        user_properties: [("region".to_owned(), "eu".to_owned()), ("a".to_owned(), String::new())].into(),
        system_properties: Some(v2::SystemProperties {
            tag: Some("TagA".to_owned()),
            keys: vec!["k1".to_owned(), "k2".to_owned()],
            message_id: "01AABBCCDDEEFF00010000000200000003".to_owned(),
            body_encoding: v2::Encoding::Identity.into(),
            message_type: v2::MessageType::Normal.into(),
            born_timestamp: Some(timestamp(1_699_999_999_999)),
            born_host: "host.example.net".to_owned(),
            ..Default::default()
        }),
        body: Bytes::from_static(b"hello"),
    }
}

fn with(change: impl FnOnce(&mut v2::SystemProperties)) -> v2::Message {
    let mut message = message();
    change(message.system_properties.as_mut().expect("set above"));
    message
}

fn delivery(message: &v2::Message) -> Delivery {
    Delivery {
        topic: message.topic.clone().expect("set above"),
        queue_id: 3,
        queue_offset: 41,
        store_time_ms: 1_700_000_000_456,
        receipt_handle: "handle".to_owned(),
        invisible: Duration::from_millis(15_500),
        attempt: 2,
        overlay: Bytes::new(),
    }
}

fn there_and_back(message: &v2::Message) -> v2::Message {
    let record = Bytes::from(encode_record(message, &arrival()).expect("within the limits"));
    deliver(&record, delivery(message)).expect("own bytes")
}

fn system(message: &v2::Message) -> &v2::SystemProperties {
    message.system_properties.as_ref().expect("always there")
}

#[test]
fn record_has_rocketmqs_names() {
    let record = encode_record(&message(), &arrival()).expect("within the limits");
    let record = Record::parse(&record).expect("own bytes");
    assert_eq!(
        std::str::from_utf8(record.properties).expect("UTF-8"),
        "UNIQ_KEY\u{1}01AABBCCDDEEFF00010000000200000003\u{2}TAGS\u{1}TagA\u{2}__BORNHOST\u{1}host.example.net\u{2}\
         KEYS\u{1}k1 k2\u{2}a\u{1}\u{2}region\u{1}eu\u{2}"
    );
    assert_eq!((record.topic, record.queue_id, record.system_flag), ("orders", 3, 0));
    assert_eq!(record.born_timestamp, 1_699_999_999_999);
    assert_eq!(record.born_host, arrival().peer);
}

#[test]
fn delivery_fills_every_field_that_clients_need() {
    let read = there_and_back(&message());
    assert_eq!(read.body, "hello");
    assert_eq!(read.user_properties, message().user_properties);
    let read = system(&read);
    let digest = read.body_digest.as_ref().expect("Node needs it");
    assert_eq!(
        (digest.r#type(), &*digest.checksum),
        (v2::DigestType::Md5, "5D41402ABC4B2A76B9719D911017C592")
    );
    assert_eq!(read.body_encoding(), v2::Encoding::Identity);
    assert_eq!(read.message_type(), v2::MessageType::Normal);
    assert_eq!(read.tag(), "TagA");
    assert_eq!(read.keys, ["k1", "k2"]);
    assert_eq!(read.message_id, "01AABBCCDDEEFF00010000000200000003");
    assert_eq!(read.born_timestamp, Some(timestamp(1_699_999_999_999)));
    assert_eq!(read.born_host, "host.example.net");
    assert_eq!(read.store_timestamp, Some(timestamp(1_700_000_000_456)));
    assert_eq!(read.store_host, "127.0.0.1:8081");
    assert_eq!(read.receipt_handle(), "handle");
    assert_eq!((read.queue_id, read.queue_offset()), (3, 41));
    assert_eq!(read.invisible_duration, Some(prost_types::Duration { seconds: 15, nanos: 500_000_000 }));
    assert_eq!(read.delivery_attempt(), 2);
    assert_eq!((read.dead_letter_queue.as_ref(), read.priority), (None, None));
}

#[test]
fn gzip_marker_and_body_survive() {
    let mut sent = with(|system| system.body_encoding = v2::Encoding::Gzip.into());
    sent.body = Bytes::from_static(&[0x1F, 0x8B, 0, 1, 2, 0xFF]);
    let read = there_and_back(&sent);
    assert_eq!((system(&read).body_encoding(), &read.body), (v2::Encoding::Gzip, &sent.body));
}

#[test]
fn unspecified_encoding_and_unknown_type_come_back_as_something_clients_understand() {
    let read = there_and_back(&with(|system| {
        system.body_encoding = 99;
        system.message_type = 99;
    }));
    assert_eq!(system(&read).body_encoding(), v2::Encoding::Identity);
    assert_eq!(system(&read).message_type(), v2::MessageType::Normal);
}

#[test]
fn type_follows_the_content() {
    let cases = [
        (with(|_| ()), v2::MessageType::Normal),
        (with(|system| system.message_group = Some("g".to_owned())), v2::MessageType::Fifo),
        (with(|system| system.delivery_timestamp = Some(timestamp(5))), v2::MessageType::Delay),
        (with(|system| system.priority = Some(0)), v2::MessageType::Priority),
        (with(|system| system.lite_topic = Some("l".to_owned())), v2::MessageType::Lite),
        (
            with(|system| system.message_type = v2::MessageType::Transaction.into()),
            v2::MessageType::Transaction,
        ),
        // What only the declared type says does not count.
        (with(|system| system.message_type = v2::MessageType::Fifo.into()), v2::MessageType::Normal),
        (
            with(|system| {
                system.message_group = Some("g".to_owned());
                system.delivery_timestamp = Some(timestamp(5));
            }),
            v2::MessageType::Delay,
        ),
    ];
    for (sent, expected) in cases {
        assert_eq!(content_type(&sent), expected, "{sent:?}");
        assert_eq!(system(&there_and_back(&sent)).message_type(), expected, "{sent:?}");
    }
}

#[test]
fn list_of_keys_comes_back_exactly() {
    for keys in [&["a"][..], &["a", "b"], &["a b"], &["a b", "c", ""], &["größe 1", " x"], &["", ""], &[]] {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let read = there_and_back(&with(|system| system.keys = keys.clone()));
        assert_eq!(system(&read).keys, keys);
    }
}

#[test]
fn overlay_of_a_pointer_wins() {
    let sent = message();
    let record = Bytes::from(encode_record(&sent, &arrival()).expect("within the limits"));
    let overlay =
        Bytes::from_static(b"DLQ_ORIGIN_TOPIC\x01orders\x02DLQ_ORIGIN_MESSAGE_ID\x01id\x02TAGS\x01TagB\x02");
    let read = deliver(&record, Delivery { overlay, ..delivery(&sent) }).expect("own bytes");
    let origin = v2::DeadLetterQueue { topic: "orders".to_owned(), message_id: "id".to_owned() };
    assert_eq!(system(&read).dead_letter_queue, Some(origin));
    assert_eq!(system(&read).tag(), "TagB");
    assert_eq!(read.user_properties, sent.user_properties);
}

#[test]
fn message_without_born_time_gets_the_time_of_arrival() {
    let read = there_and_back(&with(|system| {
        system.born_timestamp = None;
        system.born_host = String::new();
    }));
    assert_eq!(system(&read).born_timestamp, Some(timestamp(1_700_000_000_123)));
    assert_eq!(system(&read).born_host, "10.0.0.9");
}

#[test]
fn too_long_properties_are_an_error_with_the_limit() {
    let sent = with(|system| system.trace_context = Some("t".repeat(40_000)));
    let error = encode_record(&sent, &arrival()).expect_err("over the limit");
    assert!(matches!(error, FormatError::TooLong { limit: PROPERTIES_LIMIT, .. }), "{error}");
}

#[test]
fn item_of_a_message_comes_apart_again() {
    let trailer = Trailer { topic_id: 7, incarnation: 1, origin: Origin::SendKey([5; 16]) };
    let encoded = encode_message(&message(), &arrival(), &trailer).expect("within the limits");
    assert_eq!(encoded.tag_hash, 2_598_919);
    let body = Bytes::from(encoded.parts().concat());
    let item = MessageItem::parse(&body, encoded.flags).expect("own bytes");
    assert_eq!((item.record, item.trailer), (Bytes::from(encoded.record), trailer));
    assert!(MessageItem::parse(&body, 0).is_err(), "flags and trailer belong together");
    assert!(MessageItem::parse(&body.slice(..body.len() - 1), encoded.flags).is_err());
}

#[test]
fn check_names_the_field_that_is_wrong() {
    let limits = MessageLimits::default();
    check_message(&message(), &limits).expect("an ordinary message");
    let mut empty = message();
    empty.body = Bytes::new();
    let mut big = message();
    big.body = Bytes::from(vec![0; limits.body_bytes + 1]);
    let mut nowhere = message();
    nowhere.topic = None;
    let mut reserved = message();
    reserved.user_properties.insert("TAGS".to_owned(), "x".to_owned());
    let mut many = message();
    many.user_properties = (0..129).map(|n| (n.to_string(), String::new())).collect();
    let mut long = message();
    long.user_properties.insert("long".to_owned(), "x".repeat(16 * 1024));
    let cases = [
        (empty, Field::Body, Problem::Blank),
        (big, Field::Body, Problem::TooLong { value: 4_194_305, limit: 4_194_304 }),
        (nowhere, Field::Topic, Problem::Blank),
        (reserved, Field::PropertyKey, Problem::Reserved),
        (many, Field::Properties, Problem::TooMany { value: 129, limit: 128 }),
        (long, Field::Properties, Problem::TooLong { value: 16 * 1024 + 21, limit: 16 * 1024 }),
        (with(|system| system.message_id.clear()), Field::MessageId, Problem::Blank),
        (
            with(|system| system.tag = Some("a|b".to_owned())),
            Field::Tag,
            Problem::Character { found: '|', position: 1 },
        ),
        (with(|system| system.message_group = Some(" ".to_owned())), Field::MessageGroup, Problem::Blank),
        (with(|system| system.priority = Some(-1)), Field::Priority, Problem::OutOfRange),
        (
            with(|system| {
                system.delivery_timestamp =
                    Some(prost_types::Timestamp { seconds: 1_700_000_000_000, nanos: 0 });
            }),
            Field::DeliveryTime,
            Problem::OutOfRange,
        ),
    ];
    for (message, field, problem) in cases {
        let error = check_message(&message, &limits).expect_err("must be refused");
        assert_eq!((error.field, error.problem), (field, problem));
    }
    let without_system = v2::Message { system_properties: None, ..message() };
    assert!(check_message(&without_system, &limits).is_err(), "a message needs an id");
}

fn text() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{0,20}"
}

fn system_strategy() -> impl Strategy<Value = v2::SystemProperties> {
    let texts = (
        prop::option::of("[^\\p{Cc}|]{1,10}"),
        prop::collection::vec(text(), 0..5),
        "[0-9A-F]{34}",
        text(),
        prop::option::of("[a-z0-9]{1,20}"),
        prop::option::of("[^\\p{Cc}]{1,20}"),
        prop::option::of("[^\\p{Cc}]{1,20}"),
    );
    let numbers = (
        0i64..253_402_300_800_000,
        prop::option::of(0i64..253_402_300_800_000),
        prop::option::of(0..i32::MAX),
        prop::option::of(0i64..3_600),
        1i32..=2,
    );
    (texts, numbers).prop_map(|(texts, numbers)| {
        let (tag, keys, message_id, born_host, message_group, trace_context, lite_topic) = texts;
        let (born, delivery, priority, recovery, body_encoding) = numbers;
        let seconds = |seconds| prost_types::Duration { seconds, nanos: 0 };
        v2::SystemProperties {
            tag,
            keys,
            message_id,
            born_timestamp: Some(timestamp(born)),
            born_host,
            delivery_timestamp: delivery.map(timestamp),
            message_group,
            trace_context,
            orphaned_transaction_recovery_duration: recovery.map(seconds),
            lite_topic,
            priority,
            body_encoding,
            ..Default::default()
        }
    })
}

proptest! {
    #[test]
    fn what_the_client_set_comes_back(
        system in system_strategy(),
        user in prop::collection::hash_map("[a-z][a-z0-9]{0,9}", text(), 0..10),
        body in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        let mut sent = message();
        sent.user_properties = user;
        sent.body = Bytes::from(body);
        sent.system_properties = Some(system);
        let read = there_and_back(&sent);
        prop_assert_eq!(&read.user_properties, &sent.user_properties);
        prop_assert_eq!(&read.body, &sent.body);
        prop_assert_eq!(&read.topic, &sent.topic);

        // Everything that the client did not set is the delivery's, and is checked above.
        let sent = sent.system_properties.expect("set above");
        let mut read = read.system_properties.expect("always there");
        if sent.born_host.is_empty() {
            read.born_host.clear();
        }
        let expected = v2::SystemProperties {
            body_digest: read.body_digest.clone(),
            message_type: read.message_type,
            store_timestamp: read.store_timestamp,
            store_host: read.store_host.clone(),
            receipt_handle: read.receipt_handle.clone(),
            queue_id: 3,
            queue_offset: Some(41),
            invisible_duration: read.invisible_duration,
            delivery_attempt: Some(2),
            ..sent
        };
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..150), flags in any::<u8>()) {
        let bytes = Bytes::from(bytes);
        let _ = deliver(&bytes, delivery(&message()));
        let _ = MessageItem::parse(&bytes, flags);
    }

    /// A record with any one byte changed is an error or a message, never a panic.
    #[test]
    fn damaged_record_never_panics(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut record = encode_record(&message(), &arrival()).expect("within the limits");
        let at = at.index(record.len());
        record[at] = value;
        let _ = deliver(&Bytes::from(record), delivery(&message()));
    }
}
