//! How a group comes into being, once (D12).
//!
//! ```text
//! folder made ──► store id ──► identity synced ──► `joined` synced ──► first vote or entry
//!                              (UUID, list,         (log_storage.rs)
//!                               sizes)
//! ```
//! The first of the list proposes the identity when *all* members answer that they are empty and carry the same
//! list; it syncs its own before it proposes. A member syncs it before it answers *ready*. When all are ready, the
//! first initialises Raft. What always holds:
//! - a node without identity whose peer has joined was wiped: it must not vote again under its old number;
//! - before `joined` a node has neither voted nor stored, so anything up to there may be repeated after a crash.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster as wire;
use mq_runtime::random::Random;
use mq_store::StoreError;
use mq_store::{GroupFiles, GroupMeta};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::{GroupConfig, MAX_FRAME, NodeId};
use crate::error::{IdentityMismatch, StartError};
use crate::network::endpoint::Endpoint;
use crate::network::local::{Local, Uuid};

const CALL_TIMEOUT: Duration = Duration::from_millis(500);
const ROUND: Duration = Duration::from_millis(100);

/// What this member knows of the group's birth. Exists for the group's whole life here, to answer probes.
#[derive(Debug)]
pub(crate) struct Formation {
    files: Arc<GroupFiles>,
    cluster: String,
    group: String,
    members: Vec<wire::Member>,
    formed: watch::Sender<bool>,
    saving: Mutex<()>,
    waiting_for: Mutex<String>,
}

/// How Raft starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With what the log has, or with what the first member will send.
    Join,
    /// As the first member: with these store ids.
    Initialise(BTreeMap<NodeId, String>),
}

impl Formation {
    /// Compares the folder with the settings, and makes its store id when it is new.
    pub(crate) fn open(
        files: Arc<GroupFiles>,
        config: &GroupConfig,
        random: &Random,
    ) -> Result<Self, StartError> {
        let me = config.me()?.id;
        let meta = match files.meta() {
            Some(meta) if !meta.store_id.is_empty() => meta,
            _ => {
                let meta = GroupMeta {
                    cluster: config.cluster.clone(),
                    group: config.group.clone(),
                    node_id: me,
                    store_id: random.uuid(),
                    ..GroupMeta::default()
                };
                if has_log(&files)? || files.vote().is_some() {
                    return Err(mismatch(&files, "identity", "one beside the log", "none").into());
                }
                files.save_meta(&meta)?;
                meta
            }
        };
        check_meta(&files, &meta, config, me)?;
        let members = config
            .members
            .iter()
            .map(|m| wire::Member {
                id: m.id,
                node: m.node.clone(),
                raft_address: m.raft_address.clone(),
                ..wire::Member::default()
            })
            .collect();
        Ok(Self {
            files,
            cluster: config.cluster.clone(),
            group: config.group.clone(),
            members,
            formed: watch::channel(!meta.group_uuid.is_empty()).0,
            saving: Mutex::default(),
            waiting_for: Mutex::default(),
        })
    }

    pub(crate) fn meta(&self) -> GroupMeta {
        self.files.meta().unwrap_or_default()
    }

    pub(crate) fn waiting_for(&self) -> String {
        self.waiting_for.lock().clone()
    }

    pub(crate) fn set_waiting_for(&self, text: String) {
        let mut waiting_for = self.waiting_for.lock();
        if *waiting_for != text {
            if !text.is_empty() {
                tracing::info!(group = %self.group, "waits for {text}");
            }
            *waiting_for = text;
        }
    }

    fn identity(&self) -> Option<wire::GroupIdentity> {
        let GroupMeta { cluster, group, group_uuid, members, segment_size, frame_limit, .. } = self.meta();
        (!group_uuid.is_empty()).then_some(wire::GroupIdentity {
            cluster,
            group,
            group_uuid,
            members,
            segment_size,
            frame_limit,
        })
    }

    pub(crate) fn answer_probe(&self, header: wire::RaftHeader) -> wire::ProbeResponse {
        let joined = self.meta().joined;
        wire::ProbeResponse {
            header: Some(header),
            members: self.members.clone(),
            joined,
            empty: !joined,
            identity: self.identity(),
        }
    }

    /// Takes over a proposed identity; why not, if refused. Durable when it returns `None`.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        identity: wire::GroupIdentity,
        local: &Arc<Local>,
    ) -> Option<String> {
        let (this, local) = (self.clone(), local.clone());
        let accepted = tokio::task::spawn_blocking(move || this.accept_now(&identity, &local)).await;
        match accepted {
            Ok(Ok(())) => None,
            Ok(Err(refused)) => Some(refused),
            Err(error) => Some(error.to_string()),
        }
    }

    fn accept_now(&self, identity: &wire::GroupIdentity, local: &Local) -> Result<(), String> {
        let _one_at_a_time = self.saving.lock();
        let wire::GroupIdentity { cluster, group, group_uuid, members, segment_size, frame_limit } = identity;
        let names: Vec<_> = self.members.iter().map(|m| m.node.clone()).collect();
        if *cluster != self.cluster || *group != self.group || *members != names {
            return Err(format!(
                "is {}/{} of [{}], not {cluster}/{group} of [{}]",
                self.cluster,
                self.group,
                names.join(", "),
                members.join(", ")
            ));
        }
        if group_uuid.is_empty() || *frame_limit > MAX_FRAME || *segment_size < u64::from(*frame_limit) {
            return Err(format!("refuses segment size {segment_size}, frame limit {frame_limit}"));
        }
        match self.identity() {
            Some(own) if own == *identity => return Ok(()),
            Some(own) => return Err(format!("has the identity {}, not {group_uuid}", own.group_uuid)),
            None => {}
        }
        self.files
            .update_meta(|meta| {
                meta.group_uuid.clone_from(group_uuid);
                meta.members.clone_from(members);
                meta.segment_size = *segment_size;
                meta.frame_limit = *frame_limit;
                meta.chain_start = crc32c::crc32c(group_uuid.as_bytes());
            })
            .map_err(|e| e.to_string())?;
        local.set_uuid(group_uuid);
        self.formed.send_replace(true);
        Ok(())
    }
}

/// There is something in the log's folder.
fn has_log(files: &GroupFiles) -> Result<bool, StoreError> {
    let folder = files.dir().join("commitlog");
    Ok(files.fs().exists(&folder)? && !files.fs().read_dir(&folder)?.is_empty())
}

fn mismatch(
    files: &GroupFiles,
    what: &'static str,
    expected: impl ToString,
    found: impl ToString,
) -> IdentityMismatch {
    let (expected, found) = (expected.to_string(), found.to_string());
    IdentityMismatch { place: files.dir().display().to_string(), what, expected, found }
}

fn check_meta(
    files: &GroupFiles,
    meta: &GroupMeta,
    config: &GroupConfig,
    me: NodeId,
) -> Result<(), StartError> {
    if meta.cluster != config.cluster {
        return Err(mismatch(files, "cluster", &config.cluster, &meta.cluster).into());
    }
    if meta.group != config.group {
        return Err(mismatch(files, "group", &config.group, &meta.group).into());
    }
    if meta.node_id != me {
        return Err(mismatch(files, "node id", me, meta.node_id).into());
    }
    let names = config.member_names();
    if !meta.group_uuid.is_empty() && meta.members != names {
        let found = format!("[{}]", meta.members.join(", "));
        return Err(mismatch(files, "member list", format!("[{}]", names.join(", ")), found).into());
    }
    // A member that voted and was killed before its first entry has an empty folder, but it has one.
    let folder = files.fs().exists(&files.dir().join("commitlog"))?;
    if meta.joined && (files.vote().is_none() || !folder) {
        let found = if files.vote().is_none() { "no vote" } else { "no log" };
        return Err(mismatch(files, "content", "vote and log of a member", found).into());
    }
    Ok(())
}

/// What the members said in one round.
type Answers = BTreeMap<NodeId, Result<wire::ProbeResponse, String>>;

#[derive(Debug, PartialEq)]
enum Decision {
    Wait(String),
    /// A peer's group is formed and this member belongs to it.
    Join,
    /// All members are empty: this one, the first, proposes that UUID, or a new one.
    Propose(Option<String>),
    Refuse(&'static str, String, String),
}

/// The rule, without I/O: `own` is this member's identity, `first` whether it is the first of the list.
fn decide(own: Option<&str>, first: bool, list: &[wire::Member], answers: &Answers) -> Decision {
    let mut missing = Vec::new();
    let mut known = None;
    for (id, answer) in answers {
        let name = list.iter().find(|m| m.id == *id).map_or("?", |m| &m.node);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                missing.push(format!("{name} ({error})"));
                continue;
            }
        };
        let uuid = answer.identity.as_ref().map(|i| i.group_uuid.as_str());
        if answer.joined {
            let theirs = uuid.unwrap_or_default().to_owned();
            return match own {
                Some(own) if own == theirs => Decision::Join,
                Some(own) => Decision::Refuse("group UUID", own.to_owned(), theirs),
                None => Decision::Refuse(
                    "identity",
                    format!("the member of {theirs} that {name} knows"),
                    "an emptied data folder".to_owned(),
                ),
            };
        }
        if answer.members != list {
            missing.push(format!("{name} (carries another member list)"));
        }
        known = known.or(uuid);
    }
    if !missing.is_empty() {
        return Decision::Wait(missing.join(", "));
    }
    if first {
        return Decision::Propose(own.or(known).map(str::to_owned));
    }
    match (own, list.first()) {
        (Some(_), _) => Decision::Join,
        (None, first) => Decision::Wait(format!("{} (to form the group)", first.map_or("?", |m| &m.node))),
    }
}

/// Runs until this member has an identity with which Raft may start.
pub(crate) async fn form(
    endpoint: &Arc<Endpoint>,
    config: &GroupConfig,
    random: &Random,
) -> Result<Start, IdentityMismatch> {
    let formation = &endpoint.formation;
    let first = endpoint.local.me == 1;
    let mut formed = formation.formed.subscribe();
    loop {
        if !first && *formed.borrow_and_update() {
            return Ok(Start::Join);
        }
        let answers = probe_all(endpoint).await;
        let own = formation.identity().map(|i| i.group_uuid);
        let waiting = match decide(own.as_deref(), first, &formation.members, &answers) {
            Decision::Wait(waiting) => waiting,
            Decision::Join => return Ok(Start::Join),
            Decision::Refuse(what, expected, found) => {
                let place = config.dir.display().to_string();
                return Err(IdentityMismatch { place, what, expected, found });
            }
            Decision::Propose(uuid) => {
                let uuid = uuid.unwrap_or_else(|| random.uuid());
                match propose(endpoint, config, uuid).await {
                    Ok(stores) => return Ok(Start::Initialise(stores)),
                    Err(waiting) => waiting,
                }
            }
        };
        formation.set_waiting_for(waiting);
        tokio::time::timeout(ROUND, formed.changed()).await.ok();
    }
}

async fn probe_all(endpoint: &Arc<Endpoint>) -> Answers {
    let others = endpoint.formation.members.iter().filter(|m| m.id != endpoint.local.me);
    let probes = others.map(|member| async move { (member.id, probe(endpoint, member).await) });
    futures::future::join_all(probes).await.into_iter().collect()
}

async fn probe(endpoint: &Endpoint, member: &wire::Member) -> Result<wire::ProbeResponse, String> {
    let header = Some(endpoint.local.header(member.id));
    let request = wire::ProbeRequest { header, members: endpoint.formation.members.clone() };
    let call = async {
        endpoint.faults.pass(member.id).await;
        endpoint.peers.get(&member.raft_address)?.control().probe(request).await.map_err(|e| no_answer(&e))
    };
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| "no answer")??.into_inner();
    endpoint.local.check_answer(answer.header.as_ref(), member.id, Uuid::Any).map_err(|e| e.to_string())?;
    Ok(answer)
}

fn no_answer(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::Unavailable => "not reachable".to_owned(),
        _ => status.message().to_owned(),
    }
}

/// Own identity first, then everybody's. All members' store ids, or for whom to wait.
async fn propose(
    endpoint: &Arc<Endpoint>,
    config: &GroupConfig,
    uuid: String,
) -> Result<BTreeMap<NodeId, String>, String> {
    let formation = &endpoint.formation;
    let identity = formation.identity().unwrap_or_else(|| wire::GroupIdentity {
        cluster: config.cluster.clone(),
        group: config.group.clone(),
        group_uuid: uuid,
        members: config.member_names(),
        segment_size: config.segment_size,
        frame_limit: config.frame_limit,
    });
    if let Some(refused) = formation.accept(identity.clone(), &endpoint.local).await {
        return Err(format!("itself ({refused})"));
    }
    let mut stores = BTreeMap::from([(endpoint.local.me, endpoint.local.store_id.clone())]);
    for member in formation.members.iter().filter(|m| m.id != endpoint.local.me) {
        match propose_to(endpoint, member, &identity).await {
            Ok(store_id) => stores.insert(member.id, store_id),
            Err(error) => return Err(format!("{} ({error})", member.node)),
        };
    }
    Ok(stores)
}

async fn propose_to(
    endpoint: &Endpoint,
    member: &wire::Member,
    identity: &wire::GroupIdentity,
) -> Result<String, String> {
    let header = Some(endpoint.local.header(member.id));
    let request = wire::ProposeIdentityRequest { header, identity: Some(identity.clone()) };
    let call = async {
        endpoint.faults.pass(member.id).await;
        let mut control = endpoint.peers.get(&member.raft_address)?.control();
        control.propose_identity(request).await.map_err(|e| no_answer(&e))
    };
    let answer = tokio::time::timeout(CALL_TIMEOUT * 4, call).await.map_err(|_| "no answer")??;
    let wire::ProposeIdentityResponse { header, ready, refused } = answer.into_inner();
    endpoint.local.check_answer(header.as_ref(), member.id, Uuid::Any).map_err(|e| e.to_string())?;
    match (ready, header) {
        (true, Some(header)) => Ok(header.store_id),
        _ => Err(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<wire::Member> {
        [1, 2, 3].map(|id| wire::Member { id, node: format!("b{id}"), ..wire::Member::default() }).to_vec()
    }

    fn empty(uuid: Option<&str>) -> Result<wire::ProbeResponse, String> {
        let identity =
            uuid.map(|u| wire::GroupIdentity { group_uuid: u.to_owned(), ..wire::GroupIdentity::default() });
        Ok(wire::ProbeResponse { members: list(), empty: true, identity, ..wire::ProbeResponse::default() })
    }

    fn joined(uuid: &str) -> Result<wire::ProbeResponse, String> {
        empty(Some(uuid)).map(|answer| wire::ProbeResponse { joined: true, empty: false, ..answer })
    }

    #[test]
    fn the_first_waits_for_all_and_says_for_whom() {
        let answers = BTreeMap::from([(2, empty(None)), (3, Err("not reachable".to_owned()))]);
        assert_eq!(decide(None, true, &list(), &answers), Decision::Wait("b3 (not reachable)".to_owned()));
        let answers = BTreeMap::from([(2, empty(None)), (3, empty(None))]);
        assert_eq!(decide(None, true, &list(), &answers), Decision::Propose(None));
        assert_eq!(decide(Some("u"), true, &list(), &answers), Decision::Propose(Some("u".to_owned())));
    }

    #[test]
    fn the_first_adopts_what_an_empty_member_has() {
        let answers = BTreeMap::from([(2, empty(None)), (3, empty(Some("u")))]);
        assert_eq!(decide(None, true, &list(), &answers), Decision::Propose(Some("u".to_owned())));
    }

    #[test]
    fn another_list_holds_the_group_up() {
        let other = wire::ProbeResponse { members: list()[..2].to_vec(), ..empty(None).expect("answer") };
        let answers = BTreeMap::from([(2, Ok(other)), (3, empty(None))]);
        let decision = decide(None, true, &list(), &answers);
        assert_eq!(decision, Decision::Wait("b2 (carries another member list)".to_owned()));
    }

    #[test]
    fn a_wiped_member_of_a_formed_group_is_refused_and_a_ready_one_joins() {
        let answers = BTreeMap::from([(1, joined("u")), (3, Err("not reachable".to_owned()))]);
        assert!(matches!(decide(None, false, &list(), &answers), Decision::Refuse("identity", _, _)));
        assert_eq!(decide(Some("u"), false, &list(), &answers), Decision::Join);
        assert!(matches!(decide(Some("v"), false, &list(), &answers), Decision::Refuse("group UUID", _, _)));
    }
}
