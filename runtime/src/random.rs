//! The one source of randomness. Whoever needs a random number is handed a [`Random`].

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// A source of random numbers; clones share it.
#[derive(Debug, Clone)]
pub struct Random {
    source: Arc<Mutex<StdRng>>,
}

impl Random {
    /// Seeded by the operating system.
    #[must_use]
    pub fn from_os() -> Self {
        Self { source: Arc::new(Mutex::new(StdRng::from_os_rng())) }
    }

    /// Gives the same numbers each time. For tests and simulation.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { source: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))) }
    }

    /// A number.
    #[must_use]
    pub fn u64(&self) -> u64 {
        self.source.lock().next_u64()
    }

    /// A number below `bound`; 0 if there is none.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        // The product's upper half is even enough: the bounds here are far below 2^64.
        let scaled = (u128::from(self.u64()) * u128::from(bound)) >> 64;
        u64::try_from(scaled).unwrap_or(0)
    }

    /// A random UUID (version 4) as text.
    #[must_use]
    pub fn uuid(&self) -> String {
        let mut bytes = [0; 16];
        self.source.lock().fill_bytes(&mut bytes);
        bytes[6] = bytes[6] & 0x0F | 0x40;
        bytes[8] = bytes[8] & 0x3F | 0x80;
        let hex = format!("{:032x}", u128::from_be_bytes(bytes));
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}

/// The process's own source, for what needs no repetition from a seed.
#[must_use]
pub fn process() -> &'static Random {
    static PROCESS: OnceLock<Random> = OnceLock::new();
    PROCESS.get_or_init(Random::from_os)
}

/// A number of the process's own source.
#[must_use]
pub fn u64() -> u64 {
    process().u64()
}

/// A UUID of the process's own source.
#[must_use]
pub fn uuid() -> String {
    process().uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let numbers = |seed| {
            let random = Random::seeded(seed);
            [random.u64(), random.u64(), random.clone().u64(), random.below(1_000)]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_ne!(u64(), u64());
    }

    #[test]
    fn uuid_has_version_and_variant() {
        let random = Random::seeded(1);
        for _ in 0..100 {
            let uuid = random.uuid();
            assert_eq!(uuid.len(), 36);
            let dashes: Vec<_> = uuid.match_indices('-').map(|(at, _)| at).collect();
            assert_eq!(dashes, [8, 13, 18, 23]);
            assert_eq!(&uuid[14..15], "4");
            assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
        }
        assert_ne!(uuid(), uuid());
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let random = Random::seeded(3);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            seen[usize::try_from(random.below(5)).expect("below 5")] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }
}
