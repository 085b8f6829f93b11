//! What apply needs to know of a message, read from its item.

use mq_protocol::message::properties::{self, name};
use mq_protocol::message::tag::tag_hash;
use mq_protocol::message::{MessageItem, NativeSend, Origin, Record};
use mq_store::QueueId;
use mq_store::item::ItemView;

/// A message as far as apply looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub queue: QueueId,
    pub size: u32,
    pub tag_hash: i64,
    /// How its repeat is recognised.
    pub origin: Origin,
}

/// The numbers of a native producer that a repeat is judged by.
pub(crate) type Numbered = NativeSend;

/// Reads the facts; an item that is no message is refused with the reason.
pub(crate) fn read(item: &ItemView) -> Result<Facts, String> {
    let message = MessageItem::parse(&item.body, item.flags).map_err(|error| error.to_string())?;
    let record = Record::parse(&message.record).map_err(|error| error.to_string())?;
    Ok(Facts {
        queue: QueueId::new(message.trailer.topic_id, message.trailer.incarnation, record.queue_id),
        size: message.record.len() as u32,
        tag_hash: tag_hash(properties::find(record.properties, name::TAGS)),
        origin: message.trailer.origin,
    })
}
