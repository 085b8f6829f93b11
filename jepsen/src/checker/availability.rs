//! How long clients waited, and for what: measured, not promised by this suite.

use std::collections::BTreeMap;

use super::coverage::{leader_changes, time_of};
use crate::history::record::{Call as Values, Record};
use crate::history::{Call, Outcome};

/// Lines for people: the longest pause per function in the main phase with the faults inside it, fault counts.
pub fn notes(records: &[Record], calls: &[Call], functions: &[&str]) -> Vec<String> {
    let from = time_of(records, "main").unwrap_or(0);
    let to = time_of(records, "heal").unwrap_or(u64::MAX);
    let mut lines = Vec::new();
    for function in functions {
        let mut ends: Vec<u64> = calls
            .iter()
            .filter(|call| call.outcome == Outcome::Ok && call.values.function() == *function)
            .filter_map(|call| call.end)
            .filter(|end| (from..to).contains(end))
            .collect();
        ends.sort_unstable();
        if let Some((begin, end)) = longest_gap(&ends) {
            let faults = faults_between(records, begin.saturating_sub(2_000_000_000), end);
            let length = seconds(end - begin);
            let at = seconds(begin - from);
            lines.push(format!(
                "longest time without an OK {function}: {length} s, {at} s after the start{faults}"
            ));
        }
    }
    let mut faults: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for record in records {
        if let Values::Fault(fault) = &record.call
            && let Some(bit) = fault.bit
        {
            let counts = faults.entry(format!("{}@{}", fault.class, fault.target)).or_default();
            counts.0 += 1;
            counts.1 += u64::from(bit);
        }
    }
    for (name, (tried, bit)) in faults {
        lines.push(format!("fault {name}: {tried}, of these {bit} bit"));
    }
    lines.push(format!("leader changes of broker groups: {}", leader_changes(records)));
    lines
}

/// The longest pause between two neighbours of a sorted list.
pub fn longest_gap(sorted: &[u64]) -> Option<(u64, u64)> {
    sorted.windows(2).map(|pair| (pair[0], pair[1])).max_by_key(|(begin, end)| end - begin)
}

fn faults_between(records: &[Record], from: u64, to: u64) -> String {
    let mut text = String::new();
    for record in records.iter().filter(|record| (from..=to).contains(&record.t)) {
        if let Values::Fault(fault) = &record.call
            && fault.step == "start"
        {
            text.push_str(if text.is_empty() { "; faults near: " } else { ", " });
            text.push_str(&format!("{} {} ({})", fault.class, fault.node, fault.target));
        }
    }
    text
}

fn seconds(ns: u64) -> String {
    format!("{}.{:02}", ns / 1_000_000_000, ns % 1_000_000_000 / 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::longest_gap;

    #[test]
    fn the_longest_gap_is_between_neighbours() {
        assert_eq!(longest_gap(&[1, 4, 20, 22]), Some((4, 20)));
        assert_eq!(longest_gap(&[7]), None);
    }
}
