//! One node, topics and groups made at first use: send, receive, ack, change of the invisible time, redelivery.

use std::time::{Duration, Instant};

use crate::support::{Client, OK, attempt, code, dev, handle, message, receive, start};
use mq_protocol::v2;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_received_and_settled() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = dev(folder.path());
    let brokers = start(std::slice::from_ref(&config)).await;
    let client = Client::of(&config);

    let route = client.route("orders").await;
    assert_eq!(code(&route.status), OK);
    let ids: Vec<_> = route.message_queues.iter().map(|queue| queue.id).collect();
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    for queue in &route.message_queues {
        let broker = queue.broker.as_ref().expect("a broker");
        let endpoints = broker.endpoints.as_ref().expect("endpoints");
        assert_eq!((broker.id, endpoints.scheme, endpoints.addresses.len()), (0, 1, 1));
        let address = &endpoints.addresses[0];
        assert_eq!(format!("{}:{}", address.host, address.port), config.client_listen);
        assert_eq!(queue.accept_message_types, [v2::MessageType::Normal as i32]);
    }

    let mut sent = message("orders", "hello");
    sent.user_properties = [("region".to_owned(), "eu = \"x\"".to_owned())].into();
    let system = sent.system_properties.as_mut().expect("set");
    system.tag = Some("a".into());
    system.keys = vec!["k1".into(), "k2".into()];
    assert_eq!(client.store(sent.clone()).await, 0);

    let (code_, messages) = client.receive(receive("g", "orders", 1_000)).await;
    assert_eq!((code_, messages.len()), (OK, 1));
    let got = &messages[0];
    let (system, sent_system) =
        (got.system_properties.clone().expect("set"), sent.system_properties.expect("set"));
    assert_eq!(
        (&got.body, &got.user_properties, &got.topic),
        (&sent.body, &sent.user_properties, &sent.topic)
    );
    assert_eq!((&system.tag, &system.keys), (&sent_system.tag, &sent_system.keys));
    assert_eq!(system.message_id, sent_system.message_id);
    let digest = system.body_digest.expect("a digest");
    assert_eq!(digest.checksum, "5D41402ABC4B2A76B9719D911017C592");
    assert_eq!(digest.r#type, v2::DigestType::Md5 as i32);
    assert_eq!((system.body_encoding, system.message_type), (1, 1));
    assert_eq!((system.delivery_attempt, system.queue_offset), (Some(1), Some(0)));
    assert!(system.store_timestamp.is_some() && system.store_host.starts_with("127.0.0.1:"));
    assert_eq!(system.invisible_duration, Some(prost_types::Duration { seconds: 10, nanos: 0 }));

    // In flight: others of the group get nothing, and the poll really waits.
    let began = Instant::now();
    let (code_, messages) = client.receive(receive("g", "orders", 700)).await;
    assert_eq!((code_, messages.len()), (40_401, 0));
    let waited = began.elapsed();
    assert!((Duration::from_millis(600)..Duration::from_millis(1_600)).contains(&waited), "{waited:?}");

    assert_eq!(code(&client.ack("g", got).await.status), OK);
    assert_eq!(code(&client.ack("g", got).await.status), OK, "a second ack of the same delivery is OK");
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invisible_times_end_and_change() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = dev(folder.path());
    let brokers = start(std::slice::from_ref(&config)).await;
    let client = Client::of(&config);
    client.store(message("t", "x")).await;
    let (_, first) = client.receive(receive("g", "t", 1_000)).await;
    assert_eq!(attempt(&first[0]), 1);

    // A change gives a new handle, ends the old one, and is no attempt.
    let changed = client.change("g", &first[0], &handle(&first[0]), 30).await;
    assert_eq!(code(&changed.status), OK);
    assert!(!changed.receipt_handle.is_empty() && changed.receipt_handle != handle(&first[0]));
    assert_eq!(code(&client.ack("g", &first[0]).await.status), 40_013, "the replaced handle settles nothing");
    assert_eq!(code(&client.change("g", &first[0], &handle(&first[0]), 30).await.status), 40_013);

    // Zero means visible at once; a waiting receive is woken.
    let mut waiting = receive("g", "t", 2_500);
    waiting.batch_size = 0;
    let waiting = {
        let client = client.clone();
        async move { client.receive(waiting).await }
    };
    let change = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        (client.change("g", &first[0], &changed.receipt_handle, 0).await, began)
    };
    let ((code_, second), (again, changed_at)) = tokio::join!(waiting, change);
    assert_eq!((code(&again.status), code_, second.len()), (OK, OK, 1));
    assert!(changed_at.elapsed() < Duration::from_millis(1_500), "woken after {:?}", changed_at.elapsed());
    assert_eq!(attempt(&second[0]), 2);

    // Not settled: again when the invisible time is over, not before.
    let delivered = Instant::now();
    let mut patient = client.clone();
    patient.timeout = Duration::from_secs(18);
    let (code_, third) = patient.receive(receive("g", "t", 15_000)).await;
    assert_eq!((code_, attempt(&third[0])), (OK, 3));
    let after = delivered.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_millis(11_500)).contains(&after), "{after:?}");
    assert_eq!(code(&client.ack("g", &second[0]).await.status), 40_013, "a stale ack settles nothing");
    assert_eq!(code(&client.ack("g", &third[0]).await.status), OK);
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_filter_and_batches_are_bounded() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = dev(folder.path());
    let brokers = start(std::slice::from_ref(&config)).await;
    let client = Client::of(&config);
    for tag in ["a", "b", "c", "a"].iter().cycle().take(40) {
        let mut tagged = message("t", *tag);
        tagged.system_properties.get_or_insert_default().tag = Some((*tag).to_owned());
        client.store(tagged).await;
    }
    client.store(message("t", "untagged")).await;

    let mut ask = receive("g", "t", 300);
    ask.filter_expression =
        Some(v2::FilterExpression { r#type: v2::FilterType::Tag as i32, expression: "a || b".into() });
    let mut bodies = Vec::new();
    loop {
        let (code_, messages) = client.receive(ask.clone()).await;
        if code_ == 40_401 {
            break;
        }
        assert!(!messages.is_empty() && messages.len() <= 32);
        for got in messages {
            assert_eq!(code(&client.ack("g", &got).await.status), OK);
            bodies.push(got.body);
        }
    }
    bodies.sort();
    let expected: Vec<_> = std::iter::repeat_n("a", 20).chain(std::iter::repeat_n("b", 10)).collect();
    assert_eq!(bodies, expected);

    // Skipped for this group, there for another one.
    let mut one = receive("other", "t", 300);
    one.batch_size = 1;
    assert_eq!(client.receive(one.clone()).await.1.len(), 1);
    one.batch_size = i32::MAX;
    let rest = client.receive(one.clone()).await.1.len();
    assert!((1..=32).contains(&rest), "{rest}");
    one.batch_size = -1;
    assert_eq!(client.receive(one.clone()).await.0, 40_000);
    for broker in brokers {
        broker.stop().await;
    }
}
