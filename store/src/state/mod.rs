//! The ordered key-value state that `apply` works on.
//!
//! What always holds: the changes of a [`WriteBatch`] and the applied entry in it are written together, so the state
//! always shows exactly the log up to [`applied`]. It is not durable by itself: a restart begins with the newest
//! checkpoint ([`StateStore`](crate::StateStore)) and applies the log behind it again.
//!
//! Beside the families named by the owner there is one more, kept here:
//!
//! ```text
//! family `store`: "applied"    -> term u64, index u64, big-endian
//!                 "membership" -> bytes as given by the owner
//! ```

mod batch;
mod memory;
#[cfg(feature = "rocksdb")]
mod rocks;

pub use batch::{Change, WriteBatch};
pub use memory::MemoryState;
pub(crate) use memory::read_all;
#[cfg(feature = "rocksdb")]
pub use rocks::RocksState;

use std::fmt;
use std::path::Path;

use crate::{EntryId, StoreError};

/// Name of the family that belongs to the store.
pub const STORE_FAMILY: &str = "store";
pub(crate) const APPLIED: &[u8] = b"applied";
pub(crate) const MEMBERSHIP: &[u8] = b"membership";

/// Ordered keys and values in a fixed list of families.
///
/// An implementation must guarantee: keys are ordered as bytes; a write is seen whole or not at all by any single
/// `get` or `scan`; a checkpoint shows exactly the writes that returned before it began.
pub trait State: Send + Sync + fmt::Debug {
    /// The value of `key`.
    fn get(&self, family: usize, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Visits the keys in `from..to` (to the end without `to`) in order, until `visit` says false. `visit` must not
    /// call back into the state.
    fn scan(
        &self,
        family: usize,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError>;

    /// Makes all changes or none. Lost by a restart unless a checkpoint follows.
    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError>;

    /// Writes the present state into the folder `path`, which must not exist yet, and syncs every file in it and the
    /// folder itself. Only the writing thread calls it.
    fn checkpoint(&self, path: &Path) -> Result<(), StoreError>;

    /// Number of families that the owner named; the store's own one has this index.
    fn families(&self) -> usize;
}

/// The newest entry whose effects are in the state.
pub fn applied(state: &dyn State) -> Result<Option<EntryId>, StoreError> {
    let Some(bytes) = state.get(state.families(), APPLIED)? else { return Ok(None) };
    decode_applied(&bytes).map(Some)
}

/// The bytes of the newest applied membership frame.
pub fn membership(state: &dyn State) -> Result<Option<Vec<u8>>, StoreError> {
    state.get(state.families(), MEMBERSHIP)
}

pub(crate) fn encode_applied(id: EntryId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.term.0.to_be_bytes());
    bytes[8..].copy_from_slice(&id.index.0.to_be_bytes());
    bytes
}

fn decode_applied(bytes: &[u8]) -> Result<EntryId, StoreError> {
    let Ok(bytes) = <[u8; 16]>::try_from(bytes) else {
        let found = format!("{} bytes", bytes.len());
        return Err(StoreError::corrupt(Path::new(STORE_FAMILY), 0, "an applied entry of 16 bytes", found));
    };
    let number = u128::from_be_bytes(bytes);
    Ok(EntryId::new((number >> 64) as u64, number as u64))
}

/// The writes of a batch that go into the store's own family.
pub(crate) fn own_changes(batch: &WriteBatch) -> impl Iterator<Item = (&'static [u8], Vec<u8>)> {
    let applied = batch.applied().map(|id| (APPLIED, encode_applied(id).to_vec()));
    let membership = batch.membership().map(|bytes| (MEMBERSHIP, bytes.to_vec()));
    applied.into_iter().chain(membership)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applied_entry_round_trips() {
        let id = EntryId::new(u64::MAX - 1, 1 << 40);
        assert_eq!(decode_applied(&encode_applied(id)).expect("16 bytes"), id);
        decode_applied(b"short").expect_err("a damaged entry is not index 0");
    }
}
