//! Processes of a cluster, known by pid and start time: a reused pid is never mistaken for a node.

use std::path::Path;

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A recorded process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot, field 22 of `/proc/PID/stat`.
    pub started: u64,
}

impl Recorded {
    /// Reads `PID STARTTIME` from a node's file; `None` when there is none.
    pub fn read(file: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(file).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    /// True while this very process exists and has not ended.
    pub fn alive(self) -> bool {
        state_of(self.pid).is_some_and(|(state, started)| started == self.started && state != 'Z')
    }

    /// True while it is stopped by a signal.
    pub fn paused(self) -> bool {
        state_of(self.pid).is_some_and(|(state, started)| started == self.started && state == 'T')
    }

    /// Sends a signal; false when the process is gone. The descriptor is opened before the start time is compared,
    /// so the signal cannot hit a later owner of the pid.
    pub fn signal(self, signal: Signal) -> bool {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else { return false };
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        self.alive() && pidfd_send_signal(&descriptor, signal).is_ok()
    }
}

/// State letter and start time; the name in field 2 may contain blanks and brackets.
fn state_of(pid: i32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn sleeping() -> (std::process::Child, Recorded) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep is on every machine");
        let pid = i32::try_from(child.id()).expect("a pid");
        let (_, started) = state_of(pid).expect("just started");
        (child, Recorded { pid, started })
    }

    #[test]
    fn signals_reach_the_recorded_process_only() {
        let (mut child, recorded) = sleeping();
        let other = Recorded { started: recorded.started + 1, ..recorded };
        assert!(!other.alive() && !other.signal(Signal::KILL), "another start time is another process");
        assert!(recorded.alive() && !recorded.paused());
        assert!(recorded.signal(Signal::STOP));
        while !recorded.paused() {
            std::thread::yield_now();
        }
        assert!(recorded.signal(Signal::KILL));
        child.wait().expect("ended by the signal");
        assert!(!recorded.alive() && !recorded.signal(Signal::KILL));
    }
}
