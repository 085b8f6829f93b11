//! Figures of a broker. Names and labels that RocketMQ has keep their meaning (`rocketmq_…`); what a replicated log
//! adds is named `raftmq_…`. Every label value comes from a bounded set: topics and groups that exist, clients that
//! are remembered, fixed words.

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rustc_hash::FxHashSet;

use crate::clients::Clients;
use crate::group::Groups;
use crate::produce::admit;
use crate::state::{SubscriptionGroup, Topic};

/// Longest label value that a client can bring.
const LABEL_CHARS_MAX: usize = 32;
/// What stands for a group that a client names and no broker group of this node has.
const UNKNOWN_GROUP: &str = "unknown";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct In {
    topic: String,
    message_type: &'static str,
    is_system: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Out {
    topic: String,
    consumer_group: String,
    is_system: &'static str,
    is_retry: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Rpc {
    protocol_type: &'static str,
    request_code: &'static str,
    response_code: i32,
    is_long_polling: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Connection {
    consumer_group: String,
    language: String,
    version: String,
    protocol_type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BrokerGroupLabel {
    group: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MemberLabel {
    group: String,
    member: u64,
}

fn size_histogram() -> Histogram {
    Histogram::new([1_024.0, 4_096.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0])
}

fn latency_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.25, 2.0, 18))
}

/// All figures of the process.
#[derive(Debug)]
pub struct Metrics {
    messages_in: Family<In, Counter>,
    bytes_in: Family<In, Counter>,
    message_size: Family<In, Histogram, fn() -> Histogram>,
    messages_out: Family<Out, Counter>,
    bytes_out: Family<Out, Counter>,
    rpc_latency: Family<Rpc, Histogram, fn() -> Histogram>,
    producer_connections: Family<Connection, Gauge>,
    consumer_connections: Family<Connection, Gauge>,
    topics: Gauge,
    subscription_groups: Gauge,
    repeats: Family<BrokerGroupLabel, Counter>,
    in_flight_messages: Family<BrokerGroupLabel, Gauge>,
    uncommitted_bytes: Family<BrokerGroupLabel, Gauge>,
    term: Family<BrokerGroupLabel, Gauge>,
    leader: Family<BrokerGroupLabel, Gauge>,
    last_index: Family<BrokerGroupLabel, Gauge>,
    committed_index: Family<BrokerGroupLabel, Gauge>,
    applied_index: Family<BrokerGroupLabel, Gauge>,
    log_bytes: Family<BrokerGroupLabel, Gauge>,
    disk_used: Gauge,
    member_lag: Family<MemberLabel, Gauge>,
    leader_changes: Family<BrokerGroupLabel, Counter>,
    last_terms: Mutex<Vec<(String, u64)>>,
    used: Mutex<Used>,
}

/// Label sets in use, so that those of deleted topics can be dropped.
#[derive(Debug, Default)]
struct Used {
    ins: FxHashSet<In>,
    outs: FxHashSet<Out>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            messages_in: Family::default(),
            bytes_in: Family::default(),
            message_size: Family::new_with_constructor(size_histogram),
            messages_out: Family::default(),
            bytes_out: Family::default(),
            rpc_latency: Family::new_with_constructor(latency_histogram),
            producer_connections: Family::default(),
            consumer_connections: Family::default(),
            topics: Gauge::default(),
            subscription_groups: Gauge::default(),
            repeats: Family::default(),
            in_flight_messages: Family::default(),
            uncommitted_bytes: Family::default(),
            term: Family::default(),
            leader: Family::default(),
            last_index: Family::default(),
            committed_index: Family::default(),
            applied_index: Family::default(),
            log_bytes: Family::default(),
            disk_used: Gauge::default(),
            member_lag: Family::default(),
            leader_changes: Family::default(),
            last_terms: Mutex::default(),
            used: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Makes the figures visible.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("rocketmq_messages_in", "Messages stored", self.messages_in.clone());
        registry.register("rocketmq_throughput_in", "Bytes of bodies stored", self.bytes_in.clone());
        registry.register("rocketmq_message_size", "Body size in bytes", self.message_size.clone());
        registry.register("rocketmq_messages_out", "Messages delivered", self.messages_out.clone());
        registry.register("rocketmq_throughput_out", "Bytes of bodies delivered", self.bytes_out.clone());
        registry.register("rocketmq_rpc_latency", "Time of a call in ms", self.rpc_latency.clone());
        registry.register(
            "rocketmq_producer_connections",
            "Producers seen lately",
            self.producer_connections.clone(),
        );
        registry.register(
            "rocketmq_consumer_connections",
            "Consumers seen lately",
            self.consumer_connections.clone(),
        );
        registry.register("rocketmq_topic_number", "Topics", self.topics.clone());
        registry.register(
            "rocketmq_consumer_group_number",
            "Subscription groups",
            self.subscription_groups.clone(),
        );
        registry.register(
            "raftmq_repeats",
            "Sends answered with the place of an earlier one",
            self.repeats.clone(),
        );
        registry.register(
            "raftmq_in_flight_messages",
            "Deliveries not settled",
            self.in_flight_messages.clone(),
        );
        registry.register(
            "raftmq_uncommitted_bytes",
            "Bytes proposed, not applied",
            self.uncommitted_bytes.clone(),
        );
        registry.register("raftmq_term", "Newest term seen", self.term.clone());
        registry.register("raftmq_leader", "1 while this member leads", self.leader.clone());
        registry.register("raftmq_last_index", "Last log index here", self.last_index.clone());
        registry.register(
            "raftmq_committed_index",
            "Last committed log index known",
            self.committed_index.clone(),
        );
        registry.register("raftmq_applied_index", "Last applied log index here", self.applied_index.clone());
        registry.register(
            "raftmq_disk_used_percent",
            "Use of the data folder's file system",
            self.disk_used.clone(),
        );
        registry.register("raftmq_log_bytes", "Bytes of the CommitLog", self.log_bytes.clone());
        registry.register(
            "raftmq_member_lag_entries",
            "Entries a member lacks (leader only)",
            self.member_lag.clone(),
        );
        registry.register("raftmq_term_changes", "Terms begun since the start", self.leader_changes.clone());
    }

    /// A message was stored, or answered as a repeat.
    pub fn stored(&self, group: &str, topic: &Topic, message: &v2::Message, repeat: bool) {
        if repeat {
            self.repeats.get_or_create(&BrokerGroupLabel { group: group.to_owned() }).inc();
            return;
        }
        let labels = In {
            topic: mq_protocol::names::resource_key(&topic.namespace, &topic.name),
            message_type: admit::topic_message_type(topic.message_type).as_str_name(),
            is_system: "false",
        };
        let bytes = message.body.len() as u64;
        self.messages_in.get_or_create(&labels).inc();
        self.bytes_in.get_or_create(&labels).inc_by(bytes);
        #[expect(clippy::cast_precision_loss, reason = "bodies are small")]
        self.message_size.get_or_create(&labels).observe(bytes as f64);
        let mut used = self.used.lock();
        if !used.ins.contains(&labels) {
            used.ins.insert(labels);
        }
    }

    /// A message was handed out.
    pub fn delivered(&self, topic: &Topic, group: &str, message: &v2::Message) {
        let attempt = message.system_properties.as_ref().and_then(|system| system.delivery_attempt);
        let labels = Out {
            topic: mq_protocol::names::resource_key(&topic.namespace, &topic.name),
            consumer_group: group.to_owned(),
            is_system: "false",
            is_retry: if attempt.is_some_and(|attempt| attempt > 1) { "true" } else { "false" },
        };
        self.messages_out.get_or_create(&labels).inc();
        self.bytes_out.get_or_create(&labels).inc_by(message.body.len() as u64);
        let mut used = self.used.lock();
        if !used.outs.contains(&labels) {
            used.outs.insert(labels);
        }
    }

    /// A call was answered; code 0 = it failed below the protocol.
    pub fn rpc(&self, rpc: &'static str, code: i32, long_polling: bool, took: Duration) {
        let labels = Rpc {
            protocol_type: "gRPC",
            request_code: rpc,
            response_code: code,
            is_long_polling: if long_polling { "true" } else { "false" },
            result: if code == 0 { "process_request_failed" } else { "success" },
        };
        self.rpc_latency.get_or_create(&labels).observe(took.as_secs_f64() * 1_000.0);
    }

    /// Refreshes what is read rather than counted. Called about every second.
    pub fn refresh(&self, groups: &Groups, clients: &Clients) {
        let mut topics = FxHashSet::default();
        let mut subscription_groups = 0;
        let mut group_names = FxHashSet::default();
        for group in groups.iter() {
            let label = BrokerGroupLabel { group: group.name.clone() };
            if let Ok(open) = group.open() {
                let known = open.view.topics();
                topics.extend(known.iter().map(|t| mq_protocol::names::resource_key(&t.namespace, &t.name)));
                let known = open.view.groups();
                subscription_groups += known.len();
                let name =
                    |g: &Arc<SubscriptionGroup>| mq_protocol::names::resource_key(&g.namespace, &g.name);
                group_names.extend(known.iter().map(name));
                self.in_flight_messages.get_or_create(&label).set(signed(open.view.in_flight()));
            }
            self.refresh_log(group, &label);
        }
        if let Some(group) = groups.iter().next() {
            self.disk_used.set(signed(group.disk.used_percent()));
        }
        self.topics.set(signed(topics.len() as u64));
        self.subscription_groups.set(signed(subscription_groups as u64));
        self.forget_topics(&topics);
        self.refresh_clients(clients, &group_names);
    }

    fn refresh_log(&self, group: &crate::group::BrokerGroup, label: &BrokerGroupLabel) {
        let status = group.raft.status();
        let index = |found: Option<mq_store::LogIndex>| found.map_or(0, |index| index.0);
        self.term.get_or_create(label).set(signed(status.term.0));
        self.leader.get_or_create(label).set(i64::from(status.leader_ready));
        self.last_index.get_or_create(label).set(signed(index(status.last)));
        self.committed_index.get_or_create(label).set(signed(index(status.committed)));
        self.applied_index.get_or_create(label).set(signed(index(status.applied)));
        self.uncommitted_bytes.get_or_create(label).set(signed(status.uncommitted_bytes));
        self.log_bytes.get_or_create(label).set(signed(status.log_end.0.saturating_sub(status.log_start.0)));
        for member in &status.members {
            let label = MemberLabel { group: group.name.clone(), member: member.id };
            match member.matched.filter(|_| status.leader_ready) {
                Some(matched) => {
                    let lag = index(status.last).saturating_sub(matched.0);
                    self.member_lag.get_or_create(&label).set(signed(lag));
                }
                None => {
                    self.member_lag.remove(&label);
                }
            }
        }
        let mut terms = self.last_terms.lock();
        match terms.iter_mut().find(|(name, _)| *name == group.name) {
            Some((_, before)) => {
                self.leader_changes.get_or_create(label).inc_by(status.term.0.saturating_sub(*before));
                *before = status.term.0;
            }
            None => terms.push((group.name.clone(), status.term.0)),
        }
    }

    fn forget_topics(&self, living: &FxHashSet<String>) {
        let mut used = self.used.lock();
        used.ins.retain(|labels| {
            let keep = living.contains(&labels.topic);
            if !keep {
                self.messages_in.remove(labels);
                self.bytes_in.remove(labels);
                self.message_size.remove(labels);
            }
            keep
        });
        used.outs.retain(|labels| {
            let keep = living.contains(&labels.topic);
            if !keep {
                self.messages_out.remove(labels);
                self.bytes_out.remove(labels);
            }
            keep
        });
    }

    fn refresh_clients(&self, clients: &Clients, groups: &FxHashSet<String>) {
        self.producer_connections.clear();
        self.consumer_connections.clear();
        let short = |text: &str| text.chars().take(LABEL_CHARS_MAX).collect::<String>();
        clients.visit(|_, client| {
            let labels = Connection {
                // A label is made of what exists, not of what a client says.
                consumer_group: match client.group.is_empty() || groups.contains(&client.group) {
                    true => client.group.clone(),
                    false => UNKNOWN_GROUP.to_owned(),
                },
                language: short(&client.language),
                version: short(&client.version),
                protocol_type: "gRPC",
            };
            match client.is_consumer() {
                true => self.consumer_connections.get_or_create(&labels).inc(),
                false => self.producer_connections.get_or_create(&labels).inc(),
            };
        });
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
