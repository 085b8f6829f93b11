//! Did enough happen to call a run without findings valid?

use std::collections::{BTreeMap, BTreeSet};

use crate::history::record::{Call as Values, Fault, Record};
use crate::history::{Call, History, Outcome};

const OK_IN_MAIN: u64 = 50;
const OK_IN_FINAL: u64 = 20;
const FAULTS_PER_CLASS: u64 = 2;
const LEADER_CHANGES: usize = 2;
const PLANNED_SHARE: f64 = 0.6;

/// True when the run read everything back.
pub fn drained(history: &History) -> bool {
    time_of(&history.records, "drained").is_some()
}

/// When a phase began.
pub fn time_of(records: &[Record], phase: &str) -> Option<u64> {
    records.iter().find(|r| matches!(&r.call, Values::Phase(p) if p.name == phase)).map(|r| r.t)
}

/// Everything that is missing, in words.
pub fn missing(history: &History, calls: &[Call], functions: &[&str]) -> Vec<String> {
    let records = &history.records;
    let mut missing = Vec::new();
    let heal = time_of(records, "heal").unwrap_or(u64::MAX);
    let last = time_of(records, "final").unwrap_or(u64::MAX);
    for (phase, least) in [("main", OK_IN_MAIN), ("final", OK_IN_FINAL)] {
        for function in functions {
            let in_phase =
                |call: &&Call| if phase == "main" { call.start < heal } else { call.start >= last };
            let counted = calls.iter().filter(|call| call.outcome == Outcome::Ok).filter(in_phase);
            let ok = counted.filter(|call| call.values.function() == *function).count() as u64;
            if ok < least {
                missing.push(format!("{ok} OK of {function} in phase {phase}, at least {least} are needed"));
            }
        }
    }
    missing.extend(missing_faults(history));
    let sends = calls.iter().filter(|c| c.start < heal && c.values.function() == "send").count();
    #[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
    let share = sends as f64 / history.header.planned_sends.max(1) as f64;
    if share < PLANNED_SHARE {
        missing.push(format!("only {:.0} % of the planned sends were issued", share * 100.0));
    }
    if history.footer.as_ref().is_none_or(|footer| footer.end != "complete") {
        missing.push("the run did not come to its end".into());
    }
    missing
}

fn missing_faults(history: &History) -> Vec<String> {
    let mut missing = Vec::new();
    let faults: Vec<&Fault> = history
        .records
        .iter()
        .filter_map(|record| match &record.call {
            Values::Fault(fault) => Some(fault),
            _ => None,
        })
        .collect();
    for class in &history.header.faults {
        let bit = faults.iter().filter(|f| &f.class == class && f.bit == Some(true)).count() as u64;
        if bit < FAULTS_PER_CLASS {
            missing.push(format!("fault {class} bit {bit} times, at least {FAULTS_PER_CLASS} are needed"));
        }
    }
    missing.extend(
        faults
            .iter()
            .filter(|f| f.step == "skip")
            .map(|fault| format!("fault {} on {} was skipped: {}", fault.class, fault.target, fault.detail)),
    );
    if faults.iter().any(|fault| fault.target == "leader") {
        let changes = leader_changes(&history.records);
        if changes < LEADER_CHANGES {
            missing.push(format!("{changes} leader changes, at least {LEADER_CHANGES} are needed"));
        }
    }
    missing
}

/// Leaders of broker groups that were seen after the first of their group.
pub fn leader_changes(records: &[Record]) -> usize {
    let mut leaders: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for record in records {
        if let Values::Status(status) = &record.call
            && status.leads
            && status.group != "name"
        {
            leaders.entry(&status.group).or_default().insert(status.term);
        }
    }
    leaders.values().map(|terms| terms.len().saturating_sub(1)).sum()
}

#[cfg(test)]
mod tests {
    use crate::checker::testing::Script;
    use crate::checker::{Verdict, check};
    use crate::history::record::{Call, Fault, Footer, Phase, Role, Status};

    fn phase(name: &str) -> Call {
        Call::Phase(Phase { name: name.into() })
    }

    fn fault(step: &str, bit: Option<bool>) -> Call {
        let (class, target) = ("kill".into(), "leader".into());
        Call::Fault(Fault { class, target, node: "b1".into(), step: step.into(), bit, detail: String::new() })
    }

    fn leader(term: u64) -> Call {
        let (node, group) = ("b1".into(), "broker-a".into());
        Call::Status(Status { node, group, term, leads: true, committed: 1, applied: 1 })
    }

    fn run(main: u64, last: u64, bits: u64, terms: u64) -> (Verdict, Vec<String>) {
        let mut script = Script::new(&["g"]);
        script.remark(Role::Harness, phase("main"));
        for _ in 0..bits {
            script.remark(Role::Nemesis, fault("probe", Some(true)));
        }
        for term in 1..=terms {
            script.remark(Role::Monitor, leader(term));
        }
        let calls = |script: &mut Script, from: u64, count: u64| {
            for n in from..from + count {
                let mid = format!("m{n}");
                script.sent(&mid, 0, n).delivered("g", &mid, 0, n, 1).acked("g", &mid);
            }
        };
        calls(&mut script, 0, main);
        script.remark(Role::Harness, phase("heal")).remark(Role::Harness, phase("final"));
        calls(&mut script, main, last);
        script.remark(Role::Harness, phase("drained"));
        let mut history = script.history();
        history.header.faults = vec!["kill".into()];
        history.header.planned_sends = 60;
        let (records, end) = (history.records.len() as u64, "complete".into());
        history.footer = Some(Footer { records, duration_ns: 0, end, sha256: String::new() });
        let report = check(&history).expect("a script keeps the rules");
        (report.verdict, report.missing)
    }

    #[test]
    fn a_run_that_did_enough_is_valid() {
        assert_eq!(run(60, 20, 2, 3), (Verdict::Valid, Vec::new()));
    }

    #[test]
    fn a_run_that_never_hit_its_fault_is_no_pass() {
        let (verdict, missing) = run(60, 20, 1, 3);
        assert_eq!(verdict, Verdict::Unknown);
        assert_eq!(missing, ["fault kill bit 1 times, at least 2 are needed"]);
    }

    #[test]
    fn too_few_calls_or_leader_changes_are_no_pass() {
        let (verdict, missing) = run(30, 19, 2, 2);
        assert_eq!(verdict, Verdict::Unknown);
        let expected = ["OK of send in phase main", "OK of send in phase final", "50 %", "1 leader changes"];
        for text in expected {
            assert!(missing.iter().any(|line| line.contains(text)), "{text} in {missing:?}");
        }
    }
}
