//! The name server: which broker groups there are, who leads them, which topics they hold.
//!
//! Knows the registry protocol, the route table and the name group's log. Does not know messages, queues or what a
//! broker does with them; it talks to brokers over `mq-protocol` only.
//!
//! The way of a registration: `api/report.rs` (checked, sent to the leader) → `node.rs` (proposed) →
//! `state_machine.rs` (applied on every member) → `route_table.rs` (decides). Look-ups read `name_state.rs`.

mod api;
pub mod command;
mod config;
mod contact;
pub mod digest;
mod error;
pub mod kv;
mod liveness;
mod metrics;
pub mod name_state;
mod node;
mod peers;
mod route_changes;
pub mod route_table;
mod server;
pub mod state_machine;
mod watch;

pub use config::{
    Config, Limits, LogSection, MemberSection, NameSection, TimerProfile, TimersSection, Unusable,
};
pub use server::{Deps, NameServer, StartError};
