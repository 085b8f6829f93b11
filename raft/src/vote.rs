//! The vote as the group's files keep it: {term, node, committed}.
//!
//! The folder gets a vote of term 0 when it is made, so that a vote file that is missing later means a wiped folder
//! (D12). To Raft that first record is no vote.

use mq_store::VoteRecord;

use crate::config::NodeId;
use crate::types::Vote;

pub(crate) fn to_record(vote: &Vote) -> VoteRecord {
    VoteRecord { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
}

pub(crate) fn from_record(record: &VoteRecord) -> Option<Vote> {
    let VoteRecord { term, node, committed } = *record;
    if term == 0 && !committed {
        return None;
    }
    Some(if committed { Vote::new_committed(term, node) } else { Vote::new(term, node) })
}

/// What a new folder gets.
pub(crate) fn no_vote(node: NodeId) -> VoteRecord {
    VoteRecord { term: 0, node, committed: false }
}
