//! Changes that become visible together.

use crate::EntryId;

/// One change of a [`WriteBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Sets a key.
    Put {
        /// Index into the families that the store was opened with.
        family: usize,
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// Removes a key; removing what is not there does nothing.
    Delete {
        /// Index into the families that the store was opened with.
        family: usize,
        /// The key.
        key: &'a [u8],
    },
}

#[derive(Clone, Copy, Debug)]
struct Op {
    family: u32,
    start: u32,
    key_len: u32,
    value_len: Option<u32>,
}

/// Changes that [`State::write`](super::State::write) makes all or none of, together with the applied entry.
///
/// Keys and values lie in one buffer, so that a batch of thousands of small changes costs a few allocations.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    ops: Vec<Op>,
    applied: Option<EntryId>,
    membership: Option<Vec<u8>>,
}

impl WriteBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` of `family` to `value`.
    ///
    /// # Panics
    ///
    /// When the batch grows past 4 GiB. A batch is one apply call, whose frames are bounded by far less.
    pub fn put(&mut self, family: usize, key: &[u8], value: &[u8]) {
        let value_len = Some(length(value.len()));
        self.push(family, key, value_len);
        self.bytes.extend_from_slice(value);
    }

    /// Removes `key` from `family`.
    ///
    /// # Panics
    ///
    /// As [`WriteBatch::put`].
    pub fn delete(&mut self, family: usize, key: &[u8]) {
        self.push(family, key, None);
    }

    fn push(&mut self, family: usize, key: &[u8], value_len: Option<u32>) {
        self.ops.push(Op {
            family: length(family),
            start: length(self.bytes.len()),
            key_len: length(key.len()),
            value_len,
        });
        self.bytes.extend_from_slice(key);
    }

    /// Notes the newest entry whose effects are in this batch: the C of a checkpoint.
    pub fn set_applied(&mut self, id: EntryId) {
        self.applied = Some(id);
    }

    /// Notes the stored bytes of the newest applied membership frame.
    pub fn set_membership(&mut self, bytes: &[u8]) {
        self.membership = Some(bytes.to_vec());
    }

    /// The entry set by [`WriteBatch::set_applied`].
    #[must_use]
    pub fn applied(&self) -> Option<EntryId> {
        self.applied
    }

    /// The bytes set by [`WriteBatch::set_membership`].
    #[must_use]
    pub fn membership(&self) -> Option<&[u8]> {
        self.membership.as_deref()
    }

    /// Whether writing it would change nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.applied.is_none() && self.membership.is_none()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number of puts and deletes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Forgets everything but keeps the allocations.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
        self.applied = None;
        self.membership = None;
    }

    /// The changes in the order in which they were added; of two changes of a key the later one counts.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.ops.iter().map(|op| {
            let key_end = op.start as usize + op.key_len as usize;
            let key = &self.bytes[op.start as usize..key_end];
            let family = op.family as usize;
            match op.value_len {
                Some(len) => Change::Put { family, key, value: &self.bytes[key_end..key_end + len as usize] },
                None => Change::Delete { family, key },
            }
        })
    }
}

fn length(value: usize) -> u32 {
    u32::try_from(value).expect("a batch holds less than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_in_order() {
        let mut batch = WriteBatch::new();
        assert!(batch.is_empty());
        batch.put(1, b"a", b"value");
        batch.delete(0, b"gone");
        batch.put(1, b"", b"");
        assert_eq!(
            batch.changes().collect::<Vec<_>>(),
            vec![
                Change::Put { family: 1, key: b"a", value: b"value" },
                Change::Delete { family: 0, key: b"gone" },
                Change::Put { family: 1, key: b"", value: b"" },
            ]
        );
        batch.clear();
        assert!(batch.is_empty());
        batch.set_applied(EntryId::new(3, 9));
        assert!(!batch.is_empty(), "an applied entry alone is a change");
    }
}
