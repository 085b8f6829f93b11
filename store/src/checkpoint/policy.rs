//! When a checkpoint is due.

use std::time::{Duration, Instant};

/// Time between checkpoints while something is applied.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of log applied since the last checkpoint that make the next one due at once.
const LOG_BYTES: u64 = 64 << 20;

/// Says when the next checkpoint is due: every 5 s or 64 MiB of applied log, and never while nothing is applied.
#[derive(Clone, Debug)]
pub struct CheckpointPolicy {
    interval: Duration,
    log_bytes: u64,
    last: Instant,
    applied: u64,
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self::new(INTERVAL, LOG_BYTES)
    }
}

impl CheckpointPolicy {
    /// Another interval and another number of bytes.
    #[must_use]
    pub fn new(interval: Duration, log_bytes: u64) -> Self {
        Self { interval, log_bytes, last: Instant::now(), applied: 0 }
    }

    /// `bytes` of log were applied.
    pub fn applied(&mut self, bytes: u64) {
        self.applied += bytes;
    }

    /// Whether one is due now.
    #[must_use]
    pub fn due(&self) -> bool {
        self.applied >= self.log_bytes || (self.applied > 0 && self.last.elapsed() >= self.interval)
    }

    /// One begins now: it covers everything applied so far.
    pub fn begun(&mut self) {
        self.last = Instant::now();
        self.applied = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_never_due_and_bytes_are_due_at_once() {
        let mut policy = CheckpointPolicy::new(Duration::ZERO, 10);
        assert!(!policy.due(), "nothing was applied");
        policy.applied(1);
        assert!(policy.due(), "the interval is over");
        policy.begun();
        assert!(!policy.due());
        let mut policy = CheckpointPolicy::new(Duration::from_secs(3_600), 10);
        policy.applied(9);
        assert!(!policy.due());
        policy.applied(1);
        assert!(policy.due(), "enough log");
    }
}
