//! Exit codes of the servers.

use std::process::ExitCode;

/// Why a server process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Asked to.
    Done,
    /// Something failed that has no code of its own.
    Failed,
    /// Wrong use, or settings that cannot be used.
    Config,
    /// A write or a sync failed; restart after looking at the disk.
    Disk,
    /// Damaged data, or a replica that differs.
    Damage,
    /// The data folder belongs to another cluster, group or node, or was emptied.
    Identity,
}

impl Exit {
    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Config => 2,
            Self::Disk => 70,
            Self::Damage => 71,
            Self::Identity => 72,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_never_change() {
        let all = [Exit::Done, Exit::Failed, Exit::Config, Exit::Disk, Exit::Damage, Exit::Identity];
        assert_eq!(all.map(Exit::code), [0, 1, 2, 70, 71, 72]);
    }
}
