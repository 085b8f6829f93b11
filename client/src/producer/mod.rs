//! Sending: every message gets a number, so that it can be repeated after an unknown outcome and is stored once.
//!
//! ```text
//!  send ──> check ──> route: broker group ──> lane (group, topic): waiting messages
//!                                               │ a request slot is free: take all, up to 256 KiB / 256 messages
//!                                               v
//!                            window (group): sequences first..first+n-1, floor = lowest outstanding
//!                                               v
//!                            pursuit (leader) ──> answer per message, or the same sequences again
//! ```
//!
//! There is no timer: an idle producer sends a message at once, a busy one fills its next request meanwhile.

mod deliver;
mod lane;
mod window;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2;
use mq_runtime::random;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use crate::client::{Client, in_range, timeout_in_range};
use crate::core::Core;
use crate::error::{Cause, ConfigError, InvalidMessage, NotStored, SendError};
use crate::group::BrokerGroup;
use crate::message::Message;
use lane::{Lane, Pending, Taken};
use window::Window;

/// Bytes of messages that wait or are on their way, per producer.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Topics and broker groups of one producer that messages wait for at the same time.
const LANES_MAX: usize = 10_000;
/// A task answers at its message's deadline; this much later something is wrong with the machine.
const GRACE: Duration = Duration::from_millis(500);

/// Where a confirmed message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReceipt {
    /// Its topic.
    pub topic: String,
    /// The broker group that holds it.
    pub broker_group: String,
    /// Number of its queue, as this producer chose it from the topic's route.
    pub queue: Option<u32>,
    /// Its offset in the queue.
    pub offset: u64,
    /// Its id.
    pub message_id: String,
    /// How often it was handed over until the answer came; above 1 after a failover.
    pub attempts: u32,
}

/// Sends messages. Cheap to clone: all clones share one producer id and its sequences.
#[derive(Debug, Clone)]
pub struct Producer {
    shared: Arc<Shared>,
}

/// Settings of a [`Producer`].
#[derive(Debug, Clone)]
pub struct ProducerBuilder {
    client: Client,
    id: Option<u64>,
    epoch: u32,
    timeout: Duration,
    requests_in_flight: usize,
}

#[derive(Debug)]
pub(crate) struct Shared {
    core: Arc<Core>,
    id: u64,
    epoch: u32,
    timeout: Duration,
    requests_in_flight: usize,
    waiting: Arc<Semaphore>,
    lanes: Mutex<HashMap<LaneKey, Arc<Lane>>>,
    windows: Mutex<HashMap<String, Arc<Window>>>,
}

/// Namespace, topic, broker group.
type LaneKey = (String, String, String);

impl ProducerBuilder {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, id: None, epoch: 0, timeout: Duration::from_secs(10), requests_in_flight: 4 }
    }

    /// Continues a producer under its id. Needs a higher [`epoch`](Self::epoch) than the one before.
    #[must_use]
    pub fn id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the epoch: a producer with an older one of the same id is refused from then on. 0 by default.
    #[must_use]
    pub fn epoch(mut self, epoch: u32) -> Self {
        self.epoch = epoch;
        self
    }

    /// Sets how long a send may last, retries included; 10 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many requests of one topic may be on their way to a broker group; 4 by default.
    #[must_use]
    pub fn requests_in_flight(mut self, count: usize) -> Self {
        self.requests_in_flight = count;
        self
    }

    /// Checks the settings.
    pub fn build(self) -> Result<Producer, ConfigError> {
        timeout_in_range("send timeout in ms", self.timeout)?;
        in_range("requests in flight", self.requests_in_flight as u64, 1, 64)?;
        let id = self.id.unwrap_or_else(|| random::u64().max(1));
        in_range("producer id", id, 1, u64::MAX)?;
        Ok(Producer {
            shared: Arc::new(Shared {
                core: self.client.core,
                id,
                epoch: self.epoch,
                timeout: self.timeout,
                requests_in_flight: self.requests_in_flight,
                waiting: Arc::new(Semaphore::new(WAITING_BYTES_MAX)),
                lanes: Mutex::default(),
                windows: Mutex::default(),
            }),
        })
    }
}

impl Producer {
    /// The id under which repeats of this producer are recognised.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Sends a message and waits for the outcome, at most for the producer's timeout.
    ///
    /// `Ok` means: on disk on a majority of the broker group, at that offset for ever. Dropping the future does
    /// not take the message back.
    pub async fn send(&self, message: Message) -> Result<SendReceipt, SendError> {
        self.send_within(message, self.shared.timeout).await
    }

    /// As [`send`](Self::send), with a time limit of its own: 1 ms to 24 h.
    pub async fn send_within(&self, message: Message, timeout: Duration) -> Result<SendReceipt, SendError> {
        message.check()?;
        timeout_in_range("send timeout in ms", timeout).map_err(InvalidMessage::from)?;
        let shared = &self.shared;
        let started = Instant::now();
        let deadline = started + timeout;
        let message_id = shared.core.identity.message_id();
        let not_stored = |why| SendError::NotStored { why, message_id: message_id.clone() };

        let bytes = message.wire_bytes();
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&shared.waiting).acquire_many_owned(permits);
        let room = match tokio::time::timeout_at(deadline, room).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return Err(not_stored(NotStored::Unavailable(Cause::Closed))),
            Err(_) => {
                let cause = Cause::Overloaded { what: "bytes waiting", limit: WAITING_BYTES_MAX };
                return Err(not_stored(NotStored::Unavailable(cause)));
            }
        };

        let topic =
            v2::Resource { resource_namespace: message.namespace.clone(), name: message.topic.clone() };
        let (group, queue) = shared.queue_for(&topic, deadline).await.map_err(&not_stored)?;
        let lane = shared.lane(&topic, &group);
        let wire = message.into_wire(
            queue,
            message_id.clone(),
            &shared.core.identity.host,
            shared.core.identity.now_ms(),
        );
        let (answer, outcome) = oneshot::channel();
        let taken = Taken::default();
        lane.push(Pending::new(wire, bytes, deadline, taken.clone(), answer, room));
        wait(outcome, taken, deadline, timeout, message_id).await
    }
}

/// Waits for the lane's answer; at the deadline it is decided whether the message can have left.
async fn wait(
    mut outcome: oneshot::Receiver<Result<SendReceipt, SendError>>,
    taken: Taken,
    deadline: Instant,
    timeout: Duration,
    message_id: String,
) -> Result<SendReceipt, SendError> {
    let cause = match tokio::time::timeout_at(deadline, &mut outcome).await {
        Ok(Ok(outcome)) => return outcome,
        Ok(Err(_)) => Cause::Closed,
        Err(_) => Cause::Deadline { after: timeout },
    };
    if taken.take() {
        // Still in the lane, and nobody will take it out any more.
        return Err(SendError::NotStored { why: NotStored::Unavailable(cause), message_id });
    }
    match tokio::time::timeout(GRACE, outcome).await {
        Ok(Ok(outcome)) => outcome,
        _ => Err(SendError::Unknown { message_id, cause }),
    }
}

impl Shared {
    async fn queue_for(
        &self,
        topic: &v2::Resource,
        deadline: Instant,
    ) -> Result<(Arc<BrokerGroup>, i32), NotStored> {
        let route = self.core.route(topic, deadline).await.map_err(|cause| match cause {
            Cause::Status { .. } => NotStored::Refused(cause),
            cause => NotStored::Unavailable(cause),
        })?;
        if let Some((group, queue)) = route.next_writable() {
            return Ok((Arc::clone(group), queue));
        }
        self.core.routes.forget(topic);
        let reason = "no queue of it takes messages".to_owned();
        Err(NotStored::Refused(Cause::NoRoute { topic: topic.name.clone(), reason }))
    }

    fn lane(self: &Arc<Self>, topic: &v2::Resource, group: &Arc<BrokerGroup>) -> Arc<Lane> {
        let key = (topic.resource_namespace.clone(), topic.name.clone(), group.name.clone());
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(&key) {
            return Arc::clone(lane);
        }
        if lanes.len() >= LANES_MAX {
            lanes.retain(|_, lane| !lane.is_idle());
        }
        let lane = Arc::new(Lane::new(self, topic.clone(), Arc::clone(group), self.window(&group.name)));
        lanes.insert(key, Arc::clone(&lane));
        lane
    }

    fn window(&self, group: &str) -> Arc<Window> {
        Arc::clone(self.windows.lock().entry(group.to_owned()).or_default())
    }
}
