//! Client of a RaftMQ cluster: producers, consumers, administration.
//!
//! Knows: the RocketMQ 5 protocol as a client speaks it, broker groups and their leaders, what an answer says about
//! a call's outcome. Does not know: any server crate; files; how a group replicates.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use mq_client::{Client, FilterExpression, Message};
//! use std::time::Duration;
//!
//! let client = Client::builder().brokers(["127.0.0.1:8081"]).build()?;
//! let receipt = client.producer().build()?.send(Message::new("demo", "hello")).await?;
//! println!("stored at offset {}", receipt.offset);
//!
//! let consumer = client.simple_consumer("readers").subscribe("demo", FilterExpression::all()).build()?;
//! for message in consumer.receive(16, Duration::from_secs(30), Duration::from_secs(5)).await? {
//!     consumer.ack(&message).await?;
//! }
//! # Ok(())
//! # }
//! ```

mod address;
pub mod admin;
mod client;
mod connection;
mod consumer;
mod core;
mod error;
mod group;
mod identity;
mod message;
mod outcome;
mod producer;
mod pursuit;
mod route;

pub use client::{Client, ClientBuilder};
pub use consumer::{RECEIVE_BATCH_MAX, SimpleConsumer, SimpleConsumerBuilder};
pub use error::{AckError, Cause, ConfigError, InvalidMessage, NotStored, ReceiveError, SendError};
pub use message::{
    BODY_BYTES_MAX, FilterExpression, Message, MessageView, PROPERTIES_MAX, PROPERTY_BYTES_MAX,
};
pub use producer::{Producer, ProducerBuilder, SendReceipt};

/// Runs a task of the client's own; its end is reported through what it owns, so nobody waits for the task.
fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    mq_runtime::tasks::spawn(name, task);
}
