//! When this node was last in contact with the name group's leader and its majority.
//!
//! A node that is cut off goes on answering routes from its last state for a while, then refuses them, so that clients
//! ask somebody else (D21). Contact is proven by a read barrier, not by what this node believes of the leader.

use std::sync::atomic::{AtomicU64, Ordering};

const NEVER: u64 = u64::MAX;

/// The last proof of contact.
#[derive(Debug)]
pub struct Contact {
    limit_ms: u64,
    last_ms: AtomicU64,
}

impl Contact {
    /// Routes are refused when the last proof is older than `limit_ms`.
    #[must_use]
    pub fn new(limit_ms: u64) -> Self {
        Self { limit_ms, last_ms: AtomicU64::new(NEVER) }
    }

    /// A barrier that began at `began_ms` succeeded.
    pub fn proven(&self, began_ms: u64) {
        self.last_ms.store(began_ms, Ordering::Release);
    }

    /// Milliseconds since the last proof; `None` = never.
    #[must_use]
    pub fn age_ms(&self, now_ms: u64) -> Option<u64> {
        match self.last_ms.load(Ordering::Acquire) {
            NEVER => None,
            last => Some(now_ms.saturating_sub(last)),
        }
    }

    /// Whether routes may be answered from the local state.
    #[must_use]
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        self.age_ms(now_ms).is_some_and(|age| age < self.limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_ages() {
        let contact = Contact::new(100);
        assert!(!contact.is_fresh(0), "never proven");
        assert_eq!(contact.age_ms(5), None);
        contact.proven(10);
        assert!(contact.is_fresh(109));
        assert!(!contact.is_fresh(110));
    }
}
