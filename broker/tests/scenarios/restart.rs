//! After every kind of call the node is restarted, once in good order and once as if it was killed: queues and state
//! are the same, and what the clients hold is still good.

use std::collections::BTreeMap;

use crate::support::{
    Client, OK, attempt, code, dev, digests, handle, message, put_group, put_topic, receive, resource, start,
};
use mq_broker::{Broker, Config};
use mq_protocol::cluster::DigestPart;
use mq_protocol::v2;

/// Everything but the log, which gets a blank entry from each new term.
async fn state(config: &Config) -> BTreeMap<String, DigestPart> {
    let mut parts = digests(std::slice::from_ref(config)).await.remove(0);
    assert!(parts.remove("log").is_some() && parts.contains_key("state/in_flight"), "{:?}", parts.keys());
    parts
}

async fn restarted(broker: &mut Vec<Broker>, config: &Config, after: &str) {
    let before = state(config).await;
    broker.remove(0).kill().await;
    *broker = start(std::slice::from_ref(config)).await;
    assert_eq!(state(config).await, before, "killed after {after}");
    broker.remove(0).stop().await;
    *broker = start(std::slice::from_ref(config)).await;
    assert_eq!(state(config).await, before, "stopped after {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_after_every_kind_of_call_changes_nothing() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = dev(folder.path());
    let mut broker = start(std::slice::from_ref(&config)).await;
    let client = Client::of(&config);

    put_topic(&config, "t", v2::MessageType::Normal).await;
    restarted(&mut broker, &config, "a topic").await;
    put_group(&config, "g").await;
    restarted(&mut broker, &config, "a subscription group").await;

    let first = message("t", "one");
    let place = client.store(first.clone()).await;
    restarted(&mut broker, &config, "a send").await;
    // The client's own retry after the restart: the first one's place, and nothing is added.
    let before = state(&config).await;
    assert_eq!(client.store(first).await, place);
    let mut after = state(&config).await;
    assert_eq!(after.remove("state/repeats"), before.get("state/repeats").cloned(), "a repeat adds nothing");

    let native = client.clone().with("x-mq-producer", "77,0,1,1");
    let sent = message("t", "native");
    let place = native.store(sent.clone()).await;
    restarted(&mut broker, &config, "a numbered send").await;
    assert_eq!(native.store(sent).await, place);
    let answer = client.send_all(vec![message("t", "b1"), message("t", "b2")]).await.into_inner();
    assert_eq!((code(&answer.status), answer.entries.len()), (OK, 2));
    restarted(&mut broker, &config, "a batch").await;

    let (_, got) = client.receive(receive("g", "t", 500)).await;
    assert!(!got.is_empty());
    restarted(&mut broker, &config, "a receive").await;
    let changed = client.change("g", &got[0], &handle(&got[0]), 3_600).await;
    assert_eq!(code(&changed.status), OK);
    restarted(&mut broker, &config, "a change of the invisible time").await;
    assert_eq!(code(&client.ack("g", &got[0]).await.status), 40_013, "replaced before the restart");
    let mut renamed = got[0].clone();
    renamed.system_properties.get_or_insert_default().receipt_handle = Some(changed.receipt_handle);
    assert_eq!(code(&client.ack("g", &renamed).await.status), OK);
    restarted(&mut broker, &config, "an ack").await;
    assert_eq!(code(&client.ack("g", &renamed).await.status), OK, "again");

    // A client with automatically renewed deliveries says goodbye: they come again within 5 s.
    client.store(message("t", "renewed")).await;
    let mut renewing = receive("push", "t", 500);
    (renewing.auto_renew, renewing.invisible_duration) = (true, None);
    let (_, taken) = client.receive(renewing).await;
    assert!(!taken.is_empty());
    let goodbye = v2::NotifyClientTerminationRequest { group: resource("push") };
    let answer =
        client.stub.clone().notify_client_termination(client.request(goodbye)).await.expect("answered");
    assert_eq!(code(&answer.into_inner().status), OK);
    restarted(&mut broker, &config, "a goodbye").await;
    let mut patient = client.clone();
    patient.timeout = std::time::Duration::from_secs(8);
    let (code_, again) = patient.receive(receive("push", "t", 5_000)).await;
    assert_eq!((code_, attempt(&again[0])), (OK, 2));
    broker.remove(0).stop().await;
}
