//! What makes a process a good citizen: clock, randomness, settings, logs, metrics, probes, tasks, the way out.
//!
//! Knows nothing of messages, files of the store, or Raft. Clock and randomness are values that are handed down, so
//! that a simulation can hand down its own.

pub mod admin_http;
pub mod clock;
pub mod config_file;
pub mod exit;
pub mod metrics;
pub mod process;
pub mod random;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
