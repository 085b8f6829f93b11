//! Proposes what was picked and makes messages of what apply accepted.

use std::time::{Duration, Instant};

use mq_protocol::cluster::{DeliverCommand, ItemResult, QueueRef, item_result::Code};
use mq_protocol::convert::{self, Delivery};
use mq_protocol::token::ReceiptHandle;
use mq_protocol::{command, v2};
use mq_raft::{ProposeError, Proposed, RaftGroup};
use mq_runtime::tasks;
use mq_store::item::EncodedItem;
use mq_store::{LogOffset, QueueId};
use prost::Message;
use tokio::sync::oneshot;

use super::hold::Hold;
use super::picker::QueuePick;
use super::read::{self, Stored};
use super::receive::Subject;
use super::{Consumer, Delivered, RENEWED_INVISIBLE, Receive, slow_files};
use crate::error::{BrokerError, in_flight_limit};

/// Pause between two tries to learn what became of a `deliver` whose outcome is unknown.
const FENCE_PAUSE: Duration = Duration::from_secs(1);
/// How long one such try takes at most.
const FENCE_WITHIN: Duration = Duration::from_secs(10);

/// A message under way to its consumer.
#[derive(Clone, Debug)]
struct Sending {
    queue: QueueId,
    position: u64,
    stored: Stored,
}

/// Where a picked message lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    queue: QueueId,
    position: u64,
    offset: LogOffset,
}

/// One delivery that apply accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Accepted {
    queue: QueueId,
    position: u64,
    attempt: u32,
    deliver_index: u64,
}

impl Consumer {
    /// Hands out what was picked; the answer holds what apply accepted, in the order of the pick.
    pub(super) async fn deliver(
        &self,
        call: &Receive,
        subject: &Subject,
        mut hold: Hold,
    ) -> Result<Vec<Delivered>, BrokerError> {
        // Without a filter nothing is waited for between pick and log: proposals that overtake each other are rejected.
        let places = call.filter.is_all().then(|| places(&hold.picks));
        let filtered = match places {
            Some(_) => Vec::new(),
            None => self.read_and_filter(call, &mut hold).await?,
        };
        let items = hold.picks.iter().map(|pick| item(&deliver_command(call, subject, pick))).collect();
        let fence = hold.picks.first().map(|pick| item(&fence_command(subject, pick)));
        let (answer, outcome) = oneshot::channel();
        let proposal = Proposal { raft: self.raft.clone(), items, fence, deadline: call.deadline };
        let mut proposing = Box::pin(proposal.run(hold, answer));
        // The first poll puts it into the queue of the log; the rest must go on even if the caller goes away.
        if futures::poll!(&mut proposing).is_pending() {
            tasks::spawn("deliver", proposing);
        }
        let sending = match places {
            Some(places) => match tokio::time::timeout_at(call.deadline.into(), self.read(places)).await {
                Ok(sending) => sending?,
                // It may be in the log already.
                Err(_) => {
                    return Err(BrokerError::Unknown { reason: "the deadline passed during the reading" });
                }
            },
            None => filtered,
        };
        let accepted = match tokio::time::timeout_at(call.deadline.into(), outcome).await {
            Ok(Ok(outcome)) => outcome?,
            Ok(Err(_)) => return Err(BrokerError::Unknown { reason: "the node stopped" }),
            Err(_) => return Err(BrokerError::Unknown { reason: "the deadline passed during the delivery" }),
        };
        accepted.into_iter().map(|accepted| self.message(call, subject, &sending, accepted)).collect()
    }

    async fn read(&self, places: Vec<Place>) -> Result<Vec<Sending>, BrokerError> {
        let offsets = places.iter().map(|place| place.offset).collect();
        let records = read::read(&self.view.shared().log, offsets).await?;
        let sending = places.into_iter().zip(records);
        Ok(sending
            .map(|(Place { queue, position, .. }, stored)| Sending { queue, position, stored })
            .collect())
    }

    /// Reads the records and drops from the pick what only shares a hash with a wanted tag.
    async fn read_and_filter(&self, call: &Receive, hold: &mut Hold) -> Result<Vec<Sending>, BrokerError> {
        let reading = self.read(places(&hold.picks));
        let records = tokio::time::timeout_at(call.deadline.into(), reading).await;
        let mut records = records.map_err(|_| slow_files())??.into_iter();
        let mut sending = Vec::with_capacity(records.len());
        for pick in &mut hold.picks {
            let mut wanted = Vec::with_capacity(pick.candidates.len());
            for candidate in pick.candidates.drain(..) {
                let Some(record) = records.next() else { break };
                if call.filter.matches(record.stored.properties()?) {
                    sending.push(record);
                    wanted.push(candidate);
                }
            }
            pick.candidates = wanted;
        }
        Ok(sending)
    }

    fn message(
        &self,
        call: &Receive,
        subject: &Subject,
        sending: &[Sending],
        accepted: Accepted,
    ) -> Result<Delivered, BrokerError> {
        let Accepted { queue, position, attempt, deliver_index } = accepted;
        let found = sending.iter().find(|sending| sending.queue == queue && sending.position == position);
        let Some(Sending { stored, .. }) = found else {
            let detail =
                format!("apply accepted position {position} of queue {queue}, which was not asked for");
            return Err(BrokerError::Internal { detail });
        };
        let handle = ReceiptHandle {
            broker_group: self.name.clone(),
            group_id: subject.group.id,
            group_incarnation: subject.group.incarnation,
            topic_id: queue.topic_id,
            incarnation: queue.incarnation,
            queue: queue.queue,
            position,
            deliver_index,
        };
        let delivery = Delivery {
            topic: v2::Resource { resource_namespace: call.namespace.clone(), name: call.topic.clone() },
            queue_id: queue.queue,
            queue_offset: position,
            store_time_ms: stored.store_time,
            receipt_handle: handle.encode(),
            invisible: invisible(call),
            attempt,
            ..Delivery::default()
        };
        let message = convert::deliver(&stored.record, delivery)
            .map_err(|error| BrokerError::Internal { detail: format!("stored record: {error}") })?;
        Ok(Delivered { message })
    }
}

fn invisible(call: &Receive) -> Duration {
    if call.auto_renew { RENEWED_INVISIBLE } else { call.invisible.unwrap_or(RENEWED_INVISIBLE) }
}

fn deliver_command(call: &Receive, subject: &Subject, pick: &QueuePick) -> DeliverCommand {
    let QueueId { topic_id, incarnation, queue } = pick.queue;
    let new = pick.candidates.iter().filter(|candidate| candidate.again.is_none());
    DeliverCommand {
        group_id: subject.group.id,
        group_incarnation: subject.group.incarnation,
        queue: Some(QueueRef { topic_id, incarnation, queue }),
        expected_cursor: pick.from,
        next_cursor: pick.to,
        taken: new.map(|candidate| candidate.position).collect(),
        again: pick.candidates.iter().filter_map(|candidate| candidate.again).collect(),
        invisible_ms: u64::try_from(invisible(call).as_millis()).unwrap_or(u64::MAX),
        auto_renew: call.auto_renew,
        client_id: call.client_id.clone(),
        attempt_id: call.attempt_id.clone(),
    }
}

/// Changes nothing and is rejected; what was proposed before it is applied before it.
fn fence_command(subject: &Subject, pick: &QueuePick) -> DeliverCommand {
    let QueueId { topic_id, incarnation, queue } = pick.queue;
    DeliverCommand {
        group_id: subject.group.id,
        group_incarnation: subject.group.incarnation,
        queue: Some(QueueRef { topic_id, incarnation, queue }),
        ..DeliverCommand::default()
    }
}

fn item(command: &DeliverCommand) -> EncodedItem {
    EncodedItem::new(command::DELIVER, 0, command::VERSION, &[&command.encode_to_vec()])
}

fn places(picks: &[QueuePick]) -> Vec<Place> {
    let places = picks.iter().flat_map(|pick| {
        pick.candidates.iter().map(|candidate| Place {
            queue: pick.queue,
            position: candidate.position,
            offset: candidate.unit.offset,
        })
    });
    places.collect()
}

/// The `deliver` items of one pick, on their way through the log.
struct Proposal {
    raft: RaftGroup,
    items: Vec<EncodedItem>,
    fence: Option<EncodedItem>,
    deadline: Instant,
}

impl Proposal {
    /// Proposes and ends the reservations with the outcome, whether or not the receive still waits for it.
    async fn run(self, hold: Hold, answer: oneshot::Sender<Result<Vec<Accepted>, BrokerError>>) {
        let Self { raft, items, fence, deadline } = self;
        let outcome = match raft.propose(hold.term(), items, deadline).await {
            Ok(proposed) => accepted(&proposed, hold),
            Err(error) if error.certainly_not_stored() => {
                drop(hold);
                Err(error.into())
            }
            Err(error) => {
                // A poll ends without messages when leadership does.
                let outcome = match error {
                    ProposeError::Discarded => Ok(Vec::new()),
                    error => Err(error.into()),
                };
                drop(answer.send(outcome));
                return settle(&raft, fence, hold).await;
            }
        };
        // A receive that went away gets nothing: what was handed out comes again after its invisible time.
        drop(answer.send(outcome));
    }
}

/// Waits until an entry of unknown outcome is applied or can no longer be, or its term is over; then ends its
/// reservations.
async fn settle(raft: &RaftGroup, fence: Option<EncodedItem>, hold: Hold) {
    let Some(fence) = fence else { return hold.unknown() };
    let leadership = raft.leadership();
    // A refusal alone says nothing: a leader that fails to hand over goes on in its term.
    while leadership.borrow().term == hold.term() {
        tokio::time::sleep(FENCE_PAUSE).await;
        match raft.propose(hold.term(), vec![fence.clone()], Instant::now() + FENCE_WITHIN).await {
            // What follows in the chain picks up the applied cursor once the chain has ended.
            Ok(_) => return drop(hold),
            Err(ProposeError::Stopped { .. }) => break,
            Err(_) => {}
        }
    }
    hold.unknown();
}

fn accepted(proposed: &Proposed, hold: Hold) -> Result<Vec<Accepted>, BrokerError> {
    let results: Vec<ItemResult> =
        proposed.results.iter().map(|bytes| ItemResult::decode(bytes.clone()).unwrap_or_default()).collect();
    let delivered = |number: usize| results.get(number).and_then(|result| result.deliver.as_ref());
    let picks = hold.applied(|number| delivered(number).is_some_and(|deliver| deliver.moved));
    let mut accepted = Vec::new();
    for (number, pick) in picks.iter().enumerate() {
        let Some(deliver) = delivered(number) else { continue };
        let index = results[number].index;
        let one = |position, attempt| Accepted { queue: pick.queue, position, attempt, deliver_index: index };
        accepted.extend(deliver.again.iter().map(|again| one(again.position, again.attempt)));
        accepted.extend(deliver.taken.iter().map(|position| one(*position, 1)));
    }
    let refused = results.iter().find(|result| result.code() == Code::InFlightLimit);
    if accepted.is_empty() && refused.is_some() {
        return Err(in_flight_limit());
    }
    Ok(accepted)
}
