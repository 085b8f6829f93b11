//! What a broker answers on its ports. Handlers translate; nothing is decided here but codes.

pub mod admin;
mod admin_queues;
pub mod grpc;
pub mod listener;
pub mod status;
