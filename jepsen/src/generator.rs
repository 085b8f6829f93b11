//! Seeded streams: content and schedule repeat for a seed, timing does not.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// A stream of random numbers of one part of a run.
pub fn stream(seed: u64, name: &str) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize().into())
}

/// A pause of an open loop: exponential around a mean, at most ten times it.
pub fn pause(random: &mut ChaCha8Rng, mean: Duration) -> Duration {
    let uniform: f64 = random.random_range(0.000_05..1.0);
    mean.mul_f64((-uniform.ln()).min(10.0))
}

/// Process number of worker k: goes on as k + concurrency × m after an unknown outcome.
#[derive(Debug, Clone)]
pub struct ProcessNumber {
    current: u64,
    step: u64,
}

impl ProcessNumber {
    /// For worker `worker` of `concurrency`.
    pub fn new(worker: u64, concurrency: u64) -> Self {
        Self { current: worker, step: concurrency }
    }

    /// The present number.
    pub fn get(&self) -> u64 {
        self.current
    }

    /// Gives the present number up.
    pub fn retire(&mut self) {
        self.current += self.step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_a_function_of_seed_and_name() {
        let numbers = |seed, name: &str| -> Vec<u32> {
            let mut random = stream(seed, name);
            (0..4).map(|_| random.random()).collect()
        };
        assert_eq!(numbers(7, "worker-1"), numbers(7, "worker-1"));
        assert_ne!(numbers(7, "worker-1"), numbers(7, "worker-2"));
        assert_ne!(numbers(7, "worker-1"), numbers(8, "worker-1"));
    }

    #[test]
    fn retired_numbers_of_different_workers_never_meet() {
        let mut seen = std::collections::BTreeSet::new();
        for worker in 0..5 {
            let mut number = ProcessNumber::new(worker, 5);
            for _ in 0..20 {
                assert!(seen.insert(number.get()));
                number.retire();
            }
        }
    }
}
