//! What the API reads: the route table with the stamp of the entry that it shows, and the digests of marks.

use std::sync::Arc;

use mq_protocol::cluster::Stamp;
use mq_store::EntryId;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use crate::digest::Digests;
use crate::kv::KvTable;
use crate::route_changes::RouteChanges;
use crate::route_table::RouteTable;

/// The table together with the newest applied entry.
#[derive(Debug, Default)]
pub struct Shown {
    /// Who is there.
    pub table: RouteTable,
    /// Which routes changed lately.
    pub(crate) changes: RouteChanges,
    /// Settings.
    pub kv: KvTable,
    /// Newest entry whose effects are in the table.
    pub applied: Option<EntryId>,
}

impl Shown {
    /// Orders states of the name group.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let applied = self.applied.unwrap_or_default();
        Stamp { term: applied.term.0, index: applied.index.0 }
    }
}

/// Read side of the state machine, empty until that has opened. A clone is cheap and shows the same.
#[derive(Clone, Debug, Default)]
pub struct NameState {
    shown: Arc<RwLock<Shown>>,
    digests: Arc<Digests>,
    /// Revision of the settings that `shown` has.
    revision: Arc<watch::Sender<u64>>,
}

impl NameState {
    /// The present table. Do not hold it across an await: the state machine waits for it.
    pub fn read(&self) -> RwLockReadGuard<'_, Shown> {
        self.shown.read()
    }

    /// Digests taken at marks.
    #[must_use]
    pub fn digests(&self) -> &Arc<Digests> {
        &self.digests
    }

    /// Changes after the settings did.
    #[must_use]
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Changes tables and stamp as one.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Shown) -> T) -> T {
        let (done, revision) = {
            let mut shown = self.shown.write();
            (change(&mut shown), shown.kv.revision())
        };
        self.revision.send_if_modified(|known| std::mem::replace(known, revision) != revision);
        done
    }
}
