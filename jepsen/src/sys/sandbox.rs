//! The sandbox: a program as the first process of private mount, network and pid namespaces. However it
//! dies, the kernel removes its processes, mounts and networks.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::tool;

/// Set inside; its value is the pid outside, so that a variable left over in a shell is not believed.
const INSIDE: &str = "MQJEPSEN_SANDBOX";
/// Run-time folder: a fresh memory file system, not seen outside.
pub const RUN: &str = "/run";

/// True in the sandbox: the variable is set and this is the first process of its pid namespace.
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some() && std::process::id() == 1
}

/// A command that runs a program as the first process of new namespaces; the program calls [`furnish`] first.
pub fn command(program: &Path) -> anyhow::Result<Command> {
    ensure!(rustix::process::geteuid().is_root(), "the sandbox needs root: namespaces, mounts, loop devices");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.arg(program).env(INSIDE, std::process::id().to_string());
    Ok(command)
}

/// Makes mounts private, [`RUN`] empty and loopback usable.
pub fn furnish() -> anyhow::Result<()> {
    ensure!(inside(), "this is not the first process of a sandbox");
    tool("mount", &["--make-rprivate", "/"])?;
    tool("mount", &["-t", "tmpfs", "-o", "size=6g,mode=755", "mqjepsen", RUN])?;
    tool("ip", &["link", "set", "lo", "up"])?;
    std::fs::create_dir_all(Path::new(RUN).join("netns")).context("folder of the network namespaces")
}
