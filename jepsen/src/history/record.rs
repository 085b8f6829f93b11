//! One line of a history.
//!
//! ```text
//! {"i":17,"t":1203994,"w":1793239200000000000,"p":3,"ty":"invoke","f":"send","v":{"mid":"1a2b-3-9"},"n":["b2"]}
//! {"i":18,"t":1204877,"w":1793239200001000000,"p":3,"ty":"ok","f":"send","v":{"mid":"1a2b-3-9","place":{"queue":1,"offset":40}},"n":["b2"]}
//! ```
//!
//! Always: `i` is dense from 0, `t` (ns since the start, monotonic) never falls, a process has at most one open
//! call, and after `info` its number is never used again.

use serde::{Deserialize, Serialize};

/// Version of the line format, in the header.
pub const SCHEMA: u32 = 1;

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Dense index from 0.
    pub i: u64,
    /// Nanoseconds since the start, monotonic clock of the one process that records.
    pub t: u64,
    /// Wall time in nanoseconds.
    pub w: u64,
    /// Who.
    pub p: Process,
    /// Begin or end of a call, or a remark.
    pub ty: Kind,
    /// What, with arguments and (at the end) results.
    #[serde(flatten)]
    pub call: Call,
    /// Nodes contacted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub n: Vec<String>,
    /// Why it is `fail` or `info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<Cause>,
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Process {
    /// A logical client: worker k continues as k + concurrency × m after an unknown outcome.
    Worker(u64),
    /// Not a client; the rules of one open call do not apply.
    Role(Role),
}

/// The parts of the suite that write remarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Injects faults.
    Nemesis,
    /// Polls the status of the nodes.
    Monitor,
    /// Phases of the run.
    Harness,
}

/// Begin or end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The call begins.
    Invoke,
    /// It happened.
    Ok,
    /// It certainly did not happen.
    Fail,
    /// Unknown whether it happened; also every remark of a role.
    Info,
}

/// Why a call is `fail` or `info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// RocketMQ code, or the name of what broke (`connect`, `deadline`, `grpc-14`).
    pub code: String,
    /// Text for people.
    pub msg: String,
}

/// Function and values of a record (`f` and `v`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "f", content = "v", rename_all = "lowercase")]
pub enum Call {
    /// A message is sent.
    Send(Send),
    /// A group asks for messages.
    Receive(Receive),
    /// One delivery is settled.
    Ack(Ack),
    /// Records of a queue are read by offset.
    Pull(Pull),
    /// The least and the next offset of a queue are asked for.
    Bounds(Bounds),
    /// A fault begins, is probed, or ends.
    Fault(Fault),
    /// What a node said about itself.
    Status(Status),
    /// A phase of the run begins.
    Phase(Phase),
    /// Digests of all members were compared.
    Digest(Digest),
}

impl Call {
    /// Name of the function, as in `f`.
    pub fn function(&self) -> &'static str {
        match self {
            Call::Send(_) => "send",
            Call::Receive(_) => "receive",
            Call::Ack(_) => "ack",
            Call::Pull(_) => "pull",
            Call::Bounds(_) => "bounds",
            Call::Fault(_) => "fault",
            Call::Status(_) => "status",
            Call::Phase(_) => "phase",
            Call::Digest(_) => "digest",
        }
    }
}

/// Where a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Queue number; not known from an answer to a send over the RocketMQ protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Queue offset.
    pub offset: u64,
}

/// Arguments and result of a send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    /// Identity of the message: run, process, counter.
    pub mid: String,
    /// Where it was stored, when answered OK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// Arguments and result of a receive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// Subscription group.
    pub group: String,
    /// Invisible time asked for.
    pub invisible_ms: u64,
    /// What came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Delivery>,
    /// The answer was cut short (no time of delivery at its end, or empty before the poll was over): as after an
    /// unknown outcome, more may have been taken than was seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// One message of a receive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Identity from the body; the body's text when it is no message of ours.
    pub mid: String,
    /// Queue number.
    pub queue: u32,
    /// Queue offset.
    pub offset: u64,
    /// Delivery attempt, 1 for the first.
    pub attempt: u32,
    /// False when the checksum of the body is wrong.
    pub intact: bool,
}

/// Arguments of an ack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Subscription group.
    pub group: String,
    /// Message.
    pub mid: String,
    /// Attempt whose handle is used.
    pub attempt: u32,
}

/// Arguments and result of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// Queue number.
    pub queue: u32,
    /// First offset asked for.
    pub from: u64,
    /// This replica's own view was asked for; absent = the leader, behind a read barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Begins a new sequence; else it goes on behind the last pull of this process and queue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seek: bool,
    /// Part of the final scan through this node, which led then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan: Option<String>,
    /// What came, when answered OK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Pulled>,
}

/// The answer to a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulled {
    /// Least offset of the queue.
    pub min: u64,
    /// Its next offset.
    pub max: u64,
    /// Records in the order of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Seen>,
}

/// One record of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Queue offset.
    pub offset: u64,
    /// Identity from the body.
    pub mid: String,
    /// Store time in milliseconds.
    pub store_time: u64,
    /// False when the checksum of the body is wrong.
    pub intact: bool,
}

/// Arguments and result of a question for the offsets of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Queue number.
    pub queue: u32,
    /// This replica's own view was asked for; absent = the leader, behind a read barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The answer, when answered OK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Range>,
}

/// Offsets of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Least offset.
    pub min: u64,
    /// Next offset.
    pub max: u64,
}

/// A step of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// `kill` or `pause`.
    pub class: String,
    /// What it aimed at: `leader`, `ns-leader`, `random`, `ns-random`, `all`.
    pub target: String,
    /// The node that it hit.
    pub node: String,
    /// `start`, `probe`, `stop`, `skip` or `heal`.
    pub step: String,
    /// Whether it bit (step `probe`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bit: Option<bool>,
    /// Reason of a skip, pid, and so on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What a node said about one Raft group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Node.
    pub node: String,
    /// Raft group: a broker group's name, or `name`.
    pub group: String,
    /// Its term.
    pub term: u64,
    /// It says it leads this term.
    pub leads: bool,
    /// Committed log index.
    pub committed: u64,
    /// Applied log index.
    pub applied: u64,
}

/// A phase begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// `main`, `heal`, `recovery`, `final`, `drained`, `probe`, `end`, or `failed` (recovery limit exceeded).
    pub name: String,
}

/// Result of comparing all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Raft group.
    pub group: String,
    /// Log index of the mark.
    pub index: u64,
    /// Members that answered.
    pub members: u32,
    /// First difference, empty when all are equal.
    pub difference: String,
}

/// First line of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Random text that marks the messages of this run.
    pub run: String,
    /// Seed of content and schedule.
    pub seed: u64,
    /// Workload.
    pub workload: String,
    /// Enabled fault classes.
    pub faults: Vec<String>,
    /// Nodes and groups, for example `ns3-b3`.
    pub topology: String,
    /// Subscription groups that must get everything.
    pub groups: Vec<String>,
    /// Nodes through which, as leader, the final scan of the log workload must go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scanners: Vec<String>,
    /// Sends planned for the main phase.
    pub planned_sends: u64,
    /// Version of suite and product.
    pub build: String,
    /// The command that repeats the run.
    pub command: String,
}

/// Last line of a file; a file without it is readable, its open calls are unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Footer {
    /// Number of records.
    pub records: u64,
    /// Nanoseconds from first to last.
    pub duration_ns: u64,
    /// Why the run ended: `complete` or a text.
    pub end: String,
    /// SHA-256 of all record lines with their line ends, hexadecimal.
    pub sha256: String,
}
