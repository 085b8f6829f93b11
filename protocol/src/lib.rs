//! Everything that crosses a socket or is kept as bytes.
//!
//! Knows: the RocketMQ 5 protocol, the cluster's own protocols, the payload of log entries, RocketMQ's record
//! layout and the opaque tokens that clients hold. Does not know: files, sockets, Raft, time or randomness.
//! Every decoder here takes bytes from outside: it answers an error, it never panics.

pub mod command;
pub mod convert;
mod error;
pub mod headers;
pub mod message;
pub mod names;
mod reader;
pub mod token;

pub use error::FormatError;

/// Messages, clients and servers of the RocketMQ 5 protocol (`apache.rocketmq.v2`).
#[expect(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes,
    reason = "generated; documented in the .proto files"
)]
pub mod v2 {
    tonic::include_proto!("apache.rocketmq.v2");
}

/// Messages, clients and servers of the cluster's own protocols (`raftmq.cluster.v1`).
#[expect(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes,
    reason = "generated; documented in the .proto files"
)]
pub mod cluster {
    tonic::include_proto!("raftmq.cluster.v1");
}
