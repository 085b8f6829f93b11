//! What clients say about deliveries: done, later, or goodbye.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::cluster::{
    AckCommand, AckPosition, ChangeInvisibleCommand, ClientGoneCommand, ItemResult, QueueRef,
    item_result::Code,
};
use mq_protocol::command;
use mq_protocol::token::ReceiptHandle;
use mq_store::item::EncodedItem;
use mq_store::{QueueId, Term};
use prost::Message;

use super::{Consumer, GONE_INVISIBLE};
use crate::error::{BrokerError, HANDLE_OVER};
use crate::state::{SubscriptionGroup, Topic};

/// Whose deliveries a call is about.
#[derive(Clone, Copy, Debug)]
pub struct Subscription<'a> {
    /// Namespace of topic and group.
    pub namespace: &'a str,
    /// Subscription group.
    pub group: &'a str,
    /// Topic.
    pub topic: &'a str,
}

/// One `ack` item: the life of the group, the queue.
type AckKey = (u32, QueueId);

impl Consumer {
    /// Settles deliveries; one outcome per handle, in order. An OK is never forgotten.
    ///
    /// # Errors
    /// Nothing was settled, or, with `Unknown`, perhaps some.
    pub async fn ack(
        &self,
        subscription: Subscription<'_>,
        handles: Vec<String>,
        deadline: Instant,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let term = self.leading()?;
        let (topic, group) = self.named(subscription)?;
        let mut outcomes = Vec::with_capacity(handles.len());
        let mut items: BTreeMap<AckKey, Vec<(usize, AckPosition)>> = BTreeMap::new();
        for (number, text) in handles.iter().enumerate() {
            match self.handle(text, group.id, topic.id) {
                Ok(handle) => {
                    let position =
                        AckPosition { position: handle.position, deliver_index: handle.deliver_index };
                    let key = (handle.group_incarnation, queue_of(&handle));
                    items.entry(key).or_default().push((number, position));
                    outcomes.push(Ok(()));
                }
                Err(error) => outcomes.push(Err(error)),
            }
        }
        if items.is_empty() {
            return Ok(outcomes);
        }
        let encoded = items.iter().map(|(key, positions)| ack_item(group.id, *key, positions)).collect();
        let results = self.propose(term, encoded, deadline).await?;
        for (positions, result) in items.values().zip(&results) {
            for (place, (number, _)) in positions.iter().enumerate() {
                outcomes[*number] = ack_outcome(result, place);
            }
        }
        Ok(outcomes)
    }

    /// Makes a delivery visible again after `duration`; answers the new handle, which replaces the old one.
    ///
    /// # Errors
    /// Nothing was changed, or, with `Unknown`, perhaps.
    pub async fn change_invisible(
        &self,
        subscription: Subscription<'_>,
        handle: &str,
        duration: Duration,
        deadline: Instant,
    ) -> Result<String, BrokerError> {
        let term = self.leading()?;
        let (topic, group) = self.named(subscription)?;
        let mut handle = self.handle(handle, group.id, topic.id)?;
        let change = ChangeInvisibleCommand {
            group_id: group.id,
            group_incarnation: handle.group_incarnation,
            queue: Some(queue_ref(queue_of(&handle))),
            position: handle.position,
            deliver_index: handle.deliver_index,
            invisible_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            renewal: false,
        };
        let results = self.propose(term, vec![item(command::CHANGE_INVISIBLE, &change)], deadline).await?;
        let result = results.first().cloned().unwrap_or_default();
        match handle_error(&result) {
            Some(error) => Err(error),
            None => {
                handle.deliver_index = result.index;
                Ok(handle.encode())
            }
        }
    }

    /// A client went away: what the server would renew for it becomes visible after one second.
    ///
    /// # Errors
    /// As of any proposal; then its deliveries come again after their invisible time.
    pub async fn client_gone(&self, client_id: &str, deadline: Instant) -> Result<(), BrokerError> {
        let term = self.leading()?;
        if !self.view.shared().deliveries.lock().has_renewed(client_id) {
            return Ok(());
        }
        let gone = ClientGoneCommand {
            client_id: client_id.to_owned(),
            invisible_ms: u64::try_from(GONE_INVISIBLE.as_millis()).unwrap_or(u64::MAX),
        };
        self.propose(term, vec![item(command::CLIENT_GONE, &gone)], deadline).await.map(drop)
    }

    fn named(
        &self,
        subscription: Subscription<'_>,
    ) -> Result<(Arc<Topic>, Arc<SubscriptionGroup>), BrokerError> {
        let Subscription { namespace, group, topic } = subscription;
        let found = self.view.topic(namespace, topic);
        let topic = found.ok_or_else(|| BrokerError::UnknownTopic { topic: topic.to_owned() })?;
        let found = self.view.group(namespace, group);
        let group = found.ok_or_else(|| BrokerError::UnknownGroup { group: group.to_owned() })?;
        Ok((topic, group))
    }

    async fn propose(
        &self,
        term: Term,
        items: Vec<EncodedItem>,
        deadline: Instant,
    ) -> Result<Vec<ItemResult>, BrokerError> {
        let proposed = self.raft.propose(term, items, deadline).await?;
        let decoded = proposed.results.iter().map(|bytes| ItemResult::decode(bytes.clone()));
        decoded
            .collect::<Result<_, _>>()
            .map_err(|error| BrokerError::Internal { detail: format!("result of apply: {error}") })
    }
}

fn item(kind: u8, command: &impl Message) -> EncodedItem {
    EncodedItem::new(kind, 0, command::VERSION, &[&command.encode_to_vec()])
}

fn queue_of(handle: &ReceiptHandle) -> QueueId {
    QueueId::new(handle.topic_id, handle.incarnation, handle.queue)
}

fn queue_ref(queue: QueueId) -> QueueRef {
    let QueueId { topic_id, incarnation, queue } = queue;
    QueueRef { topic_id, incarnation, queue }
}

fn ack_item(group_id: u32, (life, queue): AckKey, positions: &[(usize, AckPosition)]) -> EncodedItem {
    let command = AckCommand {
        group_id,
        group_incarnation: life,
        queue: Some(queue_ref(queue)),
        positions: positions.iter().map(|(_, position)| *position).collect(),
    };
    item(command::ACK, &command)
}

/// What became of the position `place` of an `ack` item.
fn ack_outcome(result: &ItemResult, place: usize) -> Result<(), BrokerError> {
    if let Some(error) = handle_error(result) {
        return Err(error);
    }
    match result.ack.as_ref().and_then(|ack| ack.codes.get(place)) {
        Some(&code) if code == Code::Ok as u32 => Ok(()),
        Some(_) => Err(BrokerError::InvalidHandle { reason: HANDLE_OVER }),
        None => Err(BrokerError::Internal { detail: "an ack without an answer".to_owned() }),
    }
}

/// The error of an item about a handle. A topic or group of an earlier life makes the handle invalid.
fn handle_error(result: &ItemResult) -> Option<BrokerError> {
    match result.code() {
        Code::UnknownTopic | Code::UnknownGroup => {
            Some(BrokerError::InvalidHandle { reason: "its topic or subscription group was deleted" })
        }
        _ => BrokerError::from_result(result, ""),
    }
}
