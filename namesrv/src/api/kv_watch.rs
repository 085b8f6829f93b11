//! Streams of changes of settings. A watcher that is slow costs nothing: it reads from the history that all share, and is
//! told when it fell behind that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use mq_protocol::cluster::{KvEntry, KvEvent, WatchKvResponse};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::kv::{SIGN_OF_LIFE, entry_to_wire};
use super::status;
use crate::error::NameError;
use crate::kv::Event;
use crate::node::Node;

/// Streams at a time on one name server.
pub const WATCHERS_MAX: usize = 1_024;
/// Most events in one message.
const EVENTS_MAX: usize = 100;
/// Bytes of values in one message, unless a single event has more.
const BYTES_MAX: usize = 1 << 20;

/// A node without contact has this long to find its leader before it refuses a watcher.
const FIRST_CONTACT: Duration = Duration::from_secs(2);

/// What a watcher asked for.
pub(super) struct Watched {
    /// Empty: all.
    pub namespace: String,
    /// Of the key.
    pub prefix: String,
}

impl Watched {
    fn covers(&self, event: &Event) -> bool {
        let (namespace, key) = &event.name;
        (self.namespace.is_empty() || self.namespace == *namespace) && key.starts_with(&self.prefix)
    }
}

struct Watcher {
    node: Arc<Node>,
    watched: Watched,
    /// Everything up to here was told; `None`: nothing yet, and it begins at the present.
    told: Option<u64>,
    revision: watch::Receiver<u64>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

/// The last message of a stream.
pub(super) fn last(error: &NameError) -> WatchKvResponse {
    WatchKvResponse { result: Some(status::result(&Err(error.clone()))), ..WatchKvResponse::default() }
}

/// The changes behind `after` as they come.
pub(super) fn stream(
    node: Arc<Node>,
    watched: Watched,
    after: Option<u64>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<WatchKvResponse, tonic::Status>> + Send {
    let revision = node.state.revision();
    let watcher = Watcher { node, watched, told: after, revision, ended: false, _place: place };
    futures::stream::unfold((watcher, true), |(mut watcher, first)| async move {
        if watcher.ended {
            return None;
        }
        let message = watcher.next(first).await.unwrap_or_else(|error| {
            watcher.ended = true;
            last(&error)
        });
        Some((Ok(message), (watcher, false)))
    })
}

impl Watcher {
    /// The first message comes at once, so that the watcher knows from where on it is told.
    async fn next(&mut self, first: bool) -> Result<WatchKvResponse, NameError> {
        if !first {
            let told = self.told.unwrap_or_default();
            let news = self.revision.wait_for(|revision| *revision > told);
            if let Ok(Err(_)) = tokio::time::timeout(SIGN_OF_LIFE, news).await {
                return Err(NameError::Stopped);
            }
        }
        if first && self.node.fresh().is_err() {
            // Just started: it has to find its leader first.
            self.node.barrier(Instant::now() + FIRST_CONTACT).await?;
        }
        // Who is cut off must not let its watchers believe that nothing happens.
        self.node.fresh()?;
        self.read()
    }

    fn read(&mut self) -> Result<WatchKvResponse, NameError> {
        let shown = self.node.state.read();
        let after = self.told.unwrap_or(shown.kv.revision());
        let behind = shown.kv.history().behind(after);
        let changes = behind.ok_or_else(|| {
            NameError::NotFound(format!("the changes behind revision {after} are not kept any more"))
        })?;
        let (mut revision, mut bytes) = (after, 0);
        let mut events = VecDeque::new();
        for event in changes {
            let size = event.after.as_ref().map_or(0, |entry| entry.value.len());
            if !events.is_empty() && (events.len() == EVENTS_MAX || bytes + size > BYTES_MAX) {
                break;
            }
            revision = event.revision;
            if self.watched.covers(event) {
                bytes += size;
                events.push_back(to_wire(event));
            }
        }
        self.told = Some(revision);
        Ok(WatchKvResponse { result: None, revision, events: events.into() })
    }
}

fn to_wire(event: &Event) -> KvEvent {
    let (namespace, key) = event.name.clone();
    match &event.after {
        Some(entry) => KvEvent { entry: Some(entry_to_wire(&event.name, entry)), deleted: false },
        None => {
            let entry = KvEntry { namespace, key, revision: event.revision, ..KvEntry::default() };
            KvEvent { entry: Some(entry), deleted: true }
        }
    }
}
