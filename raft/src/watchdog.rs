//! A disk that hangs, watched from outside of Raft's core, which hangs with it (D11).

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_store::StoreError;

use crate::group::Inner;

const LOOK: Duration = Duration::from_millis(250);
/// The oldest unflushed write is this old: somebody else shall lead.
const HAND_OVER: Duration = Duration::from_secs(2);
/// This old: stop answering, so that the others elect.
const SILENCE: Duration = Duration::from_secs(5);
/// This old: the process ends; its sockets would live on in a hung fdatasync.
const END: Duration = Duration::from_secs(10);

/// How long the oldest write has hung, counted in looks: a process that was frozen did not wait for its disk meanwhile.
#[derive(Debug, Default)]
struct Hang {
    write: Option<Instant>,
    age: Duration,
}

impl Hang {
    /// One look, `passed` after the one before; `oldest` is when the oldest unflushed write was issued.
    fn look(&mut self, oldest: Option<Instant>, passed: Duration) -> Duration {
        let same = oldest.is_some() && oldest == self.write;
        self.age = if same { self.age + passed.min(LOOK * 2) } else { Duration::ZERO };
        self.write = oldest;
        self.age
    }
}

/// Runs for the group's whole life.
pub(crate) async fn watch(inner: Arc<Inner>) {
    let (mut hang, mut looked) = (Hang::default(), Instant::now());
    let mut silenced = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(log) = inner.log() else { continue };
        let passed = looked.elapsed();
        looked = Instant::now();
        let age = hang.look(log.oldest_unflushed(), passed);
        // Once out of the network there is no way back but a restart, also when the disk answers again.
        if age > END || (silenced && age < SILENCE) {
            let text = format!("a write was not flushed for {} s", age.max(SILENCE).as_secs());
            let source = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
            inner.fatal.raise_store(&StoreError::io("fdatasync", &inner.config.dir, source));
            return;
        }
        if age > SILENCE && !silenced {
            silenced = true;
            tracing::error!(group = %inner.config.group, "disk hangs for {age:?}: leaving the network");
            inner.endpoint.close();
        } else if age > HAND_OVER && inner.leadership.borrow().me {
            tracing::warn!(group = %inner.config.group, "disk hangs for {age:?}: handing over leadership");
            inner.transfer(None, tokio::time::Instant::now() + LOOK * 4).await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_process_is_no_hanging_disk() {
        let (mut hang, write) = (Hang::default(), Instant::now());
        assert_eq!(hang.look(Some(write), LOOK), Duration::ZERO);
        assert_eq!(hang.look(Some(write), Duration::from_secs(60)), LOOK * 2);
        assert_eq!(hang.look(Some(write), LOOK), LOOK * 3);
        assert_eq!(hang.look(Some(write + LOOK), LOOK), Duration::ZERO);
        assert_eq!(hang.look(None, LOOK), Duration::ZERO);
        assert_eq!(hang.look(None, LOOK), Duration::ZERO);
    }
}
