//! Bad input gets its code and a sentence, and changes nothing.

use std::time::Duration;

use crate::support::{
    Client, OK, RawConnection, cluster, code, handle, message, put_group, put_topic, receive, resource, start,
};
use mq_protocol::v2;
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_runtime::process::StartFailure;

type Change = fn(&mut v2::Message);

fn system(message: &mut v2::Message) -> &mut v2::SystemProperties {
    message.system_properties.get_or_insert_default()
}

const SENDS: &[(&str, i32, Change)] = &[
    ("unknown topic", 40_402, |m| m.topic = resource("nowhere")),
    ("no topic", 40_002, |m| m.topic = None),
    ("topic with a path", 40_002, |m| m.topic = resource("../../x")),
    ("topic with a blank", 40_002, |m| m.topic = resource("a b")),
    ("topic with a dot", 40_002, |m| m.topic = resource("a.b")),
    ("topic with an emoji", 40_002, |m| m.topic = resource("a😀")),
    ("topic of 128 characters", 40_002, |m| m.topic = resource(&"t".repeat(128))),
    ("internal topic", 40_002, |m| m.topic = resource("SCHEDULE_TOPIC_XXXX")),
    ("dead letter topic", 40_002, |m| m.topic = resource("%DLQ%g")),
    ("empty body", 41_302, |m| m.body = "".into()),
    ("body of 4 MiB + 1", 41_301, |m| m.body = vec![1; (4 << 20) + 1].into()),
    ("129 properties", 43_101, |m| {
        m.user_properties = (0..129).map(|n| (format!("k{n}"), "v".into())).collect()
    }),
    ("17 KiB of properties", 43_101, |m| m.user_properties = [("k".into(), "v".repeat(17 << 10))].into()),
    ("reserved property", 40_007, |m| m.user_properties = [("KEYS".into(), "v".into())].into()),
    ("control character", 40_007, |m| m.user_properties = [("k".into(), "a\nb".into())].into()),
    ("separator", 40_007, |m| m.user_properties = [("k".into(), "a\u{1}b".into())].into()),
    ("blank message id", 40_009, |m| system(m).message_id = " ".into()),
    ("tag with a bar", 40_004, |m| system(m).tag = Some("a|b".into())),
    ("key with a line feed", 40_005, |m| system(m).keys = vec!["a\n".into()]),
    ("message group with a control character", 40_006, |m| system(m).message_group = Some("\u{7}".into())),
    ("FIFO to a NORMAL topic", 40_014, |m| system(m).message_group = Some("g".into())),
    ("DELAY to a NORMAL topic", 40_014, |m| {
        system(m).delivery_timestamp = Some(prost_types::Timestamp::default())
    }),
    ("NORMAL to a FIFO topic", 40_014, |m| m.topic = resource("fifo")),
    ("FIFO to a FIFO topic", 50_100, |m| {
        m.topic = resource("fifo");
        system(m).message_group = Some("g".into());
    }),
    ("topic that is read only", 40_300, |m| m.topic = resource("readonly")),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_send_has_its_code_and_stores_nothing() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    put_topic(&configs[0], "fifo", v2::MessageType::Fifo).await;
    let readonly = mq_protocol::cluster::PutTopicRequest {
        name: "readonly".into(),
        permission: Some(4),
        ..Default::default()
    };
    let made = crate::support::admin(&configs[0]).put_topic(readonly).await.expect("answered").into_inner();
    assert_eq!(made.code, OK, "{}", made.message);
    let client = Client::of(&configs[0]);
    for (what, expected, change) in SENDS {
        let mut bad = message("t", "x");
        change(&mut bad);
        let answer = client.send(bad).await;
        assert_eq!(code(&answer.status), *expected, "{what}: {:?}", answer.status);
        assert!(!answer.status.expect("set").message.is_empty(), "{what}");
    }
    let two_topics = vec![message("t", "x"), message("fifo", "x")];
    assert_eq!(code(&client.send_all(two_topics).await.into_inner().status), 40_016);
    assert_eq!(code(&client.send_all(vec![]).await.into_inner().status), 40_016);

    // The first Rust client does not know 41302 and dies of it.
    let old_rust = client.clone().with("x-mq-language", "RUST").with("x-mq-client-version", "5.0.0");
    assert_eq!(code(&old_rust.send(message("t", "")).await.status), 40_000);

    // Whose time is over is refused; who has no name is refused; who writes nonsense is refused.
    let late = client.clone().with("grpc-timeout", "0n");
    let mut raw = MessagingServiceClient::new(RawConnection::open(&configs[0].client_listen).await);
    let request = late.request(v2::SendMessageRequest { messages: vec![message("t", "x")] });
    let answer = raw.send_message(request).await.expect("answered").into_inner();
    assert_eq!(code(&answer.status), 40_000, "{:?}", answer.status);
    let odd = client.clone().with("x-mq-producer", "0,1,2,3");
    assert_eq!(code(&odd.send(message("t", "x")).await.status), 40_000);
    let far = client.clone().with("x-mq-producer", "9,0,1,1025");
    assert_eq!(code(&far.send(message("t", "x")).await.status), 42_900);
    let mut nameless = client.clone();
    nameless.id = String::new();
    assert_eq!(code(&nameless.send(message("t", "x")).await.status), 40_017);
    assert_eq!(code(&nameless.route("t").await.status), 40_017);

    // Exactly the limits, with the largest properties; and nothing else was stored by all the calls above.
    let mut largest = message("t", vec![7; 4 << 20]);
    largest.user_properties = [("k".into(), "v".repeat((16 << 10) - 1))].into();
    for queue in 0..4 {
        let offset = client.store(largest.clone()).await;
        assert_eq!(offset, 0, "the {queue}th good message is the first of its queue");
        system(&mut largest).message_id.push('1');
    }
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_receives_acks_and_changes_have_their_codes() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    put_group(&configs[0], "g").await;
    let client = Client::of(&configs[0]);
    client.store(message("t", "x")).await;

    type Change = fn(&mut v2::ReceiveMessageRequest);
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let table: &[(&str, i32, Change)] = &[
        ("unknown group", 40_403, |r| r.group = resource("nobody")),
        ("no group", 40_003, |r| r.group = None),
        ("group of 121 characters", 40_003, |r| r.group = resource(&"g".repeat(121))),
        ("reserved group", 40_003, |r| r.group = resource("TOOLS_CONSUMER")),
        ("unknown topic", 40_402, |r| {
            r.message_queue = Some(v2::MessageQueue { topic: resource("u"), ..Default::default() })
        }),
        ("no queue", 40_002, |r| r.message_queue = None),
        ("another group's retry topic", 40_002, |r| {
            r.message_queue = Some(v2::MessageQueue { topic: resource("%RETRY%h"), ..Default::default() });
        }),
        ("negative batch", 40_000, |r| r.batch_size = -1),
        ("SQL", 50_100, |r| {
            r.filter_expression = Some(v2::FilterExpression { r#type: 2, expression: "a = 1".into() });
        }),
        ("tags that name nothing", 40_010, |r| {
            r.filter_expression = Some(v2::FilterExpression { r#type: 1, expression: "||".into() });
        }),
        ("negative poll", 40_018, |r| {
            r.long_polling_timeout = Some(prost_types::Duration { seconds: -1, nanos: 0 })
        }),
    ];
    for (what, expected, change) in table {
        let mut bad = receive("g", "t", 300);
        change(&mut bad);
        let (got, messages) = client.receive(bad).await;
        assert_eq!((got, messages.len()), (*expected, 0), "{what}");
    }
    for (what, invisible) in
        [("5 s", seconds(5)), ("13 h", seconds(46_800)), ("0", seconds(0)), ("-1 s", seconds(-1))]
    {
        let mut bad = receive("g", "t", 300);
        bad.invisible_duration = invisible;
        assert_eq!(client.receive(bad).await.0, 40_011, "{what}");
    }

    let (_, got) = client.receive(receive("g", "t", 1_000)).await;
    let mut foreign = got[0].clone();
    for text in ["", "x", "0 1 2 3 broker-a 4 5 6", &"A".repeat(600)] {
        foreign.system_properties.get_or_insert_default().receipt_handle = Some(text.to_owned());
        let answer = client.ack("g", &foreign).await;
        assert_eq!((code(&answer.status), code(&answer.entries[0].status)), (40_013, 40_013), "{text:?}");
    }
    let good = handle(&got[0]);
    assert_eq!(code(&client.change("g", &got[0], &good, 46_800).await.status), 40_011);
    assert_eq!(code(&client.change("g", &got[0], &good, -1).await.status), 40_011);
    assert_eq!(code(&client.change("g", &got[0], "x", 30).await.status), 40_013);

    // One good and one bad: both have their own code, the top says so.
    let entry = |handle: &str| v2::AckMessageEntry { receipt_handle: handle.into(), ..Default::default() };
    let request = v2::AckMessageRequest {
        group: resource("g"),
        topic: resource("t"),
        entries: vec![entry(&good), entry("x")],
    };
    let answer =
        client.stub.clone().ack_message(client.request(request)).await.expect("answered").into_inner();
    let codes: Vec<_> = answer.entries.iter().map(|entry| code(&entry.status)).collect();
    assert_eq!((code(&answer.status), codes), (30_000, vec![OK, 40_013]));
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_not_offered_say_so_and_the_connection_stays() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    let client = Client::of(&configs[0]);
    let mut stub = client.stub.clone();
    let assignment = stub.query_assignment(client.request(v2::QueryAssignmentRequest::default())).await;
    assert_eq!(code(&assignment.expect("answered").into_inner().status), 50_100);
    let recall = stub.recall_message(client.request(v2::RecallMessageRequest::default())).await;
    assert_eq!(code(&recall.expect("answered").into_inner().status), 50_100);
    let pull = stub.pull_message(client.request(v2::PullMessageRequest::default())).await.expect("answered");
    let first = pull.into_inner().message().await.expect("a stream").expect("a status");
    let Some(v2::pull_message_response::Content::Status(status)) = first.content else { panic!("{first:?}") };
    assert_eq!(status.code, 50_100);

    // Soft state is never needed.
    let heartbeat = stub.heartbeat(client.request(v2::HeartbeatRequest::default())).await;
    assert_eq!(code(&heartbeat.expect("answered").into_inner().status), OK);
    let goodbye =
        stub.notify_client_termination(client.request(v2::NotifyClientTerminationRequest::default())).await;
    assert_eq!(code(&goodbye.expect("answered").into_inner().status), OK);
    client.store(message("t", "x")).await;
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_bytes_close_their_connection_only() {
    let _turn = crate::support::turn().await;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    for port in [&configs[0].client_listen, &configs[0].api_listen] {
        for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0xFF; 64], &[0, 0, 0, 4, 1, 2, 3, 4]] {
            let mut stream = tokio::net::TcpStream::connect(port).await.expect("listens");
            stream.write_all(bytes).await.expect("written");
            let mut answer = Vec::new();
            let closed = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
            // Three bytes of noise may still be the begin of something: those wait for their end.
            assert!(closed.is_ok() || bytes.len() < 24, "{bytes:?} is still open");
        }
    }
    Client::of(&configs[0]).store(message("t", "x")).await;
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_in_use_and_locked_folders_are_named() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    let again = || {
        mq_broker::Broker::start(
            configs[0].clone(),
            crate::support::deps(),
            mq_runtime::shutdown::Shutdown::new(),
        )
    };
    let error = again().await.expect_err("the folder is locked");
    assert!(error.to_string().contains(&configs[0].data.display().to_string()), "{error}");
    assert_eq!(error.exit().code(), 2);

    let mut elsewhere = configs[0].clone();
    elsewhere.data = folder.path().join("elsewhere");
    let start =
        mq_broker::Broker::start(elsewhere, crate::support::deps(), mq_runtime::shutdown::Shutdown::new());
    let error = start.await.expect_err("the port is taken").to_string();
    assert!(error.contains("client_listen") && error.contains(&configs[0].client_listen), "{error}");
    for broker in brokers {
        broker.stop().await;
    }

    // The same folder for another group, another cluster, another node: identity.
    for change in [(|c| c.cluster = "other".into()) as fn(&mut mq_broker::Config), |c| {
        c.node = "b9".into();
        c.broker.group[0].members[0].node = "b9".into();
    }] {
        let mut other = configs[0].clone();
        change(&mut other);
        let shutdown = mq_runtime::shutdown::Shutdown::new();
        let (exit, text) = match mq_broker::Broker::start(other, crate::support::deps(), shutdown.clone())
            .await
        {
            Err(error) => (error.exit(), error.to_string()),
            Ok(broker) => {
                let stops = tokio::time::timeout(Duration::from_secs(10), shutdown.token().cancelled()).await;
                stops.expect("it stops by itself");
                broker.stop().await;
                (shutdown.exit(), shutdown.failure().map(|failure| failure.reason).unwrap_or_default())
            }
        };
        assert_eq!(exit.code(), 72, "{text}");
    }
}
