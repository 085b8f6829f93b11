//! Messages between nodes ⇄ openraft's. Every pattern is without `..`: a field that openraft adds does not compile.

use mq_protocol::cluster as wire;
use mq_store::commit_log::{FrameKind, LogEntry};
use mq_store::{EntryId, LogIndex, Term};
use openraft::raft::{StreamAppendError, TransferLeaderError, TransferLeaderRequest};

use crate::membership::Malformed;
use crate::types::{
    AppendRequest, AppendResult, EncodedMembers, Entry, LogId, Payload, Place, Proposal, TypeConfig, Vote,
    VoteRequest, VoteResponse,
};

/// Version of an entry on the wire.
const ENTRY_VERSION: u32 = 1;

pub(crate) fn log_id_to_wire(id: &LogId) -> wire::LogId {
    let openraft::LogId { leader_id, index } = *id;
    wire::LogId { term: leader_id.term, index }
}

pub(crate) fn log_id_from_wire(id: &wire::LogId) -> LogId {
    let wire::LogId { term, index } = *id;
    LogId::new_term_index(term, index)
}

fn opt_to_wire(id: Option<&LogId>) -> Option<wire::LogId> {
    id.map(log_id_to_wire)
}

fn opt_from_wire(id: Option<&wire::LogId>) -> Option<LogId> {
    id.map(log_id_from_wire)
}

pub(crate) fn vote_to_wire(vote: &Vote) -> wire::Vote {
    let openraft::Vote { leader_id: openraft::impls::leader_id_std::LeaderId { term, voted_for }, committed } =
        *vote;
    wire::Vote { term, node: voted_for, committed }
}

pub(crate) fn vote_from_wire(vote: Option<wire::Vote>) -> Result<Vote, Malformed> {
    let wire::Vote { term, node, committed } = vote.ok_or_else(|| Malformed("message: no vote".into()))?;
    Ok(if committed { Vote::new_committed(term, node) } else { Vote::new(term, node) })
}

fn entry_to_wire(entry: Entry) -> Result<wire::Entry, Malformed> {
    let Entry { log_id, payload, place } = entry;
    let Place::Local { offset: _, head_crc } = place else {
        return Err(Malformed(format!("entry {log_id}: not from the log")));
    };
    let blank = wire::Entry {
        version: ENTRY_VERSION,
        kind: FrameKind::Blank as u32,
        term: log_id.leader_id.term,
        index: log_id.index,
        head_crc,
        body_crc: crc32c::crc32c(&[]),
        ..wire::Entry::default()
    };
    Ok(match payload {
        Payload::Blank => blank,
        Payload::Items(Proposal { kind, flags, count, store_time, lease_time, body, body_crc }) => {
            let (kind, flags) = (kind as u32, u32::from(flags));
            wire::Entry { kind, flags, count, store_time, lease_time, body, body_crc, ..blank }
        }
        Payload::Membership(EncodedMembers { members: _, bytes, crc }) => {
            wire::Entry { kind: FrameKind::Membership as u32, body: bytes, body_crc: crc, ..blank }
        }
    })
}

fn entry_from_wire(entry: wire::Entry) -> Result<Entry, Malformed> {
    let wire::Entry {
        version,
        flags,
        kind,
        term,
        index,
        store_time,
        lease_time,
        count,
        body,
        body_crc,
        head_crc,
    } = entry;
    let id = EntryId { term: Term(term), index: LogIndex(index) };
    if version != ENTRY_VERSION {
        return Err(Malformed(format!("entry {id}: version {version}, this node knows {ENTRY_VERSION}")));
    }
    let kind = [FrameKind::Items, FrameKind::Membership, FrameKind::Blank]
        .into_iter()
        .find(|known| *known as u32 == kind)
        .ok_or_else(|| Malformed(format!("entry {id}: kind {kind}")))?;
    let flags = u8::try_from(flags).map_err(|_| Malformed(format!("entry {id}: flags {flags}")))?;
    let found = crc32c::crc32c(&body);
    if found != body_crc {
        return Err(Malformed(format!("entry {id}: body has crc {found:08x}, expected {body_crc:08x}")));
    }
    let entry = LogEntry {
        kind,
        flags,
        term: id.term,
        index: id.index,
        store_time,
        lease_time,
        count,
        body,
        body_crc,
    };
    Entry::from_log_entry(entry, Place::Peer { head_crc })
}

pub(crate) fn append_to_wire(
    request: AppendRequest,
    header: wire::RaftHeader,
    (lease_time, due_time): (u64, u64),
) -> Result<wire::AppendRequest, Malformed> {
    let AppendRequest { vote, prev_log_id, entries, leader_commit } = request;
    Ok(wire::AppendRequest {
        header: Some(header),
        vote: Some(vote_to_wire(&vote)),
        previous: opt_to_wire(prev_log_id.as_ref()),
        entries: entries.into_iter().map(entry_to_wire).collect::<Result<_, _>>()?,
        committed: opt_to_wire(leader_commit.as_ref()),
        lease_time,
        due_time,
    })
}

/// The request without its header and times, which the caller has looked at.
pub(crate) fn append_from_wire(request: wire::AppendRequest) -> Result<AppendRequest, Malformed> {
    let wire::AppendRequest { header: _, vote, previous, entries, committed, lease_time: _, due_time: _ } =
        request;
    Ok(AppendRequest {
        vote: vote_from_wire(vote)?,
        prev_log_id: opt_from_wire(previous.as_ref()),
        entries: entries.into_iter().map(entry_from_wire).collect::<Result<_, _>>()?,
        leader_commit: opt_from_wire(committed.as_ref()),
    })
}

pub(crate) fn append_result_to_wire(
    result: AppendResult,
    header: wire::RaftHeader,
    wall_time: u64,
) -> wire::AppendResponse {
    use wire::append_response::Result as Wire;
    let result = match result {
        Ok(last) => Wire::Matched(wire::Matched { last: opt_to_wire(last.as_ref()) }),
        Err(StreamAppendError::Conflict(id)) => Wire::Conflict(log_id_to_wire(&id)),
        Err(StreamAppendError::HigherVote(vote)) => Wire::HigherVote(vote_to_wire(&vote)),
    };
    wire::AppendResponse { header: Some(header), result: Some(result), wall_time }
}

pub(crate) fn append_result_from_wire(response: wire::AppendResponse) -> Result<AppendResult, Malformed> {
    use wire::append_response::Result as Wire;
    let wire::AppendResponse { header: _, result, wall_time: _ } = response;
    Ok(match result.ok_or_else(|| Malformed("append response: no result".into()))? {
        Wire::Matched(wire::Matched { last }) => Ok(opt_from_wire(last.as_ref())),
        Wire::Conflict(id) => Err(StreamAppendError::Conflict(log_id_from_wire(&id))),
        Wire::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote_from_wire(Some(vote))?)),
    })
}

pub(crate) fn vote_request_to_wire(request: &VoteRequest, header: wire::RaftHeader) -> wire::VoteRequest {
    let VoteRequest { vote, last_log_id, leadership_transfer } = request;
    wire::VoteRequest {
        header: Some(header),
        vote: Some(vote_to_wire(vote)),
        last: opt_to_wire(last_log_id.as_ref()),
        leadership_transfer: *leadership_transfer,
    }
}

pub(crate) fn vote_request_from_wire(request: wire::VoteRequest) -> Result<VoteRequest, Malformed> {
    let wire::VoteRequest { header: _, vote, last, leadership_transfer } = request;
    let vote = vote_from_wire(vote)?;
    Ok(VoteRequest { vote, last_log_id: opt_from_wire(last.as_ref()), leadership_transfer })
}

pub(crate) fn vote_response_to_wire(
    response: &VoteResponse,
    header: wire::RaftHeader,
    lease_time: u64,
) -> wire::VoteResponse {
    let VoteResponse { vote, vote_granted, last_log_id } = response;
    wire::VoteResponse {
        header: Some(header),
        vote: Some(vote_to_wire(vote)),
        granted: *vote_granted,
        last: opt_to_wire(last_log_id.as_ref()),
        lease_time,
    }
}

/// The answer without its header and lease time, which the caller has looked at.
pub(crate) fn vote_response_from_wire(response: wire::VoteResponse) -> Result<VoteResponse, Malformed> {
    let wire::VoteResponse { header: _, vote, granted, last, lease_time: _ } = response;
    Ok(VoteResponse {
        vote: vote_from_wire(vote)?,
        vote_granted: granted,
        last_log_id: opt_from_wire(last.as_ref()),
    })
}

pub(crate) fn transfer_to_wire(
    request: &TransferLeaderRequest<TypeConfig>,
    header: wire::RaftHeader,
) -> wire::TransferLeaderRequest {
    // Its fields are private: there is no pattern to forget one in.
    wire::TransferLeaderRequest {
        header: Some(header),
        from_leader: Some(vote_to_wire(request.from_leader())),
        to_node: *request.to_node_id(),
        last: opt_to_wire(request.last_log_id()),
    }
}

pub(crate) fn transfer_from_wire(
    request: wire::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<TypeConfig>, Malformed> {
    let wire::TransferLeaderRequest { header: _, from_leader, to_node, last } = request;
    Ok(TransferLeaderRequest::new(vote_from_wire(from_leader)?, to_node, opt_from_wire(last.as_ref())))
}

pub(crate) type TransferOutcome = Result<(), TransferLeaderError<TypeConfig>>;

pub(crate) fn transfer_outcome_to_wire(
    outcome: &TransferOutcome,
    header: wire::RaftHeader,
) -> wire::TransferLeaderResponse {
    use wire::transfer_leader_response::{LogNotFlushed, Refused, VoteChanged};
    let refused = match outcome {
        Ok(()) => None,
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            let (expected, actual) = (Some(vote_to_wire(expected)), Some(vote_to_wire(actual)));
            Some(Refused::VoteChanged(VoteChanged { expected, actual }))
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            let (expected, actual) = (opt_to_wire(expected.as_ref()), opt_to_wire(actual.as_ref()));
            Some(Refused::LogNotFlushed(LogNotFlushed { expected, actual }))
        }
    };
    wire::TransferLeaderResponse { header: Some(header), refused }
}

pub(crate) fn transfer_outcome_from_wire(
    response: wire::TransferLeaderResponse,
) -> Result<TransferOutcome, Malformed> {
    use wire::transfer_leader_response::{LogNotFlushed, Refused, VoteChanged};
    let wire::TransferLeaderResponse { header: _, refused } = response;
    Ok(match refused {
        None => Ok(()),
        Some(Refused::VoteChanged(VoteChanged { expected, actual })) => {
            let (expected, actual) = (vote_from_wire(expected)?, vote_from_wire(actual)?);
            Err(TransferLeaderError::VoteChanged { expected, actual })
        }
        Some(Refused::LogNotFlushed(LogNotFlushed { expected, actual })) => {
            let (expected, actual) = (opt_from_wire(expected.as_ref()), opt_from_wire(actual.as_ref()));
            Err(TransferLeaderError::LogNotFlushed { expected, actual })
        }
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mq_store::LogOffset;

    use super::*;

    fn stored(index: u64, payload: Payload) -> Entry {
        let place = Place::Local { offset: LogOffset(0), head_crc: 77 };
        Entry { log_id: LogId::new_term_index(3, index), payload, place }
    }

    fn items(body: &'static [u8]) -> Payload {
        Payload::Items(Proposal {
            kind: FrameKind::Items,
            flags: 5,
            count: 2,
            store_time: 11,
            lease_time: 12,
            body: Bytes::from_static(body),
            body_crc: crc32c::crc32c(body),
        })
    }

    fn request() -> AppendRequest {
        AppendRequest {
            vote: Vote::new_committed(3, 1),
            prev_log_id: Some(LogId::new_term_index(2, 6)),
            entries: vec![stored(7, Payload::Blank), stored(8, items(b"body"))],
            leader_commit: None,
        }
    }

    #[test]
    fn an_append_request_survives_the_wire_with_chain_and_times() {
        let sent = append_to_wire(request(), wire::RaftHeader::default(), (99, 98)).expect("from the log");
        assert_eq!((sent.lease_time, sent.due_time), (99, 98));
        let got = append_from_wire(sent).expect("own bytes");
        assert_eq!(
            (got.vote, got.prev_log_id, got.leader_commit),
            (request().vote, request().prev_log_id, None)
        );
        let appends: Vec<_> = got.entries.into_iter().map(Entry::into_append).collect();
        let expected: Vec<_> = request().entries.into_iter().map(Entry::into_append).collect();
        for (got, expected) in appends.iter().zip(&expected) {
            assert_eq!(got.entry, expected.entry);
            assert_eq!(got.expected_head_crc, Some(77));
        }
        assert_eq!(appends.len(), 2);
    }

    #[test]
    fn a_body_that_was_changed_on_the_way_is_refused_naming_both_checksums() {
        let mut sent = append_to_wire(request(), wire::RaftHeader::default(), (0, 0)).expect("from the log");
        sent.entries[1].body = Bytes::from_static(b"bodz");
        let refused = append_from_wire(sent).expect_err("changed").to_string();
        let found = format!("{:08x}", crc32c::crc32c(b"bodz"));
        assert!(refused.contains("3-8") && refused.contains(&found), "{refused}");
    }

    #[test]
    fn an_unknown_kind_or_version_is_refused() {
        let sent = append_to_wire(request(), wire::RaftHeader::default(), (0, 0)).expect("from the log");
        for change in [|e: &mut wire::Entry| e.kind = 9, |e: &mut wire::Entry| e.version = 2] {
            let mut changed = sent.clone();
            change(&mut changed.entries[0]);
            assert!(append_from_wire(changed).is_err());
        }
    }

    #[test]
    fn votes_answers_and_transfers_survive_the_wire() {
        let request = VoteRequest {
            vote: Vote::new(4, 2),
            last_log_id: Some(LogId::new_term_index(3, 8)),
            leadership_transfer: true,
        };
        let sent = vote_request_to_wire(&request, wire::RaftHeader::default());
        assert_eq!(vote_request_from_wire(sent).expect("own bytes"), request);
        let answer = VoteResponse { vote: Vote::new(4, 2), vote_granted: true, last_log_id: None };
        let sent = vote_response_to_wire(&answer, wire::RaftHeader::default(), 5);
        assert_eq!(vote_response_from_wire(sent).expect("own bytes"), answer);
        let id = LogId::new_term_index(3, 8);
        let results: [AppendResult; 4] = [
            Ok(None),
            Ok(Some(id)),
            Err(StreamAppendError::Conflict(id)),
            Err(StreamAppendError::HigherVote(Vote::new(5, 1))),
        ];
        for result in results {
            let sent = append_result_to_wire(result.clone(), wire::RaftHeader::default(), 7);
            assert_eq!(sent.wall_time, 7);
            assert_eq!(append_result_from_wire(sent).expect("own bytes"), result);
        }
        let transfer = TransferLeaderRequest::new(Vote::new_committed(3, 1), 2, Some(id));
        let sent = transfer_to_wire(&transfer, wire::RaftHeader::default());
        assert_eq!(transfer_from_wire(sent).expect("own bytes"), transfer);
        let refused = Err(TransferLeaderError::LogNotFlushed { expected: Some(id), actual: None });
        let sent = transfer_outcome_to_wire(&refused, wire::RaftHeader::default());
        assert_eq!(transfer_outcome_from_wire(sent).expect("own bytes"), refused);
    }
}
