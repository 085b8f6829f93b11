//! Scenarios over real sockets and files, one per file; one program, because each program links RocksDB.

mod bad_input;
mod data_folder;
mod dev_node;
mod disk;
mod leadership;
mod process;
mod queues;
mod restart;
mod support;
mod telemetry;
mod three_brokers;
