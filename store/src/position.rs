//! Positions in the log, the queues and time. They are different types, so that they cannot be mixed up.

use std::fmt;

macro_rules! position {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

position!(
    /// Raft term. Under one leader per term it is also the fencing epoch of that leader.
    Term
);
position!(
    /// Index of a log entry. The first entry of a group has index 0.
    LogIndex
);
position!(
    /// Physical offset in the CommitLog, in bytes from the group's first byte. Equal on all replicas.
    LogOffset
);
position!(
    /// Position in one ConsumeQueue, counted in messages from 0. Names one message for ever.
    QueueOffset
);

/// Names one log entry: under one leader per term, equal ids mean equal logs up to here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Term of the leader that proposed the entry.
    pub term: Term,
    /// Place in the log.
    pub index: LogIndex,
}

impl EntryId {
    /// The entry `index` of the leader of `term`.
    #[must_use]
    pub fn new(term: u64, index: u64) -> Self {
        Self { term: Term(term), index: LogIndex(index) }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}
