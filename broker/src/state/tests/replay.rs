//! The same log gives the same state: applied twice, in other groupings, and after a restart at any point.

use mq_protocol::cluster::{ClientGoneCommand, ProducerCommand, Redelivery};
use mq_protocol::command;
use proptest::prelude::*;

use super::*;

/// One item of a random log. Numbers are small, so that commands meet each other.
#[derive(Clone, Debug)]
enum Random {
    Message {
        topic: u32,
        life: u32,
        queue: u32,
        origin: RandomOrigin,
    },
    PutTopic {
        name: u8,
        queues: Option<u32>,
    },
    DeleteTopic(u8),
    PutGroup(u8),
    DeleteGroup(u8),
    Deliver {
        group: (u32, u32),
        queue: QueueRef,
        from: u64,
        skip: u64,
        taken: u64,
        renew: bool,
        again: Vec<(u64, u32, u64)>,
    },
    Ack {
        group: (u32, u32),
        queue: QueueRef,
        positions: Vec<(u64, u64)>,
    },
    Change {
        group: (u32, u32),
        queue: QueueRef,
        position: u64,
        back: u64,
        invisible: u64,
        renewal: bool,
    },
    Gone,
    Producer {
        id: u64,
        epoch: u32,
    },
}

#[derive(Clone, Debug)]
enum RandomOrigin {
    Nobody,
    Native { id: u64, epoch: u32, floor: u64, above: u64 },
    Key(u8),
}

fn queue() -> impl Strategy<Value = QueueRef> {
    (1..3u32, 1..3u32, 0..3u32).prop_map(|(topic_id, incarnation, queue)| QueueRef {
        topic_id,
        incarnation,
        queue,
    })
}

fn group() -> impl Strategy<Value = (u32, u32)> {
    (1..3u32, 1..3u32)
}

fn origin() -> impl Strategy<Value = RandomOrigin> {
    prop_oneof![
        Just(RandomOrigin::Nobody),
        (1..6u64, 1..3u32, 0..4u64, 0..4u64).prop_map(|(id, epoch, floor, above)| RandomOrigin::Native {
            id,
            epoch,
            floor,
            above
        }),
        (0..20u8).prop_map(RandomOrigin::Key),
    ]
}

fn random() -> impl Strategy<Value = Random> {
    prop_oneof![
        8 => (1..3u32, 1..3u32, 0..3u32, origin())
            .prop_map(|(topic, life, queue, origin)| Random::Message { topic, life, queue, origin }),
        1 => (0..2u8, prop::option::of(1..4u32)).prop_map(|(name, queues)| Random::PutTopic { name, queues }),
        1 => (0..2u8).prop_map(Random::DeleteTopic),
        1 => (0..2u8).prop_map(Random::PutGroup),
        1 => (0..2u8).prop_map(Random::DeleteGroup),
        6 => (group(), queue(), 0..6u64, 0..3u64, 0..3u64, any::<bool>(),
              prop::collection::vec((0..6u64, 2..4u32, 0..12u64), 0..3))
            .prop_map(|(group, queue, from, skip, taken, renew, again)| Random::Deliver {
                group, queue, from, skip, taken, renew, again
            }),
        4 => (group(), queue(), prop::collection::vec((0..6u64, 0..12u64), 1..4))
            .prop_map(|(group, queue, positions)| Random::Ack { group, queue, positions }),
        2 => (group(), queue(), 0..6u64, 0..12u64, 0..50u64, any::<bool>())
            .prop_map(|(group, queue, position, back, invisible, renewal)| Random::Change {
                group, queue, position, back, invisible, renewal
            }),
        1 => Just(Random::Gone),
        1 => (1..6u64, 1..4u32).prop_map(|(id, epoch)| Random::Producer { id, epoch }),
    ]
}

impl Random {
    /// The item, for the frame `index`: handles name frames shortly before it.
    fn item(&self, index: u64) -> EncodedItem {
        match self.clone() {
            Self::Message { topic, life, queue, origin } => {
                let origin = match origin {
                    RandomOrigin::Nobody => Origin::Anonymous,
                    RandomOrigin::Native { id, epoch, floor, above } => {
                        native(id, epoch, floor, floor + above)
                    }
                    RandomOrigin::Key(key) => Origin::SendKey([key; 16]),
                };
                message(topic, life, queue, "", origin)
            }
            Self::PutTopic { name, queues } => put_topic(&format!("t{name}"), queues),
            Self::DeleteTopic(name) => delete_topic(&format!("t{name}")),
            Self::PutGroup(name) => put_group(&format!("g{name}")),
            Self::DeleteGroup(name) => delete_group(&format!("g{name}")),
            Self::Deliver { group, queue, from, skip, taken, renew, again } => {
                let first = from + skip;
                let again = again.into_iter().map(|(position, attempt, back)| Redelivery {
                    position,
                    attempt,
                    previous_deliver_index: index.saturating_sub(back),
                });
                let command = DeliverCommand {
                    group_id: group.0,
                    group_incarnation: group.1,
                    queue: Some(queue),
                    auto_renew: renew,
                    invisible_ms: 3,
                    again: again.collect(),
                    ..deliver(from, first + taken, &(first..first + taken).collect::<Vec<_>>(), &[])
                };
                item(command::DELIVER, &command)
            }
            Self::Ack { group, queue, positions } => {
                let positions = positions.into_iter().map(|(position, back)| AckPosition {
                    position,
                    deliver_index: index.saturating_sub(back),
                });
                let command = AckCommand {
                    group_id: group.0,
                    group_incarnation: group.1,
                    queue: Some(queue),
                    positions: positions.collect(),
                };
                item(command::ACK, &command)
            }
            Self::Change { group, queue, position, back, invisible, renewal } => {
                let command = ChangeInvisibleCommand {
                    group_id: group.0,
                    group_incarnation: group.1,
                    queue: Some(queue),
                    renewal,
                    ..change(position, index.saturating_sub(back), invisible)
                };
                item(command::CHANGE_INVISIBLE, &command)
            }
            Self::Gone => {
                let command = ClientGoneCommand { client_id: "client".to_owned(), invisible_ms: 1 };
                item(command::CLIENT_GONE, &command)
            }
            Self::Producer { id, epoch } => {
                item(command::PRODUCER, &ProducerCommand { producer_id: id, epoch })
            }
        }
    }
}

/// Applies a log one frame per call and gives the state after each frame, with all answers and effects.
fn run(frames: &[Vec<Random>]) -> (Bench, Vec<Vec<ItemResult>>) {
    let mut bench = Bench::new();
    for name in ["t0", "t1"] {
        bench.one(put_topic(name, Some(2)));
    }
    for name in ["g0", "g1"] {
        bench.one(put_group(name));
    }
    let mut answers = Vec::new();
    for frame in frames {
        let index = bench.log.len() as u64;
        let items: Vec<_> = frame.iter().map(|random| random.item(index)).collect();
        // Leaps of lease time, so that windows and invisible times end.
        bench.lease += if index.is_multiple_of(7) { 50_000 } else { 0 };
        answers.push(bench.frame(&items));
    }
    (bench, answers)
}

/// Applies a log in calls of `size` frames.
fn replay(log: &[LoggedFrame], size: usize) -> (Arc<dyn State>, Effects) {
    let state = memory();
    let mut machine = Machine::load(&*state, WINDOWS).expect("an empty state");
    let mut effects = Effects::default();
    for frames in log.chunks(size) {
        let mut batch = WriteBatch::new();
        for frame in frames {
            machine.apply_frame(frame.head, &frame.body, &mut batch, &mut effects).expect("own frame");
        }
        machine.flush(&mut batch);
        state.write(&batch).expect("memory does not fail");
    }
    (state, effects)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn same_log_gives_the_same_bytes_in_any_grouping(
        frames in prop::collection::vec(prop::collection::vec(random(), 1..4), 1..60),
        size in 2..9usize,
    ) {
        let (bench, _) = run(&frames);
        let expected = dump(&*bench.state);
        let (one, effects) = replay(&bench.log, 1);
        prop_assert_eq!(&dump(&*one), &expected);
        prop_assert_eq!(&effects.wake, &bench.effects.wake);
        let (many, _) = replay(&bench.log, size);
        prop_assert_eq!(&dump(&*many), &expected);
    }

    #[test]
    fn restart_at_any_point_changes_nothing(
        frames in prop::collection::vec(prop::collection::vec(random(), 1..4), 1..40),
    ) {
        let (bench, answers) = run(&frames);
        let expected = dump(&*bench.state);
        let state = memory();
        let mut effects = Effects::default();
        for (number, frame) in bench.log.iter().enumerate() {
            // A new process for every frame: nothing may live in memory alone.
            let mut machine = Machine::load(&*state, WINDOWS).expect("own state");
            let results = apply(&mut machine, &*state, frame, &mut effects);
            if let Some(before) = number.checked_sub(4).map(|number| &answers[number]) {
                prop_assert_eq!(&results, before, "frame {}", number);
            }
        }
        prop_assert_eq!(&dump(&*state), &expected);
    }

    /// Delivery state seen from outside: nobody has a message twice, and what was acked stays acked.
    #[test]
    fn random_commands_keep_the_delivery_state_consistent(
        frames in prop::collection::vec(prop::collection::vec(random(), 1..4), 1..60),
    ) {
        let (bench, _) = run(&frames);
        let deliveries = bench.machine.deliveries.lock();
        let mut total = 0;
        for key in deliveries.keys() {
            let progress = deliveries.progress(&key).expect("a key of its own");
            total += progress.in_flight.len() as u64;
            prop_assert_eq!(progress.in_flight.len(), progress.due.len());
            let next = bench.machine.topics().next(key.queue).expect("a living queue");
            prop_assert!(progress.cursor <= next);
            for (position, entry) in &progress.in_flight {
                prop_assert!(*position < progress.cursor);
                prop_assert!(progress.due.contains(&(entry.invisible_end, *position)));
            }
        }
        prop_assert_eq!(total, deliveries.total());
    }
}
