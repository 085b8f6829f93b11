//! Groups of several members in one process, over loopback, with faults: for the tests of this crate and of others.

mod cluster;
mod compare;
mod map_state;
mod suite;

pub use cluster::{Cluster, Member, Options};
pub use compare::{Difference, common_log};
pub use map_state::{AppliedLog, MapState};
pub use suite::storage_suite;
