//! Members talk to each other here: three connections per peer (control, append, bulk), one listener per process for
//! all its groups. Every message names its group, sender and receiver; every wait has a deadline.

pub(crate) mod client;
pub(crate) mod convert;
pub(crate) mod endpoint;
pub(crate) mod faults;
pub(crate) mod local;
pub(crate) mod peers;
pub(crate) mod presence;
mod server;
pub(crate) mod transport;

/// Largest message between nodes: a frame of 8 MiB and what goes with it.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
