//! What the demonstration prints: a line per step, or one JSON object per step.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::faults::Killed;
use super::judge::{Judgement, Outcome, Sent};
use super::receive::Received;
use crate::cluster::Cluster;
use crate::history::record::Digest;

/// Prints steps.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    json: bool,
}

impl Printer {
    /// For people, or for programs.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    fn line(self, step: &str, text: &str, value: Value) {
        if self.json {
            println!("{}", json!({ "step": step, "value": value }));
        } else {
            println!("{step:<8} {text}");
        }
    }

    /// All processes run, leaders are there and registered.
    pub fn started(self, cluster: &Cluster, name_leader: &str, leader: &str, took: Duration) {
        let list = |nodes: &[(String, String)], leader: &str| -> String {
            let star = |node: &str| if node == leader { format!("{node}*") } else { node.to_owned() };
            nodes.iter().map(|(node, _)| star(node)).collect::<Vec<_>>().join(" ")
        };
        let text = format!(
            "name servers {}   {} {}   clients {}   {:.1} s",
            list(&cluster.names, name_leader),
            crate::setup::BROKER_GROUP,
            list(&cluster.brokers, leader),
            cluster.clients.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(","),
            took.as_secs_f64()
        );
        let value = json!({ "name_leader": name_leader, "leader": leader, "seconds": took.as_secs_f64() });
        self.line("start", &text, value);
    }

    /// The topic is there.
    pub fn topic(self, topic: &str, queues: u32, group: &str) {
        let value = json!({ "topic": topic, "queues": queues, "broker_group": group });
        self.line("topic", &format!("{topic}, {queues} queues in {group}"), value);
    }

    /// All outcomes are known.
    pub fn sent(self, sent: &[Sent], took: Duration, file: &Path) {
        let confirmed = sent.iter().filter(|sent| matches!(sent.outcome, Outcome::Confirmed { .. }));
        let mut times: Vec<u64> = confirmed.map(|sent| sent.end - sent.begin).collect();
        times.sort_unstable();
        let quantile = |percent: usize| -> f64 {
            let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            Duration::from_nanos(times.get(at).copied().unwrap_or(0)).as_secs_f64() * 1_000.0
        };
        let (p50, p99) = (quantile(50), quantile(99));
        let text = format!(
            "{} lines of {}, {} confirmed (on disk on a majority)   p50 {p50:.1} ms  p99 {p99:.1} ms   {:.1} s",
            sent.len(),
            file.display(),
            times.len(),
            took.as_secs_f64()
        );
        let value = json!({ "lines": sent.len(), "confirmed": times.len(), "p50_ms": p50, "p99_ms": p99,
            "seconds": took.as_secs_f64() });
        self.line("send", &text, value);
    }

    /// A leader was killed.
    pub fn killed(self, kill: &Killed) {
        let text = format!(
            "{} (leader of {} in term {}, pid {}, SIGKILL, {} sends in flight)   new leader {} (term {}) after {:.2} s",
            kill.node,
            kill.group,
            kill.term,
            kill.pid,
            kill.in_flight,
            kill.successor,
            kill.successor_term,
            kill.after.as_secs_f64()
        );
        let value = json!({ "node": kill.node, "group": kill.group, "term": kill.term, "in_flight": kill.in_flight,
            "successor": kill.successor, "successor_term": kill.successor_term, "seconds": kill.after.as_secs_f64() });
        self.line("kill", &text, value);
    }

    /// The killed nodes are back.
    pub fn restarted(self, killed: &[Killed], took: Duration) {
        let nodes: Vec<&str> = killed.iter().map(|kill| kill.node.as_str()).collect();
        let text = format!(
            "{} again, everything applied on all nodes   {:.1} s",
            nodes.join(" "),
            took.as_secs_f64()
        );
        self.line("restart", &text, json!({ "nodes": nodes, "seconds": took.as_secs_f64() }));
    }

    /// Everything came, or did not.
    pub fn received(self, judgement: &Judgement, received: &Received, lines: usize, took: Duration) {
        let text = format!(
            "{} of {lines} confirmed   lost {}   invented {}   reordered {}   duplicates {} (allowed)   {:.1} s",
            judgement.confirmed,
            judgement.lost,
            judgement.invented,
            judgement.reordered,
            judgement.duplicates,
            took.as_secs_f64()
        );
        let mut value = json!(judgement);
        if let Some(map) = value.as_object_mut() {
            map.insert("unsettled".into(), json!(received.unsettled));
            map.insert("repeated_calls".into(), json!(received.repeated_calls));
        }
        self.line("receive", &text, value);
        if let Some((length, _)) = judgement.longest_gap {
            let seconds = Duration::from_nanos(length).as_secs_f64();
            let text = format!("longest time between two confirmed sends: {seconds:.3} s");
            self.line("gap", &text, json!({ "seconds": seconds }));
        }
    }

    /// The replicas were compared.
    pub fn digest(self, digest: &Digest, members: usize) {
        let text = if digest.difference.is_empty() {
            format!("{} of {members} replicas identical up to index {}", digest.members, digest.index)
        } else {
            format!("replicas differ: {}", digest.difference)
        };
        self.line("check", &text, json!(digest));
    }

    /// Something that makes the verdict bad, or explains it.
    pub fn problem(self, text: &str) {
        self.line("problem", text, json!(text));
    }

    /// The last line.
    pub fn end(self, passed: bool, dir: &Path, hold: bool) {
        let word = if passed { "PASS" } else { "FAIL" };
        let text = if hold {
            format!("running in {}   stop: deploy/cluster.sh down --dir {}", dir.display(), dir.display())
        } else {
            format!("kept in {}   again: make demo   look around: make demo DEMO_ARGS=--hold", dir.display())
        };
        self.line(word, &text, json!({ "passed": passed, "folder": dir.display().to_string() }));
    }
}
