//! Body of a membership frame: `raftmq.cluster.v1.Membership`, lists sorted by id.
//!
//! The encoding is a function of the value, so that a leader that was restarted makes the same bytes. What a
//! follower receives is stored as it came; it is decoded, never encoded again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mq_protocol::cluster as wire;
use prost::Message;
use thiserror::Error;

use crate::config::{NodeId, Role};
use crate::types::{Members, Node};

/// Bytes that are no membership.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("malformed {0}")]
pub(crate) struct Malformed(pub String);

pub(crate) fn encode(members: &Members) -> Bytes {
    let configs = members
        .get_joint_config()
        .iter()
        .map(|set| wire::VoterSet { ids: set.iter().copied().collect() })
        .collect();
    let nodes = members.nodes().map(|(id, node)| to_wire(*id, node)).collect();
    wire::Membership { configs, nodes }.encode_to_vec().into()
}

pub(crate) fn decode(bytes: &Bytes) -> Result<Members, Malformed> {
    let wire::Membership { configs, nodes } = wire::Membership::decode(bytes.clone())
        .map_err(|e| Malformed(format!("membership of {} bytes: {e}", bytes.len())))?;
    let configs: Vec<BTreeSet<NodeId>> =
        configs.into_iter().map(|wire::VoterSet { ids }| ids.into_iter().collect()).collect();
    let nodes: BTreeMap<NodeId, Node> = nodes.into_iter().map(from_wire).collect::<Result<_, Malformed>>()?;
    Members::new(configs, nodes).map_err(|e| Malformed(format!("membership: {e}")))
}

pub(crate) fn to_wire(id: NodeId, node: &Node) -> wire::Member {
    let Node { node, raft_address, api_address, client_address, role, store_id } = node.clone();
    wire::Member { id, node, raft_address, api_address, client_address, role: role_to_wire(role), store_id }
}

fn from_wire(member: wire::Member) -> Result<(NodeId, Node), Malformed> {
    let wire::Member { id, node, raft_address, api_address, client_address, role, store_id } = member;
    let role = role_from_wire(role)?;
    Ok((id, Node { node, raft_address, api_address, client_address, role, store_id }))
}

fn role_to_wire(role: Role) -> u32 {
    match role {
        Role::Data => 1,
        Role::Witness => 2,
        Role::Learner => 3,
    }
}

fn role_from_wire(role: u32) -> Result<Role, Malformed> {
    match role {
        1 => Ok(Role::Data),
        2 => Ok(Role::Witness),
        3 => Ok(Role::Learner),
        other => Err(Malformed(format!("role {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        let nodes: BTreeMap<NodeId, Node> = [3u64, 1, 2]
            .into_iter()
            .map(|id| {
                let node = Node {
                    node: format!("b{id}"),
                    raft_address: format!("h{id}:10912"),
                    role: if id == 3 { Role::Witness } else { Role::Data },
                    store_id: format!("s{id}"),
                    ..Node::default()
                };
                (id, node)
            })
            .collect();
        Members::new(vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 2])], nodes).expect("valid")
    }

    #[test]
    fn membership_survives_encoding_and_is_a_function_of_the_value() {
        let bytes = encode(&members());
        let decoded = decode(&bytes).expect("own bytes");
        assert_eq!(decoded, members());
        assert_eq!(encode(&decoded), bytes);
    }

    #[test]
    fn unknown_role_and_cut_bytes_are_refused() {
        assert!(role_from_wire(9).is_err());
        let bytes = encode(&members());
        assert!(decode(&bytes.slice(..bytes.len() - 1)).is_err());
    }
}
