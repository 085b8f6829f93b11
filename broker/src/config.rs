//! Settings of `mqbroker`: plain data, checked once by [`Config::validate`] before anything is opened.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use serde::Deserialize;

/// All settings of one broker process.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Name of the cluster; the same on every name server and broker. Must be set.
    pub cluster: String,
    /// Name of this node; one of the members of each of its broker groups. Must be set.
    pub node: String,
    /// Data folder; one process at a time. Must be set.
    pub data: PathBuf,
    /// Host under which clients reach this node; also the store host of its messages. Default: the host of its own
    /// client address in the member list.
    pub advertise: Option<String>,
    /// Clients speak gRPC here. Default 0.0.0.0:8081.
    pub client_listen: String,
    /// Nodes and administrators speak gRPC here. Default 0.0.0.0:10911.
    pub api_listen: String,
    /// Raft between brokers. Default 0.0.0.0:10912.
    pub raft_listen: String,
    /// `/metrics`. Default 0.0.0.0:5557.
    pub metrics_listen: String,
    /// `/livez` and `/readyz`. Default 0.0.0.0:8082.
    pub admin_listen: String,
    /// Unknown topics are created at their first use (route query, send, receive). Default false.
    pub auto_create_topics: bool,
    /// Unknown subscription groups are created at their first receive. Default false.
    pub auto_create_groups: bool,
    /// The name servers.
    pub name: NameSection,
    /// The broker groups that this process is a member of.
    pub broker: BrokerSection,
    /// Raft timers.
    pub timers: TimersSection,
    /// Bounds; exceeding one is a named error at the caller.
    pub limits: Limits,
    /// The CommitLog. Fixed for a group at its birth.
    pub log: LogSection,
    /// Room on disk.
    pub disk: DiskSection,
}

/// `[disk]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiskSection {
    /// Sends are refused as busy while the data folder's file system is used to this share or more, in percent of
    /// what this process could use. Default 90; 1 – 99.
    pub refuse_percent: u64,
}

impl Default for DiskSection {
    fn default() -> Self {
        Self { refuse_percent: 90 }
    }
}

/// `[name]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NameSection {
    /// API addresses (`host:9876`) of the name servers. Default: none; the brokers then answer routes alone.
    pub members: Vec<String>,
}

/// `[broker]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerSection {
    /// `[[broker.group]]`, at least one.
    pub group: Vec<GroupSection>,
}

/// One broker group: one Raft group, one CommitLog.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSection {
    /// Name of the broker group, as clients see it in routes (`brokerName`).
    pub name: String,
    /// Its members in the order that gives them their ids 1…n; the same list on each of them.
    pub members: Vec<MemberSection>,
}

/// One member of a broker group.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSection {
    /// Name of the node.
    pub node: String,
    /// `host:port` of its Raft listener.
    pub raft: String,
    /// `host:port` of its API listener.
    pub api: String,
    /// `host:port` of its client listener; what routes show.
    pub client: String,
}

/// `[timers]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimersSection {
    /// `lan` (shipped) or `test` (for three nodes on one loaded machine).
    pub profile: TimerProfile,
}

/// Which column of timers the Raft groups run with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimerProfile {
    /// Heartbeat 50 ms, election 150–300 ms.
    #[default]
    Lan,
    /// Slower timers for machines that run a whole cluster beside the tests.
    Test,
}

/// `[log]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Bytes of one CommitLog file. Default 1 GiB; 64 KiB – 8 GiB, a multiple of 4,096 and at least
    /// twice the frame limit.
    pub segment_size: u64,
    /// Most bytes of one frame. Default 8 MiB; 16 KiB – 8 MiB.
    pub frame_limit: u32,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { segment_size: 1 << 30, frame_limit: 8 << 20 }
    }
}

/// `[limits]`. Shipped values are those of the design; each is enforced with a named error.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest body in bytes as sent. Default 4 MiB; 1 – 4 MiB.
    pub body_bytes_max: u32,
    /// Most bytes of user properties, tag and keys together. Default 16 KiB; 1 – 32,000.
    pub properties_bytes_max: u32,
    /// Most user properties of one message. Default 128; 1 – 1,024.
    pub properties_count_max: u32,
    /// Most messages in one receive answer. Default 32; 1 – 32.
    pub receive_batch_max: u32,
    /// Longest poll of a receive in ms. Default 20,000; 100 – 60,000.
    pub poll_ms_max: u64,
    /// Shortest invisible time of a receive without automatic renewal in ms. Default 10,000.
    pub invisible_ms_min: u64,
    /// Longest invisible time in ms. Default 12 h.
    pub invisible_ms_max: u64,
    /// Bytes of sends that wait for their commit, per broker group; beyond that sends are refused as busy. Default
    /// 64 MiB; 1 MiB – 4 GiB, at least twice the largest body.
    pub in_flight_bytes_max: u64,
    /// Receives that wait for a message, per process. Default 20,000.
    pub waiting_receives_max: u32,
    /// Connections per listener of this process. Default 10,000.
    pub connections_max: u32,
    /// Clients that are remembered (soft state). Default 20,000.
    pub clients_max: u32,
    /// Longest wait for a leader within one call in ms; then a retryable error. Default 1,800; 0 – 10,000.
    pub leader_wait_ms_max: u64,
    /// Longest wait for one commit in ms; then the outcome is unknown. Default 1,900; 100 – 60,000.
    pub commit_wait_ms_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 4 << 20,
            properties_bytes_max: 16 << 10,
            properties_count_max: 128,
            receive_batch_max: 32,
            poll_ms_max: 20_000,
            invisible_ms_min: 10_000,
            invisible_ms_max: 12 * 3_600_000,
            in_flight_bytes_max: 64 << 20,
            waiting_receives_max: 20_000,
            connections_max: 10_000,
            clients_max: 20_000,
            leader_wait_ms_max: 1_800,
            commit_wait_ms_max: 1_900,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            node: String::new(),
            data: PathBuf::new(),
            advertise: None,
            client_listen: "0.0.0.0:8081".into(),
            api_listen: "0.0.0.0:10911".into(),
            raft_listen: "0.0.0.0:10912".into(),
            metrics_listen: "0.0.0.0:5557".into(),
            admin_listen: "0.0.0.0:8082".into(),
            auto_create_topics: false,
            auto_create_groups: false,
            name: NameSection::default(),
            broker: BrokerSection::default(),
            timers: TimersSection::default(),
            limits: Limits::default(),
            log: LogSection::default(),
            disk: DiskSection::default(),
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting `{key}`: {problem}")]
pub struct ConfigError {
    /// Which one.
    pub key: String,
    /// What is wrong with it, with its value and the allowed range.
    pub problem: String,
}

fn wrong(key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
    ConfigError { key: key.into(), problem: problem.into() }
}

impl Config {
    /// Checks everything that can be checked without opening anything.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_name("cluster", &self.cluster)?;
        check_name("node", &self.node)?;
        if self.data.as_os_str().is_empty() {
            return Err(wrong("data", "is not set; name the data folder"));
        }
        if self.advertise.as_ref().is_some_and(|host| host.is_empty() || host.contains(':')) {
            return Err(wrong("advertise", "must be a host name or an IPv4 address, without a port"));
        }
        for (key, address) in [
            ("client_listen", &self.client_listen),
            ("api_listen", &self.api_listen),
            ("raft_listen", &self.raft_listen),
            ("metrics_listen", &self.metrics_listen),
            ("admin_listen", &self.admin_listen),
        ] {
            check_listen(key, address)?;
        }
        for (at, member) in self.name.members.iter().enumerate() {
            check_address(&format!("name.members[{at}]"), member)?;
        }
        self.validate_groups()?;
        self.log.validate()?;
        in_range("disk.refuse_percent", self.disk.refuse_percent, 1, 99)?;
        self.limits.validate()
    }

    fn validate_groups(&self) -> Result<(), ConfigError> {
        if self.broker.group.is_empty() {
            return Err(wrong("broker.group", "is empty; a broker is a member of at least one group"));
        }
        for (at, group) in self.broker.group.iter().enumerate() {
            let key = format!("broker.group[{at}]");
            check_name(&format!("{key}.name"), &group.name)?;
            if self.broker.group[..at].iter().any(|other| other.name == group.name) {
                return Err(wrong(format!("{key}.name"), format!("`{}` is listed twice", group.name)));
            }
            if group.members.len() > 9 {
                return Err(wrong(
                    format!("{key}.members"),
                    format!("{} members; 1 to 9 allowed", group.members.len()),
                ));
            }
            for (at, member) in group.members.iter().enumerate() {
                let key = format!("{key}.members[{at}]");
                check_name(&format!("{key}.node"), &member.node)?;
                check_address(&format!("{key}.raft"), &member.raft)?;
                check_address(&format!("{key}.api"), &member.api)?;
                check_address(&format!("{key}.client"), &member.client)?;
                if group.members[..at].iter().any(|other| other.node == member.node) {
                    return Err(wrong(format!("{key}.node"), format!("`{}` is listed twice", member.node)));
                }
            }
            if !group.members.iter().any(|member| member.node == self.node) {
                let listed: Vec<_> = group.members.iter().map(|member| member.node.as_str()).collect();
                let problem = format!("this node `{}` is not among [{}]", self.node, listed.join(", "));
                return Err(wrong(format!("{key}.members"), problem));
            }
        }
        Ok(())
    }
}

impl LogSection {
    fn validate(&self) -> Result<(), ConfigError> {
        in_range("log.frame_limit", self.frame_limit.into(), 16 << 10, 8 << 20)?;
        in_range("log.segment_size", self.segment_size, 64 << 10, 8 << 30)?;
        if !self.segment_size.is_multiple_of(4_096) {
            return Err(wrong(
                "log.segment_size",
                format!("{} is not a multiple of 4096", self.segment_size),
            ));
        }
        if self.segment_size < 2 * u64::from(self.frame_limit) {
            let problem = format!("{} is less than two frames of {}", self.segment_size, self.frame_limit);
            return Err(wrong("log.segment_size", problem));
        }
        Ok(())
    }
}

impl Limits {
    fn validate(&self) -> Result<(), ConfigError> {
        in_range("limits.body_bytes_max", self.body_bytes_max.into(), 1, 4 << 20)?;
        in_range("limits.properties_bytes_max", self.properties_bytes_max.into(), 1, 32_000)?;
        in_range("limits.properties_count_max", self.properties_count_max.into(), 1, 1_024)?;
        in_range("limits.receive_batch_max", self.receive_batch_max.into(), 1, 32)?;
        in_range("limits.poll_ms_max", self.poll_ms_max, 100, 60_000)?;
        in_range("limits.invisible_ms_max", self.invisible_ms_max, 1_000, 7 * 86_400_000)?;
        in_range("limits.invisible_ms_min", self.invisible_ms_min, 1, self.invisible_ms_max)?;
        in_range("limits.in_flight_bytes_max", self.in_flight_bytes_max, 1 << 20, 4 << 30)?;
        in_range("limits.waiting_receives_max", self.waiting_receives_max.into(), 1, 1_000_000)?;
        in_range("limits.connections_max", self.connections_max.into(), 1, 1_000_000)?;
        in_range("limits.clients_max", self.clients_max.into(), 1, 1_000_000)?;
        in_range("limits.leader_wait_ms_max", self.leader_wait_ms_max, 0, 10_000)?;
        in_range("limits.commit_wait_ms_max", self.commit_wait_ms_max, 100, 60_000)?;
        if self.in_flight_bytes_max < 2 * u64::from(self.body_bytes_max) {
            let problem =
                format!("{} is less than two bodies of {}", self.in_flight_bytes_max, self.body_bytes_max);
            return Err(wrong("limits.in_flight_bytes_max", problem));
        }
        Ok(())
    }
}

fn in_range(key: &str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(wrong(key, format!("{value} is out of range; allowed are {min} to {max}")))
}

/// Names of clusters, nodes and broker groups become folder names and parts of tokens.
fn check_name(key: &str, name: &str) -> Result<(), ConfigError> {
    if name.is_empty() {
        return Err(wrong(key, "is not set"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.len() > 64 || !name.chars().all(allowed) || name.starts_with('.') {
        let rule = "1 to 64 letters, digits, `-`, `_` and `.`, not beginning with `.`";
        return Err(wrong(key, format!("`{name}` is no valid name: {rule}")));
    }
    Ok(())
}

fn check_address(key: &str, address: &str) -> Result<(), ConfigError> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(wrong(key, format!("`{address}` is not host:port"))),
    }
}

fn check_listen(key: &str, address: &str) -> Result<(), ConfigError> {
    match address.to_socket_addrs().ok().and_then(|mut found| found.next()) {
        Some(_) => Ok(()),
        None => Err(wrong(key, format!("`{address}` is not an address of this machine (host:port)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Config {
        let member = |n: u16| MemberSection {
            node: format!("b{n}"),
            raft: format!("127.0.0.1:{}", 10912 + n),
            api: format!("127.0.0.1:{}", 20911 + n),
            client: format!("127.0.0.1:{}", 8081 + n),
        };
        let group = GroupSection { name: "broker-a".into(), members: (1..=3).map(member).collect() };
        Config {
            cluster: "c".into(),
            node: "b2".into(),
            data: "/tmp/x".into(),
            broker: BrokerSection { group: vec![group] },
            ..Config::default()
        }
    }

    fn problem(change: impl FnOnce(&mut Config)) -> String {
        let mut config = valid();
        change(&mut config);
        config.validate().expect_err("must be refused").to_string()
    }

    #[test]
    fn shipped_values_are_valid() {
        assert_eq!(valid().validate(), Ok(()));
    }

    #[test]
    fn errors_name_key_value_and_range() {
        let text = problem(|c| c.limits.body_bytes_max = 0);
        assert_eq!(text, "setting `limits.body_bytes_max`: 0 is out of range; allowed are 1 to 4194304");
        assert!(problem(|c| c.node = "b9".into()).contains("`b9` is not among [b1, b2, b3]"));
        assert!(problem(|c| c.cluster = "../x".into()).contains("`../x` is no valid name"));
        assert!(problem(|c| c.api_listen = "nowhere".into()).contains("`nowhere`"));
        assert!(problem(|c| c.broker.group[0].members[1].raft = "b1".into()).contains("members[1].raft"));
        assert!(problem(|c| c.broker.group.clear()).contains("broker.group"));
        assert!(problem(|c| c.log.segment_size = 1 << 20).contains("less than two frames"));
        assert!(problem(|c| c.name.members = vec![":1".into()]).contains("name.members[0]"));
    }
}
