//! Receiving: a consumer of a subscription group that asks for messages and settles them itself.
//!
//! A message that is received and not acknowledged within its invisible time comes again, to any consumer of the
//! group, with a higher delivery attempt.

mod receive;
mod settle;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mq_protocol::{headers, names, v2};
use tokio::time::Instant;

use crate::client::{Client, in_range, millis, timeout_in_range};
use crate::core::Core;
use crate::error::{AckError, Cause, ConfigError, ReceiveError};
use crate::message::{FilterExpression, MessageView};
use crate::outcome::status_of;
use crate::pursuit::MessagingClient;
use receive::Receive;
use settle::Settlement;

/// Most messages of one receive.
pub const RECEIVE_BATCH_MAX: usize = 32;
/// Longest invisible time that a broker can be set to allow; most allow less and say so.
const INVISIBLE_MS_MAX: u64 = 7 * 86_400_000;
/// A receive lasts at most this much longer than its wait.
const RECEIVE_MARGIN: Duration = Duration::from_secs(3);
/// With several topics or broker groups, one of them is waited for at most this long before the next one's turn.
const TURN: Duration = Duration::from_millis(500);

/// Settings of a [`SimpleConsumer`].
#[derive(Debug, Clone)]
pub struct SimpleConsumerBuilder {
    client: Client,
    namespace: String,
    group: String,
    subscriptions: Vec<(String, FilterExpression)>,
    timeout: Duration,
}

/// Receives messages of a subscription group. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SimpleConsumer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    group: v2::Resource,
    subscriptions: Vec<(v2::Resource, FilterExpression)>,
    timeout: Duration,
    turn: AtomicUsize,
}

impl SimpleConsumerBuilder {
    pub(crate) fn new(client: Client, group: String) -> Self {
        Self {
            client,
            namespace: String::new(),
            group,
            subscriptions: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }

    /// Puts group and topics into a namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Subscribes a topic; several are received in turn.
    #[must_use]
    pub fn subscribe(mut self, topic: impl Into<String>, filter: FilterExpression) -> Self {
        self.subscriptions.push((topic.into(), filter));
        self
    }

    /// Sets how long an ack or a change may last, retries included; 10 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Checks the settings.
    pub fn build(self) -> Result<SimpleConsumer, ConfigError> {
        names::namespace(&self.namespace)?;
        names::group(&self.group)?;
        if self.subscriptions.is_empty() {
            return Err(ConfigError::NoSubscription);
        }
        timeout_in_range("timeout in ms", self.timeout)?;
        let mut subscriptions = Vec::with_capacity(self.subscriptions.len());
        for (topic, filter) in self.subscriptions {
            names::topic(&topic)?;
            let topic = v2::Resource { resource_namespace: self.namespace.clone(), name: topic };
            subscriptions.push((topic, filter));
        }
        Ok(SimpleConsumer {
            shared: Arc::new(Shared {
                core: self.client.core,
                group: v2::Resource { resource_namespace: self.namespace, name: self.group },
                subscriptions,
                timeout: self.timeout,
                turn: AtomicUsize::new(0),
            }),
        })
    }
}

impl SimpleConsumer {
    /// Waits up to `wait` for messages and returns at most `max` of them, none when there are none. Nobody else
    /// gets them for the time `invisible`, counted by the broker.
    ///
    /// Lasts at most `wait` + 3 s. After an error, messages that were on their way come again later.
    pub async fn receive(
        &self,
        max: usize,
        invisible: Duration,
        wait: Duration,
    ) -> Result<Vec<MessageView>, ReceiveError> {
        in_range("messages of a receive", max as u64, 1, RECEIVE_BATCH_MAX as u64)?;
        in_range("invisible time in ms", millis(invisible), 1, INVISIBLE_MS_MAX)?;
        in_range("wait in ms", millis(wait), 0, 3_600_000)?;
        let shared = &self.shared;
        let poll_end = Instant::now() + wait;
        let deadline = poll_end + RECEIVE_MARGIN;
        let mut first_round = true;
        loop {
            let sources = shared.sources(deadline).await?;
            let start = shared.turn.fetch_add(1, Ordering::Relaxed);
            for place in 0..sources.len() {
                let (topic, filter, group) = &sources[start.wrapping_add(place) % sources.len()];
                let left = poll_end.saturating_duration_since(Instant::now());
                let poll = match (sources.len(), first_round) {
                    (1, _) => left,
                    (_, true) => Duration::ZERO,
                    (_, false) => left.min(TURN),
                };
                let request = Receive { topic, filter, group, max, invisible };
                let messages = shared.receive_from(&request, Instant::now() + poll, deadline).await?;
                if !messages.is_empty() {
                    return Ok(messages);
                }
            }
            if Instant::now() >= poll_end {
                return Ok(Vec::new());
            }
            first_round = false;
        }
    }

    /// Settles a delivery: the message does not come again.
    pub async fn ack(&self, message: &MessageView) -> Result<(), AckError> {
        let mut outcomes = self.ack_all(std::slice::from_ref(message)).await;
        outcomes.pop().unwrap_or(Err(AckError::Unknown(Cause::Closed)))
    }

    /// Settles deliveries, with one request per topic and broker group. Outcomes are in the order of the messages.
    pub async fn ack_all(&self, messages: &[MessageView]) -> Vec<Result<(), AckError>> {
        let mut outcomes = vec![Err(AckError::Unknown(Cause::Closed)); messages.len()];
        let mut requests: Vec<Vec<usize>> = Vec::new();
        for place in 0..messages.len() {
            let same = |other: &usize| {
                messages[*other].resource() == messages[place].resource()
                    && messages[*other].broker_group() == messages[place].broker_group()
            };
            let open = requests
                .iter_mut()
                .find(|request| request.len() < RECEIVE_BATCH_MAX && request.first().is_some_and(same));
            match open {
                Some(request) => request.push(place),
                None => requests.push(vec![place]),
            }
        }
        let answers = requests.iter().map(|places| async move {
            let some: Vec<_> = places.iter().map(|place| &messages[*place]).collect();
            (places, self.shared.ack(&some).await)
        });
        for (places, answer) in futures::future::join_all(answers).await {
            for (place, outcome) in places.iter().zip(answer) {
                outcomes[*place] = outcome;
            }
        }
        outcomes
    }

    /// Changes the invisible time of a delivery, counted from now; returns the message with its new handle.
    ///
    /// After [`AckError::Unknown`] the handle may have been replaced, and the new one is not known: the message then
    /// comes again after the new invisible time.
    pub async fn change_invisible(
        &self,
        message: &MessageView,
        invisible: Duration,
    ) -> Result<MessageView, AckError> {
        in_range("invisible time in ms", millis(invisible), 0, INVISIBLE_MS_MAX)?;
        let shared = &self.shared;
        let topic = message.resource().cloned().unwrap_or_default();
        let body = v2::ChangeInvisibleDurationRequest {
            group: Some(shared.group.clone()),
            topic: Some(topic.clone()),
            receipt_handle: message.receipt_handle().to_owned(),
            invisible_duration: Some(duration(invisible)),
            message_id: message.message_id().to_owned(),
            ..Default::default()
        };
        let group = shared.core.routes.group(message.broker_group());
        let call = |mut client: MessagingClient, time| {
            let request = direct(&shared.core, body.clone(), time);
            async move { client.change_invisible_duration(request).await }
        };
        let codes = |answer: &v2::ChangeInvisibleDurationResponse| vec![status_of(answer.status.as_ref())];
        let (answer, outcomes) = shared.settle(Settlement::Change, &group, &topic, 1, call, codes).await?;
        outcomes.into_iter().next().unwrap_or(Err(AckError::Unknown(Cause::Closed)))?;
        Ok(message.with_receipt_handle(answer.receipt_handle))
    }

    /// Tells the brokers that this consumer is gone. Deliveries that it holds stay invisible until their time ends.
    pub async fn close(&self) {
        let shared = &self.shared;
        let patience = Duration::from_secs(1);
        for (topic, _) in &shared.subscriptions {
            let Ok(route) = shared.core.route(topic, Instant::now() + patience).await else { continue };
            for leader in route.readable().filter_map(|group| group.leader()) {
                let body = v2::NotifyClientTerminationRequest { group: Some(shared.group.clone()) };
                let request = shared.core.identity.request(body, patience);
                let call = |channel| {
                    let mut client = shared.core.messaging(channel);
                    async move { client.notify_client_termination(request).await }
                };
                // Soft state: without this word the broker forgets the client by time.
                let _ = shared.core.call(&leader.address, patience, call).await;
            }
        }
    }
}

/// A request that only the leader is to answer.
fn direct<T>(core: &Core, body: T, time: Duration) -> tonic::Request<T> {
    let mut request = core.identity.request(body, time);
    crate::identity::put(request.metadata_mut(), headers::NO_FORWARD, "1");
    request
}

fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}
