//! What a node says that does not lead, and what a leader says without a majority.

use std::time::{Duration, Instant};

use crate::support::{Client, OK, cluster, code, leader, message, put_topic, start, until};
use mq_protocol::v2;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_to_leaders_itself_is_told_where_the_leader_is() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 3);
    let brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    let first = leader(&brokers).expect("there is one");
    let follower = (first + 1) % 3;

    let direct = Client::of(&configs[follower]).with("x-mq-no-forward", "1");
    let refused = direct.send_all(vec![message("t", "x")]).await;
    assert_eq!(code(&refused.get_ref().status), 50_002);
    let hint = refused.metadata().get("x-mq-leader").and_then(|value| value.to_str().ok()).expect("a hint");
    let parts: Vec<_> = hint.split(',').collect();
    assert_eq!(
        (parts.len(), parts[0], parts[2]),
        (3, (first + 1).to_string().as_str(), configs[first].client_listen.as_str())
    );
    let term: u64 = parts[1].parse().expect("a term");
    assert!(term >= 1);

    // Nothing was stored by the refused call: the first message of the chosen queue has offset 0.
    let answer = Client::of(&configs[first]).with("x-mq-no-forward", "1").send(message("t", "y")).await;
    assert_eq!((code(&answer.status), answer.entries[0].offset), (OK, 0));
    // A forwarded call is not forwarded again; only the API port believes that a call is one.
    let forwarded = |address: &str| Client::new(address).with("x-mq-forwarded", "b9");
    let answer = forwarded(&configs[follower].api_listen).send(message("t", "z")).await;
    assert_eq!(code(&answer.status), 50_002);
    let answer = forwarded(&configs[follower].client_listen).send(message("t", "z")).await;
    assert_eq!(code(&answer.status), OK);
    // Receives and acks are told the same way.
    let (code_, _) = direct.receive(crate::support::receive("g", "t", 5_000)).await;
    assert_eq!(code_, 50_002);
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_a_send_fails_retryably_in_time_and_is_never_confirmed() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 3);
    let mut brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    let first = leader(&brokers).expect("there is one");
    let left = brokers.remove(first);
    for other in brokers {
        other.kill().await;
    }
    // At once, when the leader has not noticed yet, and later, when it has.
    let client = Client::of(&configs[first]);
    for round in 0..6 {
        let began = Instant::now();
        let answer = client.send(message("t", format!("{round}"))).await;
        let took = began.elapsed();
        assert!([50_002, 50_400].contains(&code(&answer.status)), "round {round}: {:?}", answer.status);
        assert!(took < Duration::from_millis(2_300), "round {round} took {took:?}");
    }
    assert_eq!(
        code(&client.send(message("t", "z")).await.status),
        50_002,
        "known by now: nothing is proposed"
    );
    // Routes go on.
    assert_eq!(code(&client.route("t").await.status), OK);
    left.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_alone_waits_and_says_for_whom() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 3);
    let alone = mq_broker::Broker::start(
        configs[0].clone(),
        crate::support::deps(),
        mq_runtime::shutdown::Shutdown::new(),
    )
    .await
    .expect("starts");
    until("it says for whom it waits", async || {
        let readiness = alone.readiness()();
        let group = &readiness.groups[0];
        !readiness.ready && group.waiting_for.contains("b2") && group.waiting_for.contains("b3")
    })
    .await;
    let answer = Client::of(&configs[0]).send(message("t", "x")).await;
    assert_eq!(code(&answer.status), 50_002);
    alone.stop().await;
}
