//! State of a broker group: topics, subscription groups, deliveries, producers, and the windows of repeated sends.
//!
//! Everything here follows from the group's log. `machine` decides (no I/O, no clock), `apply` carries out and is the
//! only writer, [`StateView`] is what the rest of the broker sees.

mod apply;
mod catalog;
pub(crate) mod delivery;
mod digest;
mod groups;
pub(crate) mod keys;
mod machine;
mod message;
mod producers;
mod repeats;
mod topics;
mod view;

#[cfg(test)]
mod tests;

pub use apply::{BrokerApply, open, reopen};
pub use catalog::{ChangedTopics, READ, SubscriptionGroup, Topic, WRITE};
pub use delivery::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_PER_QUEUE};
pub use digest::DigestReport;
pub use groups::{DEFAULT_MAX_ATTEMPTS, MAX_RETRY_PAUSES};
pub use keys::{BadState, FAMILIES};
pub use machine::KNOWN_FEATURE_LEVEL;
pub use producers::{MAX_PRODUCERS, PRODUCER_AGE_MS, PRODUCER_WINDOW};
pub use repeats::{MAX_REPEATS, REPEAT_AGE_MS};
pub use topics::{DEFAULT_QUEUES, MAX_QUEUES};
pub use view::StateView;
