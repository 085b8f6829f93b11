//! Field and enum numbers are fixed by the clients in the field. A number that slips is invisible to our own client,
//! which would slip with it; so the bytes of the most used messages are pinned here.

use mq_protocol::v2;
use prost::Message;

/// Numbers of the fields in an encoded message, in order, each once.
fn field_numbers(mut bytes: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        let (number, wire_type) = prost::encoding::decode_key(&mut bytes).expect("own bytes");
        let context = prost::encoding::DecodeContext::default();
        prost::encoding::skip_field(wire_type, number, &mut bytes, context).expect("own bytes");
        if numbers.last() != Some(&number) {
            numbers.push(number);
        }
    }
    numbers
}

fn resource() -> Option<v2::Resource> {
    Some(v2::Resource { resource_namespace: "n".to_owned(), name: "t".to_owned() })
}

fn system_properties() -> v2::SystemProperties {
    let time = Some(prost_types::Timestamp { seconds: 1, nanos: 0 });
    let span = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    v2::SystemProperties {
        tag: Some("a".to_owned()),
        keys: vec!["k".to_owned()],
        message_id: "m".to_owned(),
        body_digest: Some(v2::Digest { r#type: 2, checksum: "c".to_owned() }),
        body_encoding: 1,
        message_type: 1,
        born_timestamp: time,
        born_host: "h".to_owned(),
        store_timestamp: time,
        store_host: "s".to_owned(),
        delivery_timestamp: time,
        receipt_handle: Some("r".to_owned()),
        queue_id: 1,
        queue_offset: Some(1),
        invisible_duration: span,
        delivery_attempt: Some(1),
        message_group: Some("g".to_owned()),
        trace_context: Some("t".to_owned()),
        orphaned_transaction_recovery_duration: span,
        dead_letter_queue: Some(v2::DeadLetterQueue { topic: "t".to_owned(), message_id: "m".to_owned() }),
        lite_topic: Some("l".to_owned()),
        priority: Some(1),
    }
}

#[test]
fn message_has_the_numbers_of_the_protocol() {
    assert_eq!(field_numbers(&system_properties().encode_to_vec()), (1..=22).collect::<Vec<_>>());
    let message = v2::Message {
        topic: resource(),
        user_properties: [("k".to_owned(), "v".to_owned())].into(),
        system_properties: Some(v2::SystemProperties { message_id: "m".to_owned(), ..Default::default() }),
        body: "b".into(),
    };
    let expected = b"\x0a\x06\x0a\x01n\x12\x01t\x12\x06\x0a\x01k\x12\x01v\x1a\x03\x1a\x01m\x22\x01b";
    assert_eq!(message.encode_to_vec(), expected);
}

#[test]
fn receive_has_the_numbers_of_the_protocol() {
    let request = v2::ReceiveMessageRequest {
        group: resource(),
        message_queue: Some(v2::MessageQueue {
            topic: resource(),
            id: 1,
            permission: v2::Permission::ReadWrite.into(),
            broker: Some(v2::Broker {
                name: "b".to_owned(),
                id: 1,
                endpoints: Some(v2::Endpoints::default()),
            }),
            accept_message_types: vec![1],
        }),
        filter_expression: Some(v2::FilterExpression { r#type: 1, expression: "*".to_owned() }),
        batch_size: 1,
        invisible_duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        auto_renew: true,
        long_polling_timeout: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        attempt_id: Some("a".to_owned()),
    };
    assert_eq!(field_numbers(&request.encode_to_vec()), (1..=8).collect::<Vec<_>>());
    let queue = request.message_queue.expect("set above");
    assert_eq!(field_numbers(&queue.encode_to_vec()), (1..=5).collect::<Vec<_>>());
    assert_eq!(field_numbers(&queue.broker.expect("set above").encode_to_vec()), [1, 2, 3]);

    use v2::receive_message_response::Content;
    let time = prost_types::Timestamp { seconds: 1, nanos: 0 };
    let contents = [
        Content::Status(v2::Status::default()),
        Content::Message(v2::Message::default()),
        Content::DeliveryTimestamp(time),
    ];
    for (content, number) in contents.into_iter().zip(1u32..) {
        let response = v2::ReceiveMessageResponse { content: Some(content) };
        assert_eq!(field_numbers(&response.encode_to_vec()), [number]);
    }
}

#[test]
fn codes_have_the_numbers_of_the_protocol() {
    let codes = [
        (v2::Code::Ok, 20_000),
        (v2::Code::MultipleResults, 30_000),
        (v2::Code::BadRequest, 40_000),
        (v2::Code::InvalidReceiptHandle, 40_013),
        (v2::Code::ClientIdRequired, 40_017),
        (v2::Code::MessageNotFound, 40_401),
        (v2::Code::TopicNotFound, 40_402),
        (v2::Code::MessageBodyTooLarge, 41_301),
        (v2::Code::MessageBodyEmpty, 41_302),
        (v2::Code::TooManyRequests, 42_900),
        (v2::Code::MessagePropertiesTooLarge, 43_101),
        (v2::Code::InternalServerError, 50_001),
        (v2::Code::HaNotAvailable, 50_002),
        (v2::Code::NotImplemented, 50_100),
        (v2::Code::ProxyTimeout, 50_400),
    ];
    for (code, number) in codes {
        assert_eq!(code as i32, number);
    }
    assert_eq!(v2::ClientType::SimpleConsumer as i32, 3);
    assert_eq!(v2::Encoding::Gzip as i32, 2);
    assert_eq!(v2::AddressScheme::DomainName as i32, 3);
    assert_eq!(v2::Language::Rust as i32, 5);
}
