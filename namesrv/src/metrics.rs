//! Figures of a name server.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::node::Node;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Code {
    code: i32,
}

/// Counters and gauges; clones share them.
#[derive(Clone, Debug, Default)]
pub struct NameMetrics {
    reports: Family<Code, Counter>,
    route_queries: Family<Code, Counter>,
    term: Gauge,
    leads: Gauge,
    applied: Gauge,
    committed: Gauge,
    groups: Gauge,
    lost_groups: Gauge,
    topics: Gauge,
    contact_age_ms: Gauge,
}

impl NameMetrics {
    /// Registers all of them.
    pub fn register(&self, registry: &mut Registry) {
        let Self {
            reports,
            route_queries,
            term,
            leads,
            applied,
            committed,
            groups,
            lost_groups,
            topics,
            contact_age_ms,
        } = self.clone();
        registry.register(
            "raftmq_name_reports",
            "Registrations and keep-alives answered here, by code",
            reports,
        );
        registry.register("raftmq_name_route_queries", "Route queries answered here, by code", route_queries);
        registry.register("raftmq_name_term", "Newest Raft term seen", term);
        registry.register("raftmq_name_leads", "1 while this node leads the name group", leads);
        registry.register("raftmq_name_applied_index", "Newest applied log index", applied);
        registry.register("raftmq_name_committed_index", "Newest log index known to be committed", committed);
        registry.register("raftmq_name_broker_groups", "Registered broker groups", groups);
        registry.register(
            "raftmq_name_broker_groups_lost",
            "Of those, not heard of for the time-out",
            lost_groups,
        );
        registry.register("raftmq_name_topics", "Topics that have a route", topics);
        let help = "ms since the last proven contact with the leader and its majority; -1 = never";
        registry.register("raftmq_name_contact_age_ms", help, contact_age_ms);
    }

    /// A report was answered.
    pub fn reported(&self, code: i32) {
        self.reports.get_or_create(&Code { code }).inc();
    }

    /// A route query was answered.
    pub fn routed(&self, code: i32) {
        self.route_queries.get_or_create(&Code { code }).inc();
    }

    /// Takes over what the node shows.
    pub(crate) fn show(&self, node: &Node) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let status = node.raft.status();
        self.term.set(number(status.term.0));
        self.leads.set(i64::from(status.leader_ready));
        self.applied.set(number(status.applied.map_or(0, |index| index.0)));
        self.committed.set(number(status.committed.map_or(0, |index| index.0)));
        self.contact_age_ms.set(node.contact.age_ms(node.now_ms()).map_or(-1, number));
        let shown = node.state.read();
        self.groups.set(number(shown.table.groups().count() as u64));
        self.lost_groups.set(number(shown.table.groups().filter(|group| group.record().lost).count() as u64));
        self.topics.set(number(shown.table.topic_count() as u64));
    }
}
