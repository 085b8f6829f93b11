//! The name server: which broker groups there are, who leads them, which topics they hold.
//!
//! Knows the registry protocol, the route table and the name group's log. Does not know messages, queues or what a
//! broker does with them; it talks to brokers over `mq-protocol` only.

pub mod command;
pub mod route_table;
