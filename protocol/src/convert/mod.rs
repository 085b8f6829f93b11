//! Between a message of the protocol and a record of the log.
//!
//! | message | record |
//! |---|---|
//! | message id, tag, keys | UNIQ_KEY, TAGS, KEYS (joined by a space) |
//! | message group, trace context, born host | `__SHARDINGKEY`, TRACE_CONTEXT, `__BORNHOST` |
//! | delivery timestamp, recovery duration | TIMER_DELIVER_MS, CHECK_IMMUNITY_TIME_IN_SECONDS |
//! | priority, lite topic | `__PRIORITY`, `__LITE_TOPIC` |
//! | message type | not stored: follows from the properties, and TRAN_MSG for transactions |
//! | encoding GZIP | system flag bit 0; the body stays as it came |
//! | born timestamp | born timestamp, ms |
//!
//! Always: what the client set comes back equal, but for times below a millisecond and durations below a second;
//! user properties and system properties never mix.

mod check;
mod deliver;
mod send;
mod time;

pub use check::{MessageLimits, check_message};
pub use deliver::{Delivery, deliver};
pub use send::{Arrival, EncodedMessage, content_type, encode_message, encode_record};
pub use time::{duration, timestamp, timestamp_ms};

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
