//! Messages of one topic on their way to one broker group: those that wait, and a few requests in flight.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use mq_protocol::v2;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::deliver::deliver;
use super::window::Window;
use super::{SendReceipt, Shared};
use crate::error::{Cause, NotStored, SendError};
use crate::group::BrokerGroup;

/// Messages of one request.
const REQUEST_MESSAGES_MAX: usize = 256;
/// Bytes of one request; a single longer message makes a request of its own.
const REQUEST_BYTES_MAX: usize = 256 * 1024;

/// Decides once whether the lane hands a message over or its sender has given up before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken(Arc<AtomicBool>);

impl Taken {
    /// True for the first caller only.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// A message whose sender waits.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) wire: v2::Message,
    pub(crate) bytes: usize,
    pub(crate) deadline: Instant,
    /// Hand-overs so far.
    pub(crate) attempts: u32,
    /// A hand-over has ended without a certain answer: from then on it may be stored.
    pub(crate) maybe_stored: bool,
    taken: Taken,
    answer: oneshot::Sender<Result<SendReceipt, SendError>>,
    _room: OwnedSemaphorePermit,
}

impl Pending {
    pub(crate) fn new(
        wire: v2::Message,
        bytes: usize,
        deadline: Instant,
        taken: Taken,
        answer: oneshot::Sender<Result<SendReceipt, SendError>>,
        room: OwnedSemaphorePermit,
    ) -> Self {
        Self { wire, bytes, deadline, attempts: 0, maybe_stored: false, taken, answer, _room: room }
    }

    fn message_id(&self) -> String {
        self.wire.system_properties.as_ref().map(|system| system.message_id.clone()).unwrap_or_default()
    }

    /// Takes the message from its sender for good; false when the sender has given up or the time is over.
    pub(crate) fn take(&self, now: Instant) -> bool {
        self.deadline > now && self.taken.take()
    }

    pub(crate) fn confirm(self, broker_group: &str, offset: i64) {
        let queue =
            self.wire.system_properties.as_ref().and_then(|system| u32::try_from(system.queue_id).ok());
        let receipt = SendReceipt {
            topic: self.wire.topic.as_ref().map(|topic| topic.name.clone()).unwrap_or_default(),
            broker_group: broker_group.to_owned(),
            queue,
            offset: u64::try_from(offset).unwrap_or(0),
            message_id: self.message_id(),
            attempts: self.attempts,
        };
        // The sender may have stopped waiting.
        let _ = self.answer.send(Ok(receipt));
    }

    /// Ends without a confirmation. Not stored is certain only when every hand-over was.
    pub(crate) fn fail(self, why: NotStored) {
        let message_id = self.message_id();
        let error = if self.maybe_stored {
            let cause = match why {
                NotStored::Refused(cause) | NotStored::Unavailable(cause) => cause,
                NotStored::Invalid(invalid) => {
                    Cause::Status { code: 0, message: invalid.to_string(), reason: None }
                }
            };
            SendError::Unknown { message_id, cause }
        } else {
            SendError::NotStored { why, message_id }
        };
        let _ = self.answer.send(Err(error));
    }
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) producer: Weak<Shared>,
    pub(crate) topic: v2::Resource,
    pub(crate) group: Arc<BrokerGroup>,
    pub(crate) window: Arc<Window>,
    requests_max: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Bounded by the producer's permits.
    waiting: VecDeque<Pending>,
    requests: usize,
}

impl Lane {
    pub(crate) fn new(
        producer: &Arc<Shared>,
        topic: v2::Resource,
        group: Arc<BrokerGroup>,
        window: Arc<Window>,
    ) -> Self {
        let requests_max = producer.requests_in_flight;
        Self {
            producer: Arc::downgrade(producer),
            topic,
            group,
            window,
            requests_max,
            queue: Mutex::default(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.requests == 0 && queue.waiting.is_empty()
    }

    /// Takes a message in. A free request slot starts to send at once.
    pub(crate) fn push(self: &Arc<Self>, pending: Pending) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(pending);
        if queue.requests >= self.requests_max {
            return;
        }
        queue.requests += 1;
        drop(queue);
        let slot = Slot { lane: Arc::clone(self), given_up: false };
        crate::spawn("send", async move { slot.run().await });
    }

    /// What could not be sent goes back to the front.
    pub(crate) fn put_back(&self, rest: Vec<Pending>) {
        let mut queue = self.queue.lock();
        for pending in rest.into_iter().rev() {
            queue.waiting.push_front(pending);
        }
    }

    /// The next request's messages; `None` gives the slot up.
    fn next_request(&self) -> Option<Vec<Pending>> {
        let mut queue = self.queue.lock();
        let mut request = Vec::new();
        let mut bytes = 0;
        while let Some(next) = queue.waiting.front() {
            let full = request.len() >= REQUEST_MESSAGES_MAX || bytes + next.bytes > REQUEST_BYTES_MAX;
            if full && !request.is_empty() {
                break;
            }
            let Some(next) = queue.waiting.pop_front() else { break };
            bytes += next.bytes;
            request.push(next);
        }
        if request.is_empty() {
            queue.requests -= 1;
            return None;
        }
        Some(request)
    }
}

/// One request slot of a lane while it is in use.
struct Slot {
    lane: Arc<Lane>,
    given_up: bool,
}

impl Slot {
    async fn run(mut self) {
        while let Some(request) = self.lane.next_request() {
            // The producer is gone only when nobody waits for these messages any more.
            if let Some(producer) = self.lane.producer.upgrade() {
                deliver(&producer, &self.lane, request).await;
            }
        }
        self.given_up = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.given_up {
            self.lane.queue.lock().requests -= 1;
        }
    }
}
