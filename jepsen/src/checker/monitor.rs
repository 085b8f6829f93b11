//! What the nodes said about themselves.
//!
//! | finding | promise |
//! |---|---|
//! | `two-leaders` | a term of a group has at most one leader |
//! | `term-falls` | the term of a node never falls, also across restarts |
//! | `applied-ahead` | a node applies what is committed, never more |
//! | `divergence` | digests of all members are equal after the heal |
//! | `recovery` | the cluster is whole again within the limit after the heal |
//! | `crash` | no process ends that was not killed |

use std::collections::BTreeMap;

use super::{Finding, is_role};
use crate::history::record::{Call, Record};

/// One walk over the remarks.
pub fn check(records: &[Record]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut leaders: BTreeMap<(&str, u64), (&str, u64)> = BTreeMap::new();
    let mut terms: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    let mut ahead: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for record in records.iter().filter(|record| is_role(record.p)) {
        match &record.call {
            Call::Status(status) => {
                let (group, node) = (status.group.as_str(), status.node.as_str());
                if status.leads {
                    let (first, at) = *leaders.entry((group, status.term)).or_insert((node, record.i));
                    if first != node {
                        let text = format!("{group}: {first} and {node} both lead term {}", status.term);
                        findings.push(Finding::new("two-leaders", text, [at, record.i]));
                    }
                }
                let (term, at) = terms.insert((group, node), (status.term, record.i)).unwrap_or_default();
                if status.term < term {
                    let text = format!("{group}: the term of {node} falls from {term} to {}", status.term);
                    findings.push(Finding::new("term-falls", text, [at, record.i]));
                }
                // An answer is not one instant: what was applied must be committed in the next one.
                let (applied, at) =
                    ahead.insert((group, node), (status.applied, record.i)).unwrap_or_default();
                if applied > status.committed && status.applied >= applied {
                    let text =
                        format!("{group}: {node} applied {applied} with {} committed", status.committed);
                    findings.push(Finding::new("applied-ahead", text, [at, record.i]));
                }
            }
            Call::Digest(digest) if !digest.difference.is_empty() => {
                let text = format!("{}: members differ: {}", digest.group, digest.difference);
                findings.push(Finding::new("divergence", text, [record.i]));
            }
            Call::Phase(phase) if phase.name.starts_with("failed") => {
                findings.push(Finding::new("recovery", phase.name.clone(), [record.i]));
            }
            Call::Fault(fault) if fault.step == "crash" => {
                let text = format!("{} ended by itself: {}", fault.node, fault.detail);
                findings.push(Finding::new("crash", text, [record.i]));
            }
            _ => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::checker::testing::{Script, names};
    use crate::history::record::{Call, Digest, Fault, Phase, Role, Status};

    fn status(node: &str, term: u64, leads: bool) -> Call {
        progress(node, term, leads, 9, 9)
    }

    fn progress(node: &str, term: u64, leads: bool, committed: u64, applied: u64) -> Call {
        let (node, group) = (node.into(), "broker-a".into());
        Call::Status(Status { node, group, term, leads, committed, applied })
    }

    fn found(remarks: impl IntoIterator<Item = Call>) -> Vec<&'static str> {
        let mut script = Script::new(&["g"]);
        for remark in remarks {
            script.remark(Role::Monitor, remark);
        }
        names(&script)
    }

    #[test]
    fn leaders_of_different_terms_are_fine() {
        assert_eq!(found([status("b1", 1, true), status("b2", 2, true), status("b1", 2, false)]), [""; 0]);
    }

    #[test]
    fn two_leaders_of_one_term_are_found() {
        assert_eq!(found([status("b1", 1, true), status("b2", 1, true)]), ["two-leaders"]);
    }

    #[test]
    fn a_falling_term_is_found() {
        assert_eq!(found([status("b1", 3, false), status("b1", 2, false)]), ["term-falls"]);
    }

    #[test]
    fn applying_ahead_is_found() {
        let lagging = [progress("b1", 1, true, 8, 9), progress("b1", 1, true, 9, 9)];
        assert_eq!(found(lagging), [""; 0]);
        let ahead = [progress("b1", 1, true, 7, 9), progress("b1", 1, true, 8, 9)];
        assert_eq!(found(ahead), ["applied-ahead"]);
    }

    #[test]
    fn different_digests_failed_recovery_and_crashes_are_found() {
        let digest = |difference: &str| {
            let (group, difference) = ("broker-a".into(), difference.into());
            Call::Digest(Digest { group, index: 9, members: 3, difference })
        };
        assert_eq!(found([digest("")]), [""; 0]);
        assert_eq!(found([digest("b2: queue 1/1/0")]), ["divergence"]);
        let phase = Phase { name: "failed: no leader within 60 s".into() };
        assert_eq!(found([Call::Phase(phase)]), ["recovery"]);
        let fault = Fault {
            class: "none".into(),
            target: "none".into(),
            node: "b1".into(),
            step: "crash".into(),
            bit: None,
            detail: "pid 7".into(),
        };
        assert_eq!(found([Call::Fault(fault)]), ["crash"]);
    }
}
