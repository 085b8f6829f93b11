//! The library against stand-in nodes: who is asked, what is repeated, what an outcome says.

mod batching;
#[cfg(feature = "cli")]
mod cli;
mod receive;
mod send;
mod standin;
