//! Queues read by position: from the leader behind a barrier, and as each member has them.

use std::collections::BTreeMap;

use crate::support::{Client, OK, admin, cluster, leader, message, put_topic, start, until};
use mq_broker::config::Config;
use mq_protocol::cluster::{QueueOffsetsRequest, ReadQueueRequest, ReadQueueResponse};
use mq_protocol::message::Record;
use mq_protocol::v2;

fn of(topic: &str, queue: u32) -> ReadQueueRequest {
    ReadQueueRequest { topic: topic.into(), queue, ..Default::default() }
}

async fn read(config: &Config, request: ReadQueueRequest) -> ReadQueueResponse {
    admin(config).read_queue(request).await.expect("answered").into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_shows_the_same_records_at_the_same_positions() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 3);
    let brokers = start(&configs).await;
    let led = leader(&brokers).expect("there is one");
    let follower = (led + 1) % 3;
    put_topic(&configs[led], "t", v2::MessageType::Normal).await;
    let client = Client::of(&configs[led]);
    let mut sent = BTreeMap::new();
    for number in 0..40 {
        let mut message = message("t", format!("body {number}"));
        message.user_properties = [("number".to_owned(), number.to_string())].into();
        sent.insert(format!("body {number}"), message.system_properties.clone().expect("set").message_id);
        client.store(message).await;
    }

    // Asked at a follower, answered by the leader: everything that was confirmed is there.
    let mut found = BTreeMap::new();
    for queue in 0..4 {
        let answer = read(&configs[follower], of("t", queue)).await;
        assert_eq!(answer.result.as_ref().map(|result| result.code), Some(OK), "{:?}", answer.result);
        assert_eq!((answer.min_offset, answer.max_offset), (0, answer.records.len() as u64));
        assert_eq!(answer.node_id, led as u64 + 1);
        for (place, record) in answer.records.iter().enumerate() {
            assert_eq!(record.offset, place as u64, "no holes");
            let body = String::from_utf8_lossy(&record.body).into_owned();
            assert_eq!(body, format!("body {}", record.properties["number"]));
            found.insert(body, record.message_id.clone());
        }
    }
    assert_eq!(found, sent, "all of them, each with its own id");

    for queue in 0..4 {
        let raw = ReadQueueRequest { raw: true, local: true, ..of("t", queue) };
        let leaders = read(&configs[led], raw.clone()).await;
        for (place, config) in configs.iter().enumerate() {
            until("the member has applied it", async || {
                read(config, raw.clone()).await.applied_index >= leaders.applied_index
            })
            .await;
            let own = read(config, raw.clone()).await;
            assert_eq!(own.node_id, place as u64 + 1, "it answers itself");
            assert_eq!(own.records, leaders.records, "the same bytes at the same places");
        }
        for record in &leaders.records {
            let parsed = Record::parse(&record.record).expect("a record");
            assert_eq!((parsed.queue_offset, parsed.physical_offset), (record.offset, record.log_offset));
            assert_eq!((parsed.store_timestamp, parsed.topic), (record.store_time, "t"));
        }
    }
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_and_names_that_are_not_there_are_told_apart() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configs = cluster(folder.path(), 1);
    let brokers = start(&configs).await;
    put_topic(&configs[0], "t", v2::MessageType::Normal).await;
    for number in 0..12 {
        Client::of(&configs[0]).store(message("t", vec![number; 1 << 20])).await;
    }
    let at = |from, max| ReadQueueRequest { from, max, ..of("t", 0) };
    let held = read(&configs[0], at(0, 0)).await.max_offset;
    assert!(held >= 3, "queues take turns: {held}");
    let one = read(&configs[0], at(held - 1, 5)).await;
    assert_eq!(one.records.iter().map(|record| record.offset).collect::<Vec<_>>(), [held - 1]);
    let behind = read(&configs[0], at(held, 5)).await;
    assert_eq!((behind.records.len(), behind.max_offset), (0, held), "nothing there yet is no error");
    assert_eq!(read(&configs[0], at(u64::MAX, 5)).await.records.len(), 0);

    let code = |answer: ReadQueueResponse| answer.result.map(|result| result.code);
    assert_eq!(code(read(&configs[0], of("t", 4)).await), Some(40_000));
    assert_eq!(code(read(&configs[0], of("no", 0)).await), Some(40_402));
    let local = ReadQueueRequest { local: true, ..of("no", 0) };
    assert_eq!(code(read(&configs[0], local).await), Some(40_402));

    let request = QueueOffsetsRequest { topic: "t".into(), ..Default::default() };
    let offsets = admin(&configs[0]).queue_offsets(request).await.expect("answered").into_inner();
    let queues = offsets.topic.expect("known").queue_info;
    assert_eq!(queues.iter().map(|queue| queue.max_offset).sum::<u64>(), 12);
    assert_eq!((queues.len(), offsets.last_store_times.len()), (4, 4));
    assert!(offsets.last_store_times.iter().all(|time| *time > 1_000_000_000_000), "each holds a message");
    for broker in brokers {
        broker.stop().await;
    }
}
