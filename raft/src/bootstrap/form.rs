//! The rounds until this member has an identity: ask all, decide, wait or propose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster as wire;
use mq_runtime::random::Random;

use crate::config::{GroupConfig, NodeId};
use crate::error::IdentityMismatch;
use crate::network::endpoint::Endpoint;
use crate::network::local::Uuid;

const CALL_TIMEOUT: Duration = Duration::from_millis(500);
const ROUND: Duration = Duration::from_millis(100);

/// How Raft starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With what the log has, or with what the first member will send.
    Join,
    /// As the first member: with these store ids.
    Initialise(BTreeMap<NodeId, String>),
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
