//! Who this member is, and whether a message is from and for whom it says.

use std::collections::BTreeMap;
use std::sync::Arc;

use mq_protocol::cluster as wire;
use parking_lot::RwLock;
use tonic::Status;

use crate::config::NodeId;
use crate::error::IdentityMismatch;

/// Identity of this member of one group (D12).
#[derive(Debug)]
pub(crate) struct Local {
    pub cluster: String,
    pub group: String,
    pub me: NodeId,
    pub store_id: String,
    uuid: RwLock<Arc<str>>,
    /// Store ids by the membership.
    stores: RwLock<BTreeMap<NodeId, String>>,
}

/// How strictly the group UUID is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uuid {
    Equal,
    /// Before the group has one.
    Any,
}

impl Local {
    pub(crate) fn new(cluster: &str, group: &str, me: NodeId, store_id: &str, uuid: &str) -> Self {
        Self {
            cluster: cluster.into(),
            group: group.into(),
            me,
            store_id: store_id.into(),
            uuid: RwLock::new(uuid.into()),
            stores: RwLock::default(),
        }
    }

    pub(crate) fn uuid(&self) -> Arc<str> {
        self.uuid.read().clone()
    }

    pub(crate) fn set_uuid(&self, uuid: &str) {
        *self.uuid.write() = uuid.into();
    }

    pub(crate) fn set_stores(&self, stores: BTreeMap<NodeId, String>) {
        *self.stores.write() = stores;
    }

    pub(crate) fn header(&self, to: NodeId) -> wire::RaftHeader {
        wire::RaftHeader {
            cluster: self.cluster.clone(),
            group: self.group.clone(),
            group_uuid: self.uuid().to_string(),
            from: self.me,
            to,
            store_id: self.store_id.clone(),
        }
    }

    /// Checks a message's header; the sender's id.
    pub(crate) fn check(
        &self,
        header: Option<&wire::RaftHeader>,
        uuid: Uuid,
    ) -> Result<NodeId, IdentityMismatch> {
        let empty = wire::RaftHeader::default();
        let wire::RaftHeader { cluster, group, group_uuid, from, to, store_id } = header.unwrap_or(&empty);
        let place = || format!("message from node {from} to group {}", self.group);
        let differ = |what, expected: &str, found: &str| {
            let (expected, found) = (expected.to_owned(), found.to_owned());
            Err(IdentityMismatch { place: place(), what, expected, found })
        };
        if *cluster != self.cluster {
            return differ("cluster", &self.cluster, cluster);
        }
        if *group != self.group {
            return differ("group", &self.group, group);
        }
        if *to != self.me {
            return differ("node id", &self.me.to_string(), &to.to_string());
        }
        let own = self.uuid();
        if uuid == Uuid::Equal && *own != **group_uuid {
            return differ("group UUID", &own, group_uuid);
        }
        // A wiped member must be told that it was one: before it has a UUID its new store is no reason to refuse.
        if uuid == Uuid::Equal
            && let Some(known) = self.stores.read().get(from)
            && known != store_id
        {
            return differ("store id", known, store_id);
        }
        Ok(*from)
    }

    /// Checks an answer of `peer`.
    pub(crate) fn check_answer(
        &self,
        header: Option<&wire::RaftHeader>,
        peer: NodeId,
        uuid: Uuid,
    ) -> Result<(), IdentityMismatch> {
        let from = self.check(header, uuid)?;
        if from != peer {
            let place = format!("answer to group {}", self.group);
            let (expected, found) = (peer.to_string(), from.to_string());
            return Err(IdentityMismatch { place, what: "node id", expected, found });
        }
        Ok(())
    }
}

/// How a refused message is answered.
pub(crate) fn refusal(mismatch: &IdentityMismatch) -> Status {
    Status::failed_precondition(mismatch.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(me: NodeId) -> Local {
        Local::new("c", "g", me, &format!("s{me}"), "u")
    }

    #[test]
    fn a_message_for_another_cluster_group_node_or_uuid_is_refused_naming_both() {
        let (one, two) = (local(1), local(2));
        let good = one.header(2);
        assert_eq!(two.check(Some(&good), Uuid::Equal), Ok(1));
        let cases = [
            ("cluster", wire::RaftHeader { cluster: "x".into(), ..good.clone() }),
            ("group", wire::RaftHeader { group: "x".into(), ..good.clone() }),
            ("node id", wire::RaftHeader { to: 3, ..good.clone() }),
            ("group UUID", wire::RaftHeader { group_uuid: "x".into(), ..good.clone() }),
        ];
        for (what, header) in cases {
            let refused = two.check(Some(&header), Uuid::Equal).expect_err("differs");
            assert_eq!(refused.what, what);
            assert!(refused.to_string().contains(&refused.expected), "{refused}");
            assert!(refused.to_string().contains(&refused.found), "{refused}");
        }
        assert!(two.check(None, Uuid::Equal).is_err());
        two.set_stores(BTreeMap::from([(1, "other".into())]));
        assert_eq!(two.check(Some(&good), Uuid::Equal).expect_err("differs").what, "store id");
    }

    #[test]
    fn an_answer_of_another_member_is_refused() {
        let (one, two) = (local(1), local(2));
        assert!(one.check_answer(Some(&two.header(1)), 2, Uuid::Equal).is_ok());
        assert!(one.check_answer(Some(&two.header(1)), 3, Uuid::Equal).is_err());
    }
}
