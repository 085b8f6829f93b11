//! Which broker groups the name leader has heard of lately. Soft state: it is empty after a change of leader, and a
//! group that is silent from then on is lost one whole time-out later, not at once.

use std::collections::BTreeMap;

use mq_protocol::cluster::NameLost;
use mq_store::Term;
use parking_lot::Mutex;

use crate::route_table::RouteTable;

#[derive(Debug, Default)]
struct Heard {
    term: Term,
    /// When this node began to lead, by the monotonic clock.
    since_ms: u64,
    /// Only groups of the table, so it is bounded as that is.
    at_ms: BTreeMap<String, u64>,
}

/// Signs of life of broker groups, on the name leader.
#[derive(Debug)]
pub struct Liveness {
    lost_after_ms: u64,
    heard: Mutex<Heard>,
}

impl Liveness {
    /// A group that is silent for `lost_after_ms` is lost.
    #[must_use]
    pub fn new(lost_after_ms: u64) -> Self {
        Self { lost_after_ms, heard: Mutex::default() }
    }

    /// This node leads in `term`. In a new term everybody gets a whole time-out to report.
    pub fn lead(&self, term: Term, now_ms: u64) {
        let mut heard = self.heard.lock();
        if heard.term != term {
            *heard = Heard { term, since_ms: now_ms, at_ms: BTreeMap::new() };
        }
    }

    /// The leader of a group reported itself.
    pub fn heard(&self, group: &str, now_ms: u64) {
        let mut heard = self.heard.lock();
        match heard.at_ms.get_mut(group) {
            Some(at_ms) => *at_ms = now_ms,
            None => drop(heard.at_ms.insert(group.to_owned(), now_ms)),
        }
    }

    /// Milliseconds since a group was heard of in the present term; `None` = never.
    #[must_use]
    pub fn silent_ms(&self, group: &str, now_ms: u64) -> Option<u64> {
        self.heard.lock().at_ms.get(group).map(|at_ms| now_ms.saturating_sub(*at_ms))
    }

    /// What to propose in `term`: the groups of the table that are silent for too long and not lost yet.
    #[must_use]
    pub fn overdue(&self, term: Term, table: &RouteTable, now_ms: u64) -> Vec<NameLost> {
        let heard = self.heard.lock();
        if heard.term != term {
            return Vec::new();
        }
        let silent = |name: &str| {
            let last = heard.at_ms.get(name).copied().unwrap_or(heard.since_ms);
            now_ms.saturating_sub(last) >= self.lost_after_ms
        };
        let records = table.groups().map(|group| group.record());
        let overdue = records.filter(|record| !record.lost && silent(&record.broker_group));
        overdue
            .map(|record| NameLost {
                broker_group: record.broker_group.clone(),
                group_uuid: record.group_uuid.clone(),
                term: record.term,
                applied_index: record.applied_index,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use mq_protocol::cluster::NameReport;

    use super::*;

    fn table(groups: &[&str]) -> RouteTable {
        let mut table = RouteTable::default();
        for group in groups {
            table.apply_report(&NameReport {
                broker_group: (*group).into(),
                group_uuid: "uuid".into(),
                term: 1,
                ..NameReport::default()
            });
        }
        table
    }

    fn overdue(liveness: &Liveness, term: u64, table: &RouteTable, now_ms: u64) -> Vec<String> {
        liveness.overdue(Term(term), table, now_ms).into_iter().map(|lost| lost.broker_group).collect()
    }

    #[test]
    fn a_silent_group_is_lost_after_the_time_out() {
        let (liveness, table) = (Liveness::new(100), table(&["a", "b"]));
        liveness.lead(Term(1), 1_000);
        liveness.heard("a", 1_050);
        assert_eq!(overdue(&liveness, 1, &table, 1_099), [""; 0]);
        assert_eq!(overdue(&liveness, 1, &table, 1_100), ["b"], "not heard of since the election");
        assert_eq!(overdue(&liveness, 1, &table, 1_150), ["a", "b"]);
        liveness.heard("a", 1_160);
        assert_eq!(overdue(&liveness, 1, &table, 1_170), ["b"]);
        assert_eq!(liveness.silent_ms("a", 1_170), Some(10));
        assert_eq!(liveness.silent_ms("b", 1_170), None);
    }

    #[test]
    fn a_new_leader_gives_everybody_a_whole_time_out() {
        let (liveness, table) = (Liveness::new(100), table(&["a"]));
        liveness.lead(Term(1), 0);
        liveness.heard("a", 10);
        assert_eq!(overdue(&liveness, 2, &table, 5_000), [""; 0], "not of this term");
        liveness.lead(Term(2), 5_000);
        liveness.lead(Term(2), 5_050);
        assert_eq!(overdue(&liveness, 2, &table, 5_099), [""; 0]);
        assert_eq!(overdue(&liveness, 2, &table, 5_100), ["a"]);
    }

    #[test]
    fn a_lost_group_is_not_lost_again() {
        let (liveness, mut table) = (Liveness::new(100), table(&["a"]));
        liveness.lead(Term(1), 0);
        let lost = liveness.overdue(Term(1), &table, 200);
        table.apply_lost(&lost[0]);
        assert_eq!(overdue(&liveness, 1, &table, 300), [""; 0]);
    }
}
