//! One task per group that makes frames out of calls.
//!
//! With fewer than two frames on the way a call is proposed at once, together with whatever else waits; with two or
//! more, calls gather until the batch is full or a frame comes back. So an idle group answers after one round and a
//! busy one works in large frames, without a timer. A frame is proposed for the term that its calls were made for,
//! and nothing that was picked in term 5 enters term 7.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mq_store::commit_log::FrameKind;
use mq_store::item::{BodyBuilder, EncodedItem};
use mq_store::{EntryId, Term};
use openraft::errors::{ClientWriteError, ForwardReason, ForwardToLeader};
use openraft::raft::ClientWriteResult;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::clock::GroupClock;
use crate::config::{Limits, NodeId};
use crate::error::ProposeError;
use crate::responder::FrameResponder;
use crate::types::{FrameAnswer, Node, Proposal, Raft, TypeConfig, entry_id};
use crate::view::LeaderInfo;

/// What a confirmed proposal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// The frame that holds the items.
    pub id: EntryId,
    /// Its store time.
    pub store_time: u64,
    /// Its lease time.
    pub lease_time: u64,
    /// What apply answered, one per item, in order.
    pub results: Vec<Bytes>,
}

type Outcome = Result<Proposed, ProposeError>;

/// Bytes proposed and not yet applied.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    bytes: AtomicU64,
}

impl Uncommitted {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Room for `bytes`, until it is dropped.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64, limit: u64) -> Result<Admitted, ProposeError> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let admitted = Admitted { account: self.clone(), bytes };
        // A single call always fits into an empty account.
        if before > 0 && before + bytes > limit {
            return Err(ProposeError::Busy { what: "uncommitted bytes", value: before + bytes, limit });
        }
        Ok(admitted)
    }
}

#[derive(Debug)]
pub(crate) struct Admitted {
    account: Arc<Uncommitted>,
    bytes: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One call of `propose`.
pub(crate) struct Call {
    pub term: Term,
    pub items: Vec<EncodedItem>,
    pub bytes: usize,
    pub admitted: Admitted,
    pub answer: oneshot::Sender<Outcome>,
    pub claim: Claim,
}

/// Whether a call goes into a frame or is given up: exactly one of the two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim(Arc<AtomicBool>);

impl Claim {
    /// True for the first one that asks.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// Frames proposed and not yet answered.
#[derive(Debug, Default)]
struct OnTheWay {
    frames: AtomicUsize,
    returned: Notify,
}

/// With this many frames on the way calls gather.
const AT_ONCE: usize = 2;

pub(crate) struct Proposer {
    pub raft: Raft,
    pub clock: GroupClock,
    pub limits: Limits,
    /// Largest body of a frame.
    pub body_limit: usize,
    /// Calls gather at most this long: when nothing comes back, Raft must say whether there is still a majority.
    pub patience: Duration,
}

impl Proposer {
    /// Runs until all senders of `calls` are gone.
    pub(crate) async fn run(self, mut calls: mpsc::Receiver<Call>) {
        let on_the_way = Arc::new(OnTheWay::default());
        let mut waiting = Waiting::default();
        loop {
            if waiting.calls.is_empty() {
                match calls.recv().await {
                    Some(call) => waiting.push(call),
                    None => return,
                }
            }
            self.gather(&mut waiting, &mut calls, &on_the_way).await;
            if let Some(batch) = waiting.take(&self.limits, self.body_limit) {
                self.propose(batch, &on_the_way).await;
            }
        }
    }

    async fn gather(&self, waiting: &mut Waiting, calls: &mut mpsc::Receiver<Call>, on_the_way: &OnTheWay) {
        let patience = tokio::time::sleep(self.patience);
        tokio::pin!(patience);
        loop {
            while !waiting.is_full(&self.limits) {
                match calls.try_recv() {
                    Ok(call) => waiting.push(call),
                    Err(_) => break,
                }
            }
            if on_the_way.frames.load(Ordering::Acquire) < AT_ONCE || waiting.is_full(&self.limits) {
                return;
            }
            tokio::select! {
                call = calls.recv() => match call {
                    Some(call) => waiting.push(call),
                    None => return,
                },
                () = on_the_way.returned.notified() => {}
                () = &mut patience => return,
            }
        }
    }

    async fn propose(&self, batch: Vec<Call>, on_the_way: &Arc<OnTheWay>) {
        let Some(term) = batch.first().map(|call| call.term) else { return };
        let mut builder = BodyBuilder::new();
        let mut answers = Vec::with_capacity(batch.len());
        for call in batch {
            let Call { term: _, items, bytes: _, admitted, answer, claim: _ } = call;
            for item in &items {
                builder.push(item);
            }
            answers.push(Share { items: items.len(), answer, _admitted: admitted });
        }
        let body = builder.finish();
        let (store_time, lease_time) = self.clock.next_frame();
        let proposal = Proposal {
            kind: FrameKind::Items,
            flags: 0,
            count: body.count,
            store_time,
            lease_time,
            body: body.body,
            body_crc: body.crc,
        };
        on_the_way.frames.fetch_add(1, Ordering::AcqRel);
        let returning = on_the_way.clone();
        let responder = FrameResponder::new(move |outcome| {
            returning.frames.fetch_sub(1, Ordering::AcqRel);
            returning.returned.notify_one();
            fan_out(answers, outcome);
        });
        // When Raft has stopped, the responder is dropped, and says so.
        self.raft.write(proposal).with_leader(term.0).responder(responder).await.ok();
    }
}

/// One call's part of a frame.
struct Share {
    items: usize,
    answer: oneshot::Sender<Outcome>,
    _admitted: Admitted,
}

fn fan_out(shares: Vec<Share>, outcome: Option<ClientWriteResult<TypeConfig>>) {
    let (id, answer) = match outcome {
        Some(Ok(written)) => {
            let openraft::raft::ClientWriteResponse { log_id, data, membership: _ } = written;
            (entry_id(&log_id), data)
        }
        Some(Err(error)) => return refuse(shares, &refusal(error)),
        None => return refuse(shares, &ProposeError::Discarded),
    };
    let FrameAnswer { store_time, lease_time, items } = answer;
    let mut items = items.into_iter();
    for Share { items: count, answer, _admitted } in shares {
        let results: Vec<_> = items.by_ref().take(count).collect();
        // A receiver that is gone has given up waiting.
        drop(answer.send(Ok(Proposed { id, store_time, lease_time, results })));
    }
}

fn refuse(shares: Vec<Share>, error: &ProposeError) {
    for share in shares {
        drop(share.answer.send(Err(error.clone())));
    }
}

fn refusal(error: ClientWriteError<TypeConfig>) -> ProposeError {
    match error {
        ClientWriteError::ForwardToLeader(ForwardToLeader { leader_id, leader_node, reason }) => match reason
        {
            ForwardReason::LeaseExpired => ProposeError::NoQuorum,
            ForwardReason::LeadershipTransfer => ProposeError::NotLeader { leader: None },
            ForwardReason::NotLeader => {
                let leader = leader_id.zip(leader_node).map(|(id, node)| leader_info(id, &node));
                ProposeError::NotLeader { leader }
            }
        },
        ClientWriteError::LogEntryDiscarded(_)
        | ClientWriteError::ChangeMembershipError(_)
        | ClientWriteError::PreconditionFailed(_) => ProposeError::Discarded,
    }
}

pub(crate) fn leader_info(id: NodeId, node: &Node) -> LeaderInfo {
    let Node { node, raft_address: _, api_address, client_address, role: _, store_id: _ } = node.clone();
    LeaderInfo { id, node, api_address, client_address }
}

/// Calls that are not in a frame yet.
#[derive(Default)]
struct Waiting {
    calls: VecDeque<Call>,
    bytes: usize,
    items: usize,
}

impl Waiting {
    fn push(&mut self, call: Call) {
        self.bytes += call.bytes;
        self.items += call.items.len();
        self.calls.push_back(call);
    }

    fn pop(&mut self) -> Option<Call> {
        let call = self.calls.pop_front()?;
        self.bytes -= call.bytes;
        self.items -= call.items.len();
        Some(call)
    }

    fn is_full(&self, limits: &Limits) -> bool {
        self.bytes >= limits.batch_bytes || self.items >= limits.batch_items as usize
    }

    /// The next frame: calls of one term in order, up to the batch's size, at least one. Calls that nobody waits
    /// for any more are left out.
    fn take(&mut self, limits: &Limits, body_limit: usize) -> Option<Vec<Call>> {
        let (mut batch, mut bytes, mut items) = (Vec::<Call>::new(), 0, 0);
        while let Some(next) = self.calls.front() {
            let first = batch.first();
            let fits = bytes + next.bytes <= body_limit && first.is_none_or(|f| f.term == next.term);
            let full = bytes >= limits.batch_bytes || items >= limits.batch_items as usize;
            if first.is_some() && (!fits || full) {
                break;
            }
            let Some(call) = self.pop() else { break };
            if !call.claim.take() {
                continue;
            }
            bytes += call.bytes;
            items += call.items.len();
            batch.push(call);
        }
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(term: u64, bytes: usize) -> (Call, oneshot::Receiver<Outcome>) {
        let (answer, receiver) = oneshot::channel();
        let account = Arc::new(Uncommitted::default());
        let admitted = account.admit(bytes as u64, u64::MAX).expect("no limit");
        let items = vec![EncodedItem::new(1, 0, 1, &[b"x"])];
        let claim = Claim::default();
        (Call { term: Term(term), items, bytes, admitted, answer, claim }, receiver)
    }

    #[test]
    fn a_frame_holds_calls_of_one_term_and_stops_at_its_limits() {
        let limits = Limits { batch_bytes: 100, ..Limits::default() };
        let mut waiting = Waiting::default();
        let mut receivers = Vec::new();
        for (term, bytes) in [(5, 10), (5, 10), (7, 60), (7, 60), (7, 60), (7, 500)] {
            let (call, receiver) = call(term, bytes);
            waiting.push(call);
            receivers.push(receiver);
        }
        let mut sizes = Vec::new();
        while let Some(batch) = waiting.take(&limits, 400) {
            sizes.push((batch[0].term.0, batch.iter().map(|c| c.bytes).collect::<Vec<_>>()));
        }
        let expected = vec![(5, vec![10, 10]), (7, vec![60, 60]), (7, vec![60]), (7, vec![500])];
        assert_eq!(sizes, expected);
        assert_eq!((waiting.bytes, waiting.items), (0, 0));
    }

    #[test]
    fn a_call_that_was_given_up_is_not_proposed() {
        let mut waiting = Waiting::default();
        let (given_up, _receiver) = call(5, 10);
        assert!(given_up.claim.take(), "the caller is first");
        waiting.push(given_up);
        assert!(waiting.take(&Limits::default(), 400).is_none());
    }

    #[test]
    fn admission_counts_bytes_until_the_outcome() {
        let account = Arc::new(Uncommitted::default());
        let first = account.admit(60, 100).expect("fits");
        assert!(matches!(account.admit(60, 100), Err(ProposeError::Busy { value: 120, limit: 100, .. })));
        drop(first);
        assert_eq!(account.bytes(), 0);
        drop(account.admit(500, 100).expect("alone"));
    }
}
