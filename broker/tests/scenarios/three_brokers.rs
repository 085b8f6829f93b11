//! Three brokers without name servers: every node serves every call, a killed leader costs nothing but a moment.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{
    Client, OK, cluster, code, digests, join, leader, message, put_group, put_topic, receive, start, until,
};
use mq_protocol::v2;

#[tokio::test(flavor = "multi_thread")]
async fn acked_messages_survive_the_leader_and_all_nodes_serve() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 3);
    let mut brokers = start(&configs).await;
    let first = leader(&brokers).expect("there is one");
    let followers: Vec<_> = (0..3).filter(|place| *place != first).collect();

    // A topic made at a follower is known at every node at once.
    put_topic(&configs[followers[0]], "t", v2::MessageType::Normal).await;
    put_group(&configs[followers[1]], "g").await;
    for config in &configs {
        let route = Client::of(config).route("t").await;
        assert_eq!((code(&route.status), route.message_queues.len()), (OK, 4), "at {}", config.node);
        let address = |queue: &v2::MessageQueue| {
            let endpoints = queue.broker.clone().and_then(|broker| broker.endpoints).expect("endpoints");
            format!("{}:{}", endpoints.addresses[0].host, endpoints.addresses[0].port)
        };
        assert!(route.message_queues.iter().all(|queue| address(queue) == configs[first].client_listen));
    }

    let survivor = Client::of(&configs[followers[0]]);
    let mut sent = BTreeSet::new();
    for number in 0..100 {
        survivor.store(message("t", format!("before {number}"))).await;
        sent.insert(format!("before {number}"));
    }

    // In flight when the leader dies: its handle stays good.
    let mut one = receive("g", "t", 1_000);
    one.batch_size = 1;
    let (code_, held) = Client::of(&configs[followers[1]]).receive(one).await;
    assert_eq!((code_, held.len()), (OK, 1));

    let killed = brokers.remove(first);
    tokio::join!(killed.kill(), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let began = Instant::now();
        for number in 0..100 {
            // As an unchanged client does: the same message again until it is confirmed.
            let again = message("t", format!("after {number}"));
            while code(&survivor.send(again.clone()).await.status) != OK {
                assert!(began.elapsed() < Duration::from_secs(15), "no confirmed send for 15 s");
            }
            sent.insert(format!("after {number}"));
        }
    });
    let answer = survivor.ack("g", &held[0]).await;
    assert_eq!(code(&answer.status), OK, "{:?}", answer.status);
    let settled = String::from_utf8_lossy(&held[0].body).into_owned();

    let mut got = BTreeSet::from([settled]);
    let mut duplicates = 0;
    while got.len() < sent.len() {
        let (code_, messages) = survivor.receive(receive("g", "t", 1_000)).await;
        assert_eq!(code_, OK, "{} of {} received", got.len(), sent.len());
        for message in messages {
            assert_eq!(code(&survivor.ack("g", &message).await.status), OK);
            duplicates += u32::from(!got.insert(String::from_utf8_lossy(&message.body).into_owned()));
        }
    }
    assert_eq!(got, sent, "nothing lost, nothing invented");
    assert_eq!(duplicates, 0, "repeats of one client are stored once");
    assert_eq!(survivor.receive(receive("g", "t", 300)).await.0, 40_401);

    // The killed one comes back, catches up, and is equal.
    brokers.extend(join(&configs[first..=first]).await);
    until("all nodes know a leader", async || leader(&brokers).is_some()).await;
    let all = digests(&configs).await;
    assert!(all.iter().all(|digest| *digest == all[0]), "replicas are equal");
    for broker in brokers {
        broker.stop().await;
    }
}
