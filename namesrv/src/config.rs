//! Settings of `mqnamesrv`: plain data, checked once by [`Config::validate`] before anything is opened.

use std::path::PathBuf;

use mq_raft::{GroupConfig, Limits as RaftLimits, MemberConfig, Role, Timers};
use mq_runtime::config_file::in_range;
use serde::Deserialize;

/// Name of the one Raft group of the name servers; also of its folder.
pub const GROUP: &str = "name";

/// All settings of one name server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Name of the cluster; the same on every name server and broker. Must be set.
    pub cluster: String,
    /// Name of this node; one of `name.members`. Must be set.
    pub node: String,
    /// Data folder; one process at a time. Must be set.
    pub data: PathBuf,
    /// Brokers, administrators and clients speak gRPC here. Default 0.0.0.0:9876.
    pub api_listen: String,
    /// Raft between name servers. Default 0.0.0.0:9878.
    pub raft_listen: String,
    /// `/metrics`, `/livez` and `/readyz`. Default 0.0.0.0:9879.
    pub metrics_listen: String,
    /// The name servers.
    pub name: NameSection,
    /// Raft timers.
    pub timers: TimersSection,
    /// Bounds; exceeding one is a named error at the caller.
    pub limits: Limits,
    /// The Raft log. Fixed for the group at its birth.
    pub log: LogSection,
}

/// `[name]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NameSection {
    /// All name servers in the order that gives them their ids 1…n; the same list on each of them.
    pub members: Vec<MemberSection>,
}

/// One name server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSection {
    /// Name of the node.
    pub node: String,
    /// `host:port` of its Raft listener.
    pub raft: String,
    /// `host:port` of its API listener.
    pub api: String,
}

/// `[timers]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimersSection {
    /// `lan` (shipped) or `test` (for a whole cluster on one loaded machine).
    pub profile: TimerProfile,
}

/// Which column of timers the Raft group runs with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimerProfile {
    /// Heartbeat 50 ms, election 150–300 ms.
    #[default]
    Lan,
    /// Slower timers for machines that run a whole cluster beside the tests.
    Test,
}

/// `[limits]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// A broker group that is not heard of for this many ms is shown as lost. Default 10,000; 1,000 – 600,000.
    pub lost_after_ms: u64,
    /// Without contact to the leader and its majority for this many ms, routes are refused. Default 30,000; 1,000 –
    /// 600,000.
    pub route_age_ms_max: u64,
    /// Connections to the API at a time. Default 10,000; 1 – 100,000.
    pub connections_max: u32,
    /// Longest wait for a leader within one call in ms; then a retryable error. Default 400; 0 – 10,000.
    pub leader_wait_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lost_after_ms: 10_000, route_age_ms_max: 30_000, connections_max: 10_000, leader_wait_ms: 400 }
    }
}

/// `[log]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Bytes of one segment. Default 64 MiB; 64 KiB – 1 GiB, a multiple of 4,096 and at least twice the frame limit.
    pub segment_size: u64,
    /// Most bytes of one frame. Default 4 MiB; 16 KiB – 8 MiB.
    pub frame_limit: u32,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { segment_size: 64 << 20, frame_limit: 4 << 20 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            node: String::new(),
            data: PathBuf::new(),
            api_listen: "0.0.0.0:9876".to_owned(),
            raft_listen: "0.0.0.0:9878".to_owned(),
            metrics_listen: "0.0.0.0:9879".to_owned(),
            name: NameSection::default(),
            timers: TimersSection::default(),
            limits: Limits::default(),
            log: LogSection::default(),
        }
    }
}

/// A setting that cannot be used, by its dotted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// The key.
    pub key: String,
    /// What is wrong with its value.
    pub problem: String,
}

fn unusable(key: impl Into<String>, problem: impl Into<String>) -> Result<(), Unusable> {
    Err(Unusable { key: key.into(), problem: problem.into() })
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// The first one that cannot be used.
    pub fn validate(&self) -> Result<(), Unusable> {
        // Taken apart completely, so that a setting without a check does not compile.
        let Self {
            cluster,
            node,
            data,
            api_listen,
            raft_listen,
            metrics_listen,
            name,
            timers: _,
            limits,
            log,
        } = self;
        for (key, value) in [("cluster", cluster), ("node", node)] {
            if value.is_empty() || value.len() > 64 || !value.chars().all(is_name_char) {
                let rule = "1 to 64 of the characters a-z A-Z 0-9 . _ -";
                unusable(key, format!("must be set to {rule}; it is {value:?}"))?;
            }
        }
        if data.as_os_str().is_empty() {
            unusable("data", "must be set to the data folder")?;
        }
        for (key, value) in
            [("api_listen", api_listen), ("raft_listen", raft_listen), ("metrics_listen", metrics_listen)]
        {
            check_address(key, value)?;
        }
        name.validate(node)?;
        limits.validate()?;
        log.validate()
    }

    /// The Raft group of the name servers as this node takes part in it.
    #[must_use]
    pub fn group(&self) -> GroupConfig {
        let member = |(place, member): (usize, &MemberSection)| MemberConfig {
            id: place as u64 + 1,
            node: member.node.clone(),
            raft_address: member.raft.clone(),
            api_address: member.api.clone(),
            client_address: String::new(),
            role: Role::Data,
        };
        GroupConfig {
            cluster: self.cluster.clone(),
            group: GROUP.to_owned(),
            node_name: self.node.clone(),
            members: self.name.members.iter().enumerate().map(member).collect(),
            dir: self.data.join(GROUP),
            segment_size: self.log.segment_size,
            frame_limit: self.log.frame_limit,
            timers: match self.timers.profile {
                TimerProfile::Lan => Timers::lan(),
                TimerProfile::Test => Timers::test(),
            },
            limits: RaftLimits { ring_bytes: 8 << 20, ..RaftLimits::default() },
        }
    }
}

impl NameSection {
    fn validate(&self, node: &str) -> Result<(), Unusable> {
        if self.members.is_empty() {
            unusable("name.members", "must list all name servers")?;
        }
        for (place, member) in self.members.iter().enumerate() {
            let MemberSection { node, raft, api } = member;
            let key = |part: &str| format!("name.members[{place}].{part}");
            if self.members[..place].iter().any(|other| other.node == *node) {
                unusable(key("node"), format!("{node:?} is listed twice"))?;
            }
            check_address(&key("raft"), raft)?;
            check_address(&key("api"), api)?;
        }
        if !self.members.iter().any(|member| member.node == node) {
            let names: Vec<&str> = self.members.iter().map(|member| member.node.as_str()).collect();
            unusable("node", format!("{node:?} is not one of name.members [{}]", names.join(", ")))?;
        }
        Ok(())
    }
}

impl Limits {
    fn validate(&self) -> Result<(), Unusable> {
        let Self { lost_after_ms, route_age_ms_max, connections_max, leader_wait_ms } = *self;
        let check = |key: &str, checked: Result<(), String>| {
            checked.map_err(|problem| Unusable { key: format!("limits.{key}"), problem })
        };
        check("lost_after_ms", in_range(lost_after_ms, 1_000, 600_000))?;
        check("route_age_ms_max", in_range(route_age_ms_max, 1_000, 600_000))?;
        check("connections_max", in_range(connections_max, 1, 100_000))?;
        check("leader_wait_ms", in_range(leader_wait_ms, 0, 10_000))
    }
}

impl LogSection {
    fn validate(&self) -> Result<(), Unusable> {
        let Self { segment_size, frame_limit } = *self;
        let check = |key: &str, checked: Result<(), String>| {
            checked.map_err(|problem| Unusable { key: format!("log.{key}"), problem })
        };
        check("segment_size", in_range(segment_size, 64 << 10, 1 << 30))?;
        check("frame_limit", in_range(frame_limit, 16 << 10, 8 << 20))?;
        if !segment_size.is_multiple_of(4_096) || segment_size < 2 * u64::from(frame_limit) {
            let rule = format!("a multiple of 4096 and at least twice log.frame_limit ({frame_limit})");
            unusable("log.segment_size", format!("{segment_size} must be {rule}"))?;
        }
        Ok(())
    }
}

fn is_name_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-')
}

/// `host:port`; whether it can be reached shows only when it is used.
fn check_address(key: &str, address: &str) -> Result<(), Unusable> {
    let parts = address.rsplit_once(':');
    match parts {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => unusable(key, format!("{address:?} is not host:port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Config {
        let member = |n: u16| MemberSection {
            node: format!("n{n}"),
            raft: format!("127.0.0.1:{}", 9_878 + n),
            api: format!("127.0.0.1:{}", 9_000 + n),
        };
        Config {
            cluster: "prod".into(),
            node: "n2".into(),
            data: "/data".into(),
            name: NameSection { members: (1..=3).map(member).collect() },
            ..Config::default()
        }
    }

    fn rejected(change: impl FnOnce(&mut Config)) -> String {
        let mut config = good();
        change(&mut config);
        config.validate().expect_err("not usable").key
    }

    #[test]
    fn each_bad_value_is_named() {
        assert_eq!(good().validate(), Ok(()));
        assert_eq!(rejected(|c| c.cluster.clear()), "cluster");
        assert_eq!(rejected(|c| c.node = "a b".into()), "node");
        assert_eq!(rejected(|c| c.node = "n9".into()), "node");
        assert_eq!(rejected(|c| c.data = PathBuf::new()), "data");
        assert_eq!(rejected(|c| c.api_listen = "9876".into()), "api_listen");
        assert_eq!(rejected(|c| c.name.members.clear()), "name.members");
        assert_eq!(rejected(|c| c.name.members[2].api = "h:70000".into()), "name.members[2].api");
        assert_eq!(rejected(|c| c.name.members[1].node = "n1".into()), "name.members[1].node");
        assert_eq!(rejected(|c| c.limits.lost_after_ms = 0), "limits.lost_after_ms");
        assert_eq!(rejected(|c| c.limits.connections_max = 0), "limits.connections_max");
        assert_eq!(rejected(|c| c.log.segment_size = 65_537), "log.segment_size");
    }

    #[test]
    fn members_get_their_ids_in_list_order() {
        let group = good().group();
        assert_eq!(group.members.iter().map(|member| member.id).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((group.node_name.as_str(), group.dir), ("n2", PathBuf::from("/data/name")));
    }
}
