//! What the rest of the broker may know of a broker group's state.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use mq_store::{CommitLog, EntryId, QueueId, QueueTable};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::catalog::{Catalog, ChangedTopics, SubscriptionGroup, Topic};
use super::delivery::Deliveries;
use super::digest::{DigestReport, Digests};
use crate::dispatch::Arrivals;

/// Read side of the state. Cheap to clone. Shows what is applied here, which may be behind the leader. Goes on showing
/// it when the state is opened again under it.
#[derive(Clone)]
pub struct StateView(Arc<ArcSwap<Shared>>);

/// What apply and its readers share; apply alone writes.
pub(crate) struct Shared {
    pub log: CommitLog,
    pub queues: QueueTable,
    pub catalog: Arc<RwLock<Catalog>>,
    pub deliveries: Arc<Mutex<Deliveries>>,
    pub arrivals: Arc<Arrivals>,
    pub digests: Arc<Digests>,
    pub applied: Mutex<EntryId>,
    pub topics_changed: Arc<watch::Sender<u64>>,
}

impl fmt::Debug for StateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateView").field("applied", &self.applied()).finish_non_exhaustive()
    }
}

impl StateView {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(Arc::new(ArcSwap::new(shared)))
    }

    /// Shows another opened state from now on, and tells everybody who waits to look again.
    pub(crate) fn swap(&self, shared: Arc<Shared>) {
        let applied = shared.applied.lock().index.0;
        let (arrivals, topics_changed) = (Arc::clone(&shared.arrivals), Arc::clone(&shared.topics_changed));
        self.0.store(shared);
        topics_changed.send_replace(applied);
        arrivals.ring_all();
    }

    /// The living topic of that name.
    #[must_use]
    pub fn topic(&self, namespace: &str, name: &str) -> Option<Arc<Topic>> {
        self.shared().catalog.read().topic(namespace, name)
    }

    /// The living topic of that id.
    #[must_use]
    pub fn topic_by_id(&self, id: u32) -> Option<Arc<Topic>> {
        self.shared().catalog.read().topic_by_id(id)
    }

    /// All living topics, by namespace and name.
    #[must_use]
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        self.shared().catalog.read().topics()
    }

    /// All living topics and the log index of their last change, from one moment; at first, the index of what was
    /// applied when the state was opened.
    #[must_use]
    pub fn topics_with_index(&self) -> (u64, Vec<Arc<Topic>>) {
        self.shared().catalog.read().topics_with_index()
    }

    /// The living subscription group of that name.
    #[must_use]
    pub fn group(&self, namespace: &str, name: &str) -> Option<Arc<SubscriptionGroup>> {
        self.shared().catalog.read().group(namespace, name)
    }

    /// The living subscription group of that id.
    #[must_use]
    pub fn group_by_id(&self, id: u32) -> Option<Arc<SubscriptionGroup>> {
        self.shared().catalog.read().group_by_id(id)
    }

    /// All living subscription groups, by namespace and name.
    #[must_use]
    pub fn groups(&self) -> Vec<Arc<SubscriptionGroup>> {
        self.shared().catalog.read().groups()
    }

    /// First and next offset of a queue, as consumers see it.
    #[must_use]
    pub fn queue_range(&self, queue: QueueId) -> (u64, u64) {
        let (min, next) = self.shared().queues.range(queue);
        (min.0, next.0)
    }

    /// The newest entry whose effects are visible; 0-0 before the first.
    #[must_use]
    pub fn applied(&self) -> EntryId {
        *self.shared().applied.lock()
    }

    /// Log index of the last change of a topic.
    #[must_use]
    pub fn topics_index(&self) -> u64 {
        self.shared().catalog.read().topics_index()
    }

    /// What changed behind that index; `None` when it is too long ago.
    #[must_use]
    pub fn topics_changed_behind(&self, index: u64) -> Option<ChangedTopics> {
        self.shared().catalog.read().topics_changed_behind(index)
    }

    /// Changes after topics did; what they are then says [`StateView::topics_with_index`].
    #[must_use]
    pub fn topics_changed(&self) -> watch::Receiver<u64> {
        self.shared().topics_changed.subscribe()
    }

    /// Messages in flight in all subscription groups.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.shared().deliveries.lock().total()
    }

    /// The digests of a mark, when this member has applied it and computed them. The last four are kept.
    #[must_use]
    pub fn digest(&self, mark: u64) -> Option<DigestReport> {
        self.shared().digests.report(mark)
    }

    /// What is shown now. Kept for one use only: a clone of it would show an old state, and hold its log open.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.0.load_full()
    }
}
