//! The library against stand-in nodes: who is asked, what is repeated, what an outcome says.

mod batching;
mod receive;
mod send;
mod standin;
