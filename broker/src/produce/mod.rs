//! From a checked send to the group's log: admission by state and load, encoding (once), proposal, result.

pub mod admit;
mod encode;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mq_protocol::cluster::MessageResult;
use mq_protocol::headers::ProducerNumbers;
use mq_protocol::v2;
use mq_store::Term;
use tokio::sync::SemaphorePermit;

use crate::error::BrokerError;
use crate::group::{BrokerGroup, decode_result};
use crate::refusal::CallError;
use crate::state::{PRODUCER_WINDOW, Topic};

/// Messages of one topic that are to be stored together.
#[derive(Debug)]
pub struct Produce<'a> {
    /// The topic as the leader knows it.
    pub topic: Arc<Topic>,
    /// Checked by [`admit::request`].
    pub messages: &'a [v2::Message],
    /// Who sends.
    pub client_id: &'a str,
    /// Numbers of a native producer.
    pub producer: Option<ProducerNumbers>,
    /// Where the call came from, as far as known.
    pub born_host: Option<SocketAddr>,
    /// Node that stores.
    pub store_host: SocketAddr,
    /// Wall clock of this node, ms; the born time of a message that names none.
    pub received_ms: u64,
    /// The term in which this node leads.
    pub term: Term,
    /// Until when the commit is waited for.
    pub deadline: Instant,
}

impl BrokerGroup {
    /// Stores messages of one topic: one result per message, in order. Whoever gets an OK result may forget the
    /// message: it is fsynced on a majority of the group and visible to consumers here. All messages of a call lie
    /// in one frame. An error of the whole call means that nothing was stored, unless it is `Unknown`.
    pub async fn produce(
        &self,
        call: &Produce<'_>,
    ) -> Result<Vec<Result<MessageResult, BrokerError>>, CallError> {
        let topic = &call.topic;
        if !topic.writable() {
            return Err(BrokerError::NotWritable { topic: topic.name.clone() }.into());
        }
        for message in call.messages {
            admit::fits(&topic.name, topic.message_type, message)?;
        }
        if let Some(numbers) = call.producer {
            check_window(numbers, call.messages.len())?;
        }
        self.disk.admit()?;
        let _in_flight = self.take_bytes(call.messages)?;
        let mut items = Vec::with_capacity(call.messages.len());
        for (at, message) in call.messages.iter().enumerate() {
            let queue = self.queue_for(topic, message, call.producer.is_some());
            items.push(encode::item(call, at as u64, message, queue)?);
        }
        let proposed = self.raft.propose(call.term, items, call.deadline).await.map_err(BrokerError::from)?;
        if proposed.results.len() != call.messages.len() {
            let detail = format!("{} results for {} messages", proposed.results.len(), call.messages.len());
            return Err(BrokerError::Internal { detail }.into());
        }
        let result = |bytes| {
            let result = decode_result(Some(bytes))?;
            match BrokerError::from_result(&result, &topic.name) {
                Some(error) => Err(error),
                None => {
                    result.message.ok_or_else(|| BrokerError::Internal { detail: "no message result".into() })
                }
            }
        };
        Ok(proposed.results.iter().map(result).collect())
    }

    /// Takes room for the bodies until their commit, or says "busy".
    fn take_bytes(&self, messages: &[v2::Message]) -> Result<SemaphorePermit<'_>, BrokerError> {
        let bytes: usize = messages.iter().map(|message| message.body.len() + 1_024).sum();
        let busy = || BrokerError::Busy {
            what: "bytes of sends in flight",
            value: self.in_flight_max - self.in_flight.available_permits() as u64 + bytes as u64,
            limit: self.in_flight_max,
        };
        let permits = u32::try_from(bytes).map_err(|_| busy())?;
        self.in_flight.try_acquire_many(permits).map_err(|_| busy())
    }

    /// A native producer chose the queue; for the others they take turns.
    fn queue_for(&self, topic: &Topic, message: &v2::Message, native: bool) -> u32 {
        let queues = topic.queues.max(1);
        let asked = message.system_properties.as_ref().and_then(|system| u32::try_from(system.queue_id).ok());
        match asked {
            Some(queue) if native && queue < queues => queue,
            _ => self.turn.fetch_add(1, Ordering::Relaxed) % queues,
        }
    }
}

/// Refuses what apply would refuse for certain, before anything is proposed.
fn check_window(numbers: ProducerNumbers, messages: usize) -> Result<(), BrokerError> {
    let next = numbers.first_sequence.checked_add(messages as u64);
    match next {
        Some(next) if next <= numbers.floor.saturating_add(PRODUCER_WINDOW) => Ok(()),
        _ => Err(BrokerError::SequenceTooFar),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_too_far_above_the_floor_is_refused_before_it_is_proposed() {
        let numbers = ProducerNumbers { producer_id: 1, epoch: 0, floor: 10, first_sequence: 1_033 };
        assert!(check_window(numbers, 1).is_ok());
        assert!(matches!(check_window(numbers, 2), Err(BrokerError::SequenceTooFar)));
        let last = ProducerNumbers { first_sequence: u64::MAX, ..numbers };
        assert!(matches!(check_window(last, 2), Err(BrokerError::SequenceTooFar)));
    }
}
