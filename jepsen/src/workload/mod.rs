//! Load on a cluster, taken down as a history. A file per workload.

pub mod queue;
