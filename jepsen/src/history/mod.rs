//! What clients saw, as JSON lines: a header, records, a footer.

pub mod call;
pub mod file;
pub mod record;

pub use call::{Call, Outcome};
pub use file::{History, HistoryError, Recorder};
