//! Room on the file system of the data folder. Above the mark sends are refused, before anything fails to be written;
//! acks, changes and deletions go on in the room that is kept for them. Below the mark sends go on by themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::BrokerError;

/// Pause between two looks at the file system.
const EVERY: Duration = Duration::from_secs(1);

/// How full the file system is, and from when on sends are refused.
#[derive(Debug)]
pub struct DiskRoom {
    refuse_percent: u64,
    used_percent: AtomicU64,
}

impl DiskRoom {
    /// Refuses sends from that share of use on. Nothing is measured yet: empty.
    pub fn new(refuse_percent: u64) -> Self {
        Self { refuse_percent, used_percent: AtomicU64::new(0) }
    }

    /// Share in use when it was last measured.
    pub fn used_percent(&self) -> u64 {
        self.used_percent.load(Ordering::Relaxed)
    }

    /// Busy when a send would take room that is kept for what makes room.
    pub fn admit(&self) -> Result<(), BrokerError> {
        let (value, limit) = (self.used_percent(), self.refuse_percent);
        if value < limit {
            return Ok(());
        }
        Err(BrokerError::Busy { what: "use of the data folder's file system in percent", value, limit })
    }

    fn measured(&self, used_percent: u64) {
        let before = self.used_percent.swap(used_percent, Ordering::Relaxed);
        let limit = self.refuse_percent;
        match (before >= limit, used_percent >= limit) {
            (false, true) => tracing::error!(used_percent, limit, "disk nearly full: sends are refused"),
            (true, false) => tracing::info!(used_percent, limit, "disk has room again: sends go on"),
            _ => {}
        }
    }

    /// Measures once. A file system that does not answer keeps its last value.
    pub fn measure(&self, data: &Path) {
        match used_percent(data) {
            Ok(used) => self.measured(used),
            Err(error) => tracing::warn!(path = %data.display(), %error, "room on disk is not known"),
        }
    }

    /// Measures every second, on a thread that may wait, until the process stops.
    pub async fn watch(self: Arc<Self>, data: PathBuf, stop: CancellationToken) {
        while tokio::time::timeout(EVERY, stop.cancelled()).await.is_err() {
            let (room, data) = (Arc::clone(&self), data.clone());
            let measuring = tokio::task::spawn_blocking(move || room.measure(&data));
            tokio::select! {
                // A file system that hangs is the log watchdog's matter; only one thread waits for it here.
                _ = measuring => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// As `df` shows it: of what this process could use, rounded up.
fn used_percent(data: &Path) -> std::io::Result<u64> {
    let found = rustix::fs::statvfs(data)?;
    let used = found.f_blocks.saturating_sub(found.f_bfree);
    Ok(percent(used, used.saturating_add(found.f_bavail)))
}

fn percent(used: u64, usable: u64) -> u64 {
    if usable == 0 {
        return 100;
    }
    let percent = (u128::from(used) * 100).div_ceil(u128::from(usable));
    u64::try_from(percent).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_refused_from_the_mark_on_and_go_on_below_it() {
        let room = DiskRoom::new(90);
        assert!(room.admit().is_ok());
        room.measured(89);
        assert!(room.admit().is_ok());
        room.measured(90);
        let refused = room.admit().expect_err("at the mark");
        assert!(matches!(refused, BrokerError::Busy { value: 90, limit: 90, .. }), "{refused}");
        room.measured(89);
        assert!(room.admit().is_ok());
    }

    #[test]
    fn a_share_is_rounded_up_and_nothing_usable_is_full() {
        assert_eq!([percent(0, 10), percent(1, 1_000), percent(899, 1_000), percent(1, 1)], [0, 1, 90, 100]);
        assert_eq!(percent(0, 0), 100);
    }

    #[test]
    fn a_real_file_system_is_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        let used = used_percent(folder.path()).expect("it answers");
        assert!((1..=100).contains(&used), "{used}");
        let room = DiskRoom::new(99);
        room.measure(Path::new("/nowhere/at/all"));
        assert_eq!(room.used_percent(), 0, "no answer changes nothing");
    }
}
