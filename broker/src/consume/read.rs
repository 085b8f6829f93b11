//! Reads the records of messages that are to be handed out.

use bytes::Bytes;
use mq_protocol::command;
use mq_protocol::message::{MessageItem, Record};
use mq_store::{CommitLog, ItemRead, LogOffset, StoreError};

use crate::error::BrokerError;

/// A stored message.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub record: Bytes,
    pub store_time: u64,
}

impl Stored {
    /// The encoded properties of the record.
    pub(crate) fn properties(&self) -> Result<&[u8], BrokerError> {
        Record::parse(&self.record).map(|record| record.properties).map_err(|error| damaged(&error))
    }
}

fn damaged(error: &dyn std::fmt::Display) -> BrokerError {
    BrokerError::Internal { detail: format!("stored record: {error}") }
}

/// The messages at these places, in this order. What memory does not hold is read on a thread that may wait.
pub(crate) async fn read(log: &CommitLog, places: Vec<LogOffset>) -> Result<Vec<Stored>, BrokerError> {
    let hot: Vec<Option<ItemRead>> = places.iter().map(|place| log.read_item_hot(*place)).collect();
    let items = if hot.iter().all(Option::is_some) {
        hot.into_iter().flatten().collect()
    } else {
        let log = log.clone();
        let cold = move || -> Result<Vec<ItemRead>, StoreError> {
            let items = places.iter().zip(hot);
            items.map(|(place, item)| item.map_or_else(|| log.read_item(*place), Ok)).collect()
        };
        let reading = tokio::task::spawn_blocking(cold).await;
        reading.map_err(|error| BrokerError::Internal { detail: format!("reading thread: {error}") })??
    };
    items.into_iter().map(stored).collect()
}

fn stored(item: ItemRead) -> Result<Stored, BrokerError> {
    if item.kind != command::MESSAGE {
        let detail = format!("a unit points to an item of kind {}", command::kind_name(item.kind));
        return Err(BrokerError::Internal { detail });
    }
    let message = MessageItem::parse(&item.body, item.flags).map_err(|error| damaged(&error))?;
    Ok(Stored { record: message.record, store_time: item.store_time })
}
