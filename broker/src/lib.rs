//! `mqbroker`: one or more broker groups in one process. Each group is one Raft group whose log is the CommitLog.
//!
//! Knows: messages, topics, subscription groups, clients, the leader's duties, how other nodes are asked. Does not
//! know: how entries are replicated (`mq_raft`), how bytes reach the disk (`mq_store`), the name servers' state.
//!
//! The way of a message: [`api`] translates, [`produce`] admits and encodes, the log replicates, [`state`] applies
//! and [`dispatch`] makes it visible, [`consume`] hands it out.

// Handlers nest: a call, its forwarding, the client of the generated code.
#![recursion_limit = "256"]

pub mod api;
pub mod clients;
pub mod config;
pub mod consume;
pub mod disk;
pub mod dispatch;
pub mod error;
pub mod forward;
pub mod group;
pub mod metrics;
pub mod produce;
pub mod ready;
pub mod refusal;
pub mod registration;
pub mod routes;
mod server;
pub mod state;

pub use config::{Config, ConfigError};
pub use server::{Broker, Deps, StartError};
