//! The stream of settings: complete answers, pushed again, never needed.

use std::time::Duration;

use crate::support::{Client, OK, cluster, code, put_group, resource, start};
use mq_protocol::v2;
use mq_protocol::v2::settings::PubSub;
use mq_protocol::v2::telemetry_command::Command;
use tokio_stream::wrappers::ReceiverStream;

fn command(settings: v2::Settings) -> v2::TelemetryCommand {
    v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) }
}

fn settings_of(command: v2::TelemetryCommand) -> v2::Settings {
    assert_eq!(code(&command.status), OK);
    match command.command {
        Some(Command::Settings(settings)) => settings,
        other => panic!("settings expected, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_completed_echoed_and_pushed_again() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    put_group(&configs[0], "g").await;
    let client = Client::of(&configs[0]).with("x-mq-language", "PYTHON");

    let (out, stream) = tokio::sync::mpsc::channel(8);
    let mut request = client.request(ReceiverStream::new(stream));
    request.metadata_mut().remove("grpc-timeout");
    let mut answers =
        client.stub.clone().telemetry(request).await.expect("headers come at once").into_inner();

    let sent = v2::Settings {
        client_type: Some(v2::ClientType::SimpleConsumer as i32),
        user_agent: Some(v2::Ua { language: 6, version: "5.1.2".into(), ..Default::default() }),
        pub_sub: Some(PubSub::Subscription(v2::Subscription { group: resource("g"), ..Default::default() })),
        ..v2::Settings::default()
    };
    out.send(command(sent.clone())).await.expect("open");
    let got = settings_of(answers.message().await.expect("a stream").expect("an answer"));
    assert_eq!((&got.client_type, &got.user_agent), (&sent.client_type, &sent.user_agent));
    assert!(got.request_timeout.is_some() && got.metric.as_ref().is_some_and(|metric| !metric.on));
    let endpoints = got.metric.as_ref().and_then(|metric| metric.endpoints.as_ref()).expect("endpoints");
    assert!(endpoints.scheme != 0 && endpoints.addresses.len() == 1);
    let policy = got.backoff_policy.as_ref().expect("a policy");
    assert_eq!(policy.max_attempts, 17);
    assert!(matches!(policy.strategy, Some(v2::retry_policy::Strategy::CustomizedBackoff(_))));
    let Some(PubSub::Subscription(subscription)) = &got.pub_sub else { panic!("a subscription") };
    assert_eq!(subscription.group, resource("g"));
    assert_eq!((subscription.fifo, subscription.receive_batch_size), (Some(false), Some(32)));
    assert_eq!(subscription.long_polling_timeout, Some(prost_types::Duration { seconds: 20, nanos: 0 }));

    // The same again after 1 s and after 5 s.
    let began = tokio::time::Instant::now();
    for (at, within) in [(1, 1_800), (5, 5_800)] {
        let again = tokio::time::timeout(Duration::from_millis(within), answers.message()).await;
        assert_eq!(settings_of(again.expect("pushed").expect("a stream").expect("settings")), got);
        assert!(began.elapsed() > Duration::from_millis(at * 1_000 - 300));
    }
    for _ in 0..10 {
        out.send(command(sent.clone())).await.expect("open");
        settings_of(answers.message().await.expect("a stream").expect("an answer"));
    }
    drop(out);
    assert!(answers.message().await.expect("ends in good order").is_none());

    // A producer without topics.
    let producer = v2::Settings {
        pub_sub: Some(PubSub::Publishing(v2::Publishing::default())),
        ..v2::Settings::default()
    };
    let stream = tokio_stream::iter([command(producer)]);
    let mut answers = client.stub.clone().telemetry(client.request(stream)).await.expect("open").into_inner();
    let got = settings_of(answers.message().await.expect("a stream").expect("an answer"));
    let Some(PubSub::Publishing(publishing)) = got.pub_sub else { panic!("publishing") };
    assert!(publishing.max_body_size == 4 << 20 && publishing.validate_message_type);
    let strategy = got.backoff_policy.and_then(|policy| policy.strategy);
    assert!(matches!(strategy, Some(v2::retry_policy::Strategy::ExponentialBackoff(_))));

    // Nonsense ends the stream, the server stays.
    let stream = tokio_stream::iter([command(v2::Settings::default())]);
    let mut answers = client.stub.clone().telemetry(client.request(stream)).await.expect("open").into_inner();
    let error = answers.message().await.expect_err("refused");
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    let mut nameless = client.clone();
    nameless.id = String::new();
    let stream = tokio_stream::iter([command(v2::Settings::default())]);
    let mut answers =
        nameless.stub.clone().telemetry(nameless.request(stream)).await.expect("open").into_inner();
    assert_eq!(code(&answers.message().await.expect("a stream").expect("a status").status), 40_017);
    for broker in brokers {
        broker.stop().await;
    }
}
