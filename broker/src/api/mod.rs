//! What a broker answers on its ports. Handlers translate; nothing is decided here but codes.

pub mod admin;
pub mod grpc;
pub mod listener;
pub mod status;
