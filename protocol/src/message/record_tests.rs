use proptest::prelude::*;

use super::*;

fn builder<'a>(body: &'a [u8], topic: &'a str, properties: &'a [u8]) -> RecordBuilder<'a> {
    RecordBuilder {
        queue_id: 3,
        flag: 0,
        system_flag: 0,
        born_timestamp: 0x0102_0304_0506_0708,
        born_host: "10.1.2.3:4660".parse().expect("an address"),
        store_host: "127.0.0.1:10911".parse().expect("an address"),
        reconsume_times: 0,
        prepared_offset: 0,
        body,
        topic,
        properties,
    }
}

/// Byte for byte what the layout of RocketMQ's records says; every field at its place.
#[test]
fn bytes_never_change() {
    let record = builder(b"hello", "orders", b"TAGS\x01a\x02").encode().expect("within the limits");
    let expected: Vec<u8> = [
        &[0, 0, 0, 109][..],
        &[0xDA, 0xA3, 0x20, 0xA7],
        &[0x36, 0x10, 0xA6, 0x86], // CRC-32 of "hello"
        &[0, 0, 0, 3],
        &[0; 4],
        &[0; 8],
        &[0; 8],
        &[0; 4],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[10, 1, 2, 3, 0, 0, 0x12, 0x34],
        &[0; 8],
        &[127, 0, 0, 1, 0, 0, 0x2A, 0x9F],
        &[0; 4],
        &[0; 8],
        &[0, 0, 0, 5],
        b"hello",
        &[6],
        b"orders",
        &[0, 7],
        b"TAGS\x01a\x02",
    ]
    .concat();
    assert_eq!(record, expected);
    assert_eq!(record.len(), FIXED_LEN + 5 + 6 + 7);
}

#[test]
fn topic_longer_than_127_takes_the_second_magic() {
    for (len, magic, extra) in [(127, MAGIC_V1, 0), (128, MAGIC_V2, 1)] {
        let topic = "t".repeat(len);
        let record = builder(b"b", &topic, b"").encode().expect("within the limits");
        assert_eq!(record[4..8], magic.to_be_bytes());
        assert_eq!(record.len(), FIXED_LEN + 1 + len + extra);
        assert_eq!(Record::parse(&record).expect("own bytes").topic, topic);
    }
}

#[test]
fn too_long_parts_are_refused_with_value_and_limit() {
    let properties = vec![b'p'; PROPERTIES_LIMIT + 1];
    assert_eq!(
        builder(b"b", "t", &properties).encode(),
        Err(FormatError::TooLong { what: "properties", value: 32_768, limit: 32_767 })
    );
    assert!(builder(b"b", "t", &properties[1..]).encode().is_ok());
}

#[test]
fn damaged_body_is_noticed() {
    let mut record = builder(b"hello", "orders", b"").encode().expect("within the limits");
    Record::parse(&record).expect("own bytes").check_body().expect("undamaged");
    record[84 + 4] ^= 1;
    let error = Record::parse(&record).expect("the layout is whole").check_body();
    assert!(matches!(error, Err(FormatError::Checksum { .. })), "{error:?}");
}

#[test]
fn positions_are_refused_on_a_cut_record() {
    let mut record = builder(b"hello", "orders", b"").encode().expect("within the limits");
    record.pop();
    assert!(matches!(fill_positions(&mut record, 1, 2, 3), Err(FormatError::Truncated { .. })));
}

fn host() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

proptest! {
    #[test]
    fn record_round_trips(
        queue_id in any::<u32>(), flag in any::<i32>(), system_flag in any::<u32>(), born_timestamp in any::<i64>(),
        hosts in (host(), host()), reconsume_times in any::<i32>(), prepared_offset in any::<i64>(),
        body in prop::collection::vec(any::<u8>(), 0..300), topic in "[a-zA-Z0-9_%|-]{0,300}",
        properties in prop::collection::vec(any::<u8>(), 0..300),
        positions in any::<(u64, u64, u64)>(),
    ) {
        let built = RecordBuilder {
            queue_id, flag, system_flag, born_timestamp, born_host: hosts.0, store_host: hosts.1, reconsume_times,
            prepared_offset, body: &body, topic: &topic, properties: &properties,
        };
        let mut bytes = built.encode().expect("within the limits");
        prop_assert_eq!(bytes.len(), built.size());
        let stored = Record::parse(&bytes).expect("own bytes");
        prop_assert_eq!((stored.queue_offset, stored.physical_offset, stored.store_timestamp), (0, 0, 0));
        stored.check_body().expect("undamaged");

        fill_positions(&mut bytes, positions.0, positions.1, positions.2).expect("a record");
        let read = Record::parse(&bytes).expect("own bytes");
        prop_assert_eq!((read.queue_offset, read.physical_offset, read.store_timestamp), positions);
        let parts = (
            read.queue_id, read.flag, read.born_timestamp, read.born_host, read.store_host, read.reconsume_times,
            read.prepared_offset, read.body, read.topic, read.properties,
        );
        let given = (
            queue_id, flag, born_timestamp, hosts.0, hosts.1, reconsume_times,
            prepared_offset, body.as_slice(), topic.as_str(), properties.as_slice(),
        );
        // Compared in two halves: a tuple of ten fits, a mask of the host bits does not.
        prop_assert_eq!(parts, given);
        let hosts_mask = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6;
        prop_assert_eq!(read.system_flag & !hosts_mask, system_flag & !hosts_mask);
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Record::parse(&bytes);
        let _ = fill_positions(&mut bytes, 1, 2, 3);
    }

    /// A real record with one byte changed, or cut, either parses or is an error.
    #[test]
    fn damaged_record_never_panics(at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = builder(b"hello", "orders", b"TAGS\x01a\x02").encode().expect("within the limits");
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = fill_positions(&mut bytes.clone(), 1, 2, 3);
        let _ = Record::parse(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(Record::parse(&bytes).is_err());
    }
}
