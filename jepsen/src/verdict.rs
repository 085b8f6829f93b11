//! How a run ends: a report on paper and an exit code.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::checker::{Report, Verdict};
use crate::history::History;

/// Every promise held and enough happened.
pub const VALID: u8 = 0;
/// A promise is broken.
pub const INVALID: u8 = 1;
/// Not enough happened to say so.
pub const UNKNOWN: u8 = 2;
/// An error in the suite itself.
pub const HARNESS_FAILURE: u8 = 3;
/// Wrong use of the command line.
pub const WRONG_USE: u8 = 64;

/// Exit code of a verdict.
pub fn exit_code(verdict: Verdict) -> ExitCode {
    ExitCode::from(match verdict {
        Verdict::Valid => VALID,
        Verdict::Invalid => INVALID,
        Verdict::Unknown => UNKNOWN,
    })
}

/// The report for people; the verdict comes last, the command that repeats the run before it.
pub fn summary(history: &History, report: &Report) -> String {
    let mut text = String::new();
    let counts: Vec<_> = report.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let _ = writeln!(text, "calls    {}", counts.join("  "));
    for note in &report.notes {
        let _ = writeln!(text, "note     {note}");
    }
    for missing in &report.missing {
        let _ = writeln!(text, "missing  {missing}");
    }
    for finding in report.findings.iter().take(20) {
        let _ = writeln!(text, "finding  {finding}");
    }
    if report.findings.len() > 20 {
        let _ = writeln!(text, "finding  … and {} more", report.findings.len() - 20);
    }
    let _ = writeln!(text, "repeat   {}", history.header.command);
    let word = match report.verdict {
        Verdict::Valid => "valid",
        Verdict::Invalid => "INVALID",
        Verdict::Unknown => "unknown",
    };
    let (findings, missing) = (report.findings.len(), report.missing.len());
    let _ = write!(
        text,
        "verdict  {word} ({} records, {findings} findings, {missing} missing)",
        history.records.len()
    );
    text
}
