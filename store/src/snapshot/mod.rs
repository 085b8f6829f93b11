//! A snapshot that replaces what a member has: how it gets from the staging folder into its place.

mod install;

pub use install::{Install, finish_install, install};
