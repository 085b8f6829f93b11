//! The one clock. Whoever needs the time is handed a [`Clock`].

use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time.
///
/// An implementation guarantees: `monotonic_ms` never falls and is the same scale for all holders in a process;
/// `wall_ms` may jump in either direction.
pub trait Clock: Send + Sync + Debug {
    /// Unix time in ms.
    fn wall_ms(&self) -> u64;
    /// Time since the process started, ms. Not comparable between processes.
    fn monotonic_ms(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clock.
    #[must_use]
    pub fn new() -> Self {
        start();
        Self
    }

    /// Unix time in ms, for what only shows a time and decides nothing by it.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn wall_now_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        Self::wall_now_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(start().elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves when it is told to. For tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    monotonic: AtomicU64,
}

impl ManualClock {
    /// Shows this wall clock; the monotonic one begins at 0.
    #[must_use]
    pub fn new(wall_ms: u64) -> Self {
        Self { wall: AtomicU64::new(wall_ms), monotonic: AtomicU64::new(0) }
    }

    /// Moves both.
    pub fn advance(&self, ms: u64) {
        self.wall.fetch_add(ms, Ordering::SeqCst);
        self.monotonic.fetch_add(ms, Ordering::SeqCst);
    }

    /// Steps the wall clock alone, as an operator or NTP does.
    pub fn set_wall(&self, wall_ms: u64) {
        self.wall.store(wall_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> u64 {
        self.wall.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        self.monotonic.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_is_of_this_century_and_does_not_fall() {
        let clock = SystemClock::new();
        assert!(clock.wall_ms() > 1_700_000_000_000);
        let first = clock.monotonic_ms();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(clock.monotonic_ms() >= first + 5);
        assert!(SystemClock.monotonic_ms() >= first, "one scale for all holders");
    }

    #[test]
    fn wall_step_leaves_the_monotonic_clock_alone() {
        let clock = ManualClock::new(1_000);
        clock.advance(20);
        clock.set_wall(5);
        clock.advance(1);
        assert_eq!((clock.wall_ms(), clock.monotonic_ms()), (6, 21));
    }
}
