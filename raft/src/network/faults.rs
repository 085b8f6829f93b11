//! Faults of the links of this process, for tests: everything sent to a member can be held back or delayed.
//!
//! A cut link behaves like a network that drops packets: nothing is lost for ever, nothing arrives before the link
//! is whole again, and only deadlines tell.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::NodeId;

/// Faults by receiver.
#[derive(Debug, Default)]
pub struct Faults {
    any: AtomicBool,
    links: Mutex<BTreeMap<NodeId, Link>>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    cut: bool,
    delay: Duration,
}

impl Faults {
    /// Waits until something sent to `to` would leave.
    pub(crate) async fn pass(&self, to: NodeId) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let link = self.links.lock().get(&to).copied().unwrap_or_default();
            if !link.cut {
                if !link.delay.is_zero() {
                    tokio::time::sleep(link.delay).await;
                }
                return;
            }
            changed.await;
        }
    }
}

#[cfg(feature = "testkit")]
impl Faults {
    /// Nothing sent to `to` arrives any more.
    pub fn cut(&self, to: NodeId) {
        self.change(to, |link| link.cut = true);
    }

    /// Everything sent to `to` arrives this much later.
    pub fn delay(&self, to: NodeId, delay: Duration) {
        self.change(to, |link| link.delay = delay);
    }

    /// All links work again.
    pub fn heal(&self) {
        self.links.lock().clear();
        self.any.store(false, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn change(&self, to: NodeId, change: impl FnOnce(&mut Link)) {
        change(self.links.lock().entry(to).or_default());
        self.any.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}
