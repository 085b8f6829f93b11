//! Scenarios of whole groups, one per file, in one program (linking it once is what a test costs here).

mod bit_rot;
mod bootstrap;
mod clocks;
mod divergence;
mod failover;
mod fences;
mod hanging_disk;
mod idle;
mod leader_restore;
mod load;
mod members;
mod power_cut;
mod restart_in_place;
mod single_node;
mod storage_suite;
mod three_nodes;
