//! Messages as they lie in the log.
//!
//! ```text
//! body of a message item = record ++ trailer
//!   record   RocketMQ's layout, big-endian                          record.rs, properties.rs
//!   trailer  topic id, incarnation, identity of the send; little-endian  trailer.rs
//! body of a pointer item                                            place.rs
//! ```
//! Always: the record's total size is its first field, so the trailer begins where the record ends; the item's
//! flags say what the trailer holds.

pub mod digest;
pub mod id;
pub mod place;
pub mod properties;
pub mod record;
pub mod send_key;
pub mod tag;
pub mod trailer;

use bytes::Bytes;

pub use place::Place;
pub use record::{Record, RecordBuilder, fill_positions};
pub use trailer::{NativeSend, Origin, Trailer};

use crate::FormatError;

/// Longest body of a message (shipped value; the broker enforces its own setting).
pub const BODY_LIMIT: usize = 4 * 1024 * 1024;

/// A message's item, taken apart. Cheap: both parts share the item's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageItem {
    /// The record, whole and nothing else.
    pub record: Bytes,
    /// What stands behind it.
    pub trailer: Trailer,
}

impl MessageItem {
    /// Takes the body of an item of kind [`crate::command::MESSAGE`] apart. Checks the trailer, and of the record
    /// its size and magic only; [`Record::parse`] checks the rest.
    pub fn parse(body: &Bytes, flags: u8) -> Result<Self, FormatError> {
        let size = record::total_size(body)?;
        let trailer = Trailer::parse(&body[size..], flags)?;
        Ok(Self { record: body.slice(..size), trailer })
    }
}
