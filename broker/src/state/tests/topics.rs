//! Topics, subscription groups, and messages that find or miss them.

use mq_protocol::cluster::{
    DigestMarkCommand, FeatureLevelCommand, SubscriptionGroupCommand, TopicCommand, item_result::Code,
    subscription_group_command, topic_command::Action,
};
use mq_protocol::command;
use mq_protocol::message::Origin;
use mq_protocol::message::tag::tag_hash;
use mq_store::item::EncodedItem;
use mq_store::{LogOffset, QueueOffset, Unit};

use super::*;

#[test]
fn topic_keeps_its_id_and_gets_a_new_incarnation() {
    let mut bench = Bench::new();
    let first = bench.one(put_topic("a", None)).topic.expect("made");
    assert_eq!((first.id, first.incarnation, first.changed), (1, 1, true));
    assert_eq!(bench.one(put_topic("b", None)).topic.expect("made").id, 2);
    assert_eq!(bench.one(delete_topic("a")).code(), Code::Ok);
    assert_eq!(bench.one(delete_topic("a")).code(), Code::UnknownTopic);
    bench.restart();
    let again = bench.one(put_topic("a", None)).topic.expect("made again");
    assert_eq!((again.id, again.incarnation), (1, 2));
    let topic = bench.machine.catalog.read().topic("", "a").expect("there");
    assert_eq!((topic.queues, topic.permission, topic.message_type), (8, 6, 1), "defaults of a new topic");
    assert!(bench.effects.topics_changed);
    assert_eq!(bench.effects.removed, [(1, 1)]);
}

#[test]
fn change_touches_only_what_is_named_and_never_shrinks() {
    let mut bench = Bench::new();
    let command = TopicCommand {
        queues: Some(4),
        permission: Some(2),
        message_type: Some(2),
        ..topic_command("t", Action::Create)
    };
    assert_eq!(bench.one(item(command::TOPIC, &command)).code(), Code::Ok);
    assert_eq!(bench.one(item(command::TOPIC, &command)).code(), Code::Exists);
    let unchanged = bench.one(put_topic("t", Some(4))).topic.expect("there");
    assert!(!unchanged.changed);
    let shrunk = bench.one(put_topic("t", Some(3)));
    assert_eq!(shrunk.code(), Code::Invalid);
    assert!(shrunk.detail.contains("cannot shrink"), "{}", shrunk.detail);
    assert!(bench.one(put_topic("t", Some(6))).topic.expect("there").changed);
    let topic = bench.machine.catalog.read().topic("", "t").expect("there");
    assert_eq!((topic.queues, topic.permission, topic.message_type, topic.incarnation), (6, 2, 2, 1));
    assert_eq!(bench.machine.topics().next(queue_id(5)), Some(0), "the new queues are there");
}

#[test]
fn senseless_topics_are_invalid() {
    let mut bench = Bench::new();
    let long = "n".repeat(256);
    let bad = [
        topic_command("", Action::Create),
        topic_command(&long, Action::Create),
        topic_command("nul\0", Action::Create),
        topic_command("t", Action::Unspecified),
        TopicCommand { queues: Some(0), ..topic_command("t", Action::Create) },
        TopicCommand { queues: Some(1_025), ..topic_command("t", Action::Create) },
        TopicCommand { permission: Some(8), ..topic_command("t", Action::Create) },
        TopicCommand { message_type: Some(0), ..topic_command("t", Action::Create) },
    ];
    for command in bad {
        assert_eq!(bench.one(item(command::TOPIC, &command)).code(), Code::Invalid, "{command:?}");
    }
    assert!(dump(&*bench.state).is_empty(), "nothing was changed");
}

#[test]
fn group_keeps_its_id_and_its_settings() {
    let mut bench = Bench::new();
    let command = SubscriptionGroupCommand {
        ordered: Some(true),
        max_attempts: Some(3),
        retry_pauses_ms: vec![1, 2],
        consume_enabled: Some(false),
        ..group_command("g", subscription_group_command::Action::Create)
    };
    let made = bench.one(item(command::SUBSCRIPTION_GROUP, &command)).topic.expect("made");
    assert_eq!((made.id, made.incarnation), (1, 1));
    assert_eq!(bench.one(item(command::SUBSCRIPTION_GROUP, &command)).code(), Code::Exists);
    assert!(!bench.one(put_group("g")).topic.expect("there").changed, "nothing is named");
    bench.restart();
    let group = bench.machine.catalog.read().group("", "g").expect("there");
    assert_eq!((group.ordered, group.max_attempts, group.consume_enabled), (true, 3, false));
    assert_eq!(group.retry_pauses_ms, [1, 2]);
    assert_eq!(bench.one(delete_group("g")).code(), Code::Ok);
    assert_eq!(bench.one(delete_group("g")).code(), Code::UnknownGroup);
    let again = bench.one(put_group("g")).topic.expect("made again");
    assert_eq!((again.id, again.incarnation), (1, 2));
    let group = bench.machine.catalog.read().group("", "g").expect("there");
    assert_eq!((group.ordered, group.max_attempts), (false, 17), "settings of the earlier life are gone");
    let none = SubscriptionGroupCommand {
        max_attempts: Some(0),
        ..group_command("h", subscription_group_command::Action::Create)
    };
    assert_eq!(bench.one(item(command::SUBSCRIPTION_GROUP, &none)).code(), Code::Invalid);
}

#[test]
fn messages_get_dense_offsets_in_log_order() {
    let mut bench = Bench::with_topic_and_group();
    let items = [
        message(1, 1, 0, "TagA", Origin::Anonymous),
        message(1, 1, 1, "", Origin::Anonymous),
        message(1, 1, 0, "", Origin::Anonymous),
    ];
    let results = bench.frame(&items);
    let places: Vec<_> =
        results.iter().map(|result| result.message.map(|m| (m.queue, m.queue_offset))).collect();
    assert_eq!(places, [Some((0, 0)), Some((1, 0)), Some((0, 1))]);
    let head = bench.log.last().expect("applied").head;
    let first = results[0].message.expect("stored");
    assert_eq!(first.item_offset, head.offset.0 + 72 + 16, "body of the first item");
    assert_eq!((first.store_time, results[0].index), (head.store_time, head.index));
    let size = items[0].body().len() as u32 - 8;
    let unit = Unit { offset: LogOffset(first.item_offset), size, tag_hash: tag_hash(Some("TagA")) };
    assert_eq!(bench.effects.units[0], (queue_id(0), QueueOffset(0), unit));
    bench.restart();
    let next = bench.one(message(1, 1, 0, "", Origin::Anonymous)).message.expect("stored");
    assert_eq!(next.queue_offset, 2, "the next offset survives a restart");
}

#[test]
fn message_without_its_queue_is_refused_and_uses_no_offset() {
    let mut bench = Bench::with_topic_and_group();
    for (topic, incarnation, queue) in [(0, 1, 0), (2, 1, 0), (1, 2, 0), (1, 0, 0), (1, 1, 2)] {
        let result = bench.one(message(topic, incarnation, queue, "", Origin::Anonymous));
        assert_eq!(result.code(), Code::UnknownTopic, "{topic} {incarnation} {queue}");
    }
    let closed = TopicCommand { permission: Some(4), ..topic_command("t", Action::Upsert) };
    bench.one(item(command::TOPIC, &closed));
    assert_eq!(bench.one(message(1, 1, 0, "", Origin::Anonymous)).code(), Code::NotWritable);
    assert!(bench.effects.units.is_empty());
    assert_eq!(bench.machine.topics().next(queue_id(0)), Some(0));
}

#[test]
fn deleted_topic_takes_everything_with_it() {
    let mut bench = Bench::with_topic_and_group();
    bench.send(3, 0);
    bench.one(message(1, 1, 0, "", Origin::SendKey([7; 16])));
    assert_eq!(bench.one(item(command::DELIVER, &deliver(0, 2, &[0, 1], &[]))).code(), Code::Ok);
    bench.effects.units.clear();
    // In the same frame as the deletion: nobody may see it.
    let items = [message(1, 1, 0, "", Origin::SendKey([8; 16])), delete_topic("t"), put_topic("t", Some(1))];
    let results = bench.frame(&items);
    assert!(results.iter().all(|result| result.code() == Code::Ok), "{results:?}");
    assert!(bench.effects.units.is_empty(), "its units are dropped");
    assert_eq!(bench.machine.deliveries.lock().total(), 0);
    let left: Vec<usize> = dump(&*bench.state).into_iter().map(|(family, ..)| family).collect();
    assert_eq!(left, [0, 1, 2], "one topic, one group, one queue");
    assert_eq!(bench.one(message(1, 1, 0, "", Origin::Anonymous)).code(), Code::UnknownTopic);
    assert_eq!(bench.one(ack(&[(0, 6)])).code(), Code::UnknownTopic, "acks of the earlier life are refused");
    let key = Origin::SendKey([8; 16]);
    let new = bench.one(message(1, 2, 0, "", key)).message.expect("stored");
    assert_eq!((new.queue_offset, new.repeat), (0, false), "the new life begins at 0");
}

#[test]
fn unknown_kinds_and_versions_are_answered() {
    let mut bench = Bench::with_topic_and_group();
    let before = dump(&*bench.state);
    for kind in (0..=u8::MAX).filter(|kind| !matches!(kind, 1 | 10..=13 | 20..=22 | 30 | 31)) {
        let result = bench.one(EncodedItem::new(kind, 0, 1, &[b"?"]));
        assert_eq!(result.code(), Code::UnsupportedKind, "kind {kind}");
    }
    let newer = EncodedItem::new(command::ACK, 0, 2, &[]);
    assert_eq!(bench.one(newer).code(), Code::UnsupportedKind);
    for kind in [1, 10, 11, 12, 13, 20, 21, 22, 30, 31] {
        let result = bench.one(EncodedItem::new(kind, 0, 1, &[&[0xFF; 7]]));
        assert_eq!(result.code(), Code::Invalid, "bytes that are no such command, kind {kind}");
    }
    assert_eq!(dump(&*bench.state), before, "nothing was changed");
}

#[test]
fn feature_level_beyond_this_program_is_refused() {
    let mut bench = Bench::new();
    let level = |level| item(command::FEATURE_LEVEL, &FeatureLevelCommand { level });
    assert_eq!(bench.one(level(1)).code(), Code::Ok);
    assert_eq!(bench.one(level(2)).code(), Code::UnsupportedKind);
}

#[test]
fn digest_mark_is_handed_on() {
    let mut bench = Bench::new();
    let mark = item(command::DIGEST_MARK, &DigestMarkCommand { mark: 9 });
    assert_eq!(bench.one(mark).code(), Code::Ok);
    assert_eq!(bench.effects.marks, [9]);
}
