//! Namespaces, switch and file systems of the sandbox: everything that needs root.

pub mod disk;
pub mod sandbox;
pub mod switch;

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Runs a tool of the system to its end; what it prints to its error output goes into the error.
pub fn tool<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    ensure!(
        output.status.success(),
        "{program} {}: {}: {}",
        words.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
