//! The fault suite: drives a real cluster (real binaries, real sockets, real files), injects faults, takes down
//! what clients saw, and decides afterwards whether the promises were kept.
//!
//! Knows: the protocols, the deploy script, signals. Does not know: any server crate; it never links them. The
//! checkers know neither time nor I/O and can judge a history from anywhere.

pub mod body;
pub mod checker;
pub mod cluster;
pub mod demo;
pub mod gaps;
pub mod generator;
pub mod history;
pub mod nemesis;
pub mod run;
pub mod setup;
pub mod sys;
pub mod verdict;
pub mod wire;
pub mod workload;
