//! What a log must hold after a crash: all that was confirmed, and of what was not, some prefix in the order of the calls.

use std::sync::Arc;

use bytes::Bytes;
use mq_store::{
    AppendEntry, CommitLog, EntryId, FlushCallback, GroupFiles, LogIndex, StoreError, VoteRecord,
};
use parking_lot::Mutex;

use super::read_all;

#[derive(Clone, Debug)]
pub enum Op {
    Append(Vec<AppendEntry>),
    Truncate(Option<u64>),
    Vote(VoteRecord),
    Purge(EntryId),
}

/// Content of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub entries: Vec<(EntryId, Bytes)>,
    pub purged: Option<EntryId>,
    pub vote: Option<VoteRecord>,
}

impl Model {
    pub fn of(log: &CommitLog, files: &GroupFiles) -> Result<Self, StoreError> {
        let entries = read_all(log)?.into_iter().map(|e| (e.entry.id(), e.entry.body)).collect();
        Ok(Self { entries, purged: log.purged(), vote: files.vote() })
    }

    pub fn last(&self) -> Option<EntryId> {
        self.entries.last().map(|(id, _)| *id).or(self.purged)
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Append(entries) => self.entries.extend(entries.iter().map(kept)),
            Op::Truncate(last) => self.entries.retain(|(id, _)| last.is_some_and(|l| id.index.0 <= l)),
            Op::Vote(vote) => self.vote = Some(*vote),
            Op::Purge(upto) => {
                if self.purged.is_none_or(|p| p.index < upto.index) {
                    self.purged = Some(*upto);
                }
                self.entries.retain(|(id, _)| id.index > upto.index);
            }
        }
    }

    /// Every state that a crash may leave when `pending` was asked for and not confirmed.
    pub fn outcomes(&self, pending: &[Op]) -> Vec<Self> {
        let mut now = self.clone();
        let mut all = vec![now.clone()];
        for op in pending {
            if let Op::Append(entries) = op {
                for entry in entries {
                    now.entries.push(kept(entry));
                    all.push(now.clone());
                }
            } else {
                now.apply(op);
                all.push(now.clone());
            }
        }
        all
    }

    /// For a failure's text.
    pub fn short(&self) -> String {
        let ids: Vec<String> = self
            .entries
            .iter()
            .map(|(id, body)| format!("{id}:{:04x}", crc32c::crc32c(body) & 0xFFFF))
            .collect();
        format!("[{}] purged {:?} vote {:?}", ids.join(" "), self.purged, self.vote)
    }
}

fn kept(entry: &AppendEntry) -> (EntryId, Bytes) {
    (entry.entry.id(), entry.entry.body.clone())
}

/// Calls made of one open log, and what came back.
#[derive(Default)]
pub struct Issued {
    pub ops: Vec<Op>,
    told: Arc<Mutex<Vec<(usize, bool)>>>,
}

impl Issued {
    /// Makes the call without waiting.
    pub fn issue(&mut self, log: &CommitLog, op: Op) {
        let number = self.ops.len();
        let told = Arc::clone(&self.told);
        let done: FlushCallback = Box::new(move |result| told.lock().push((number, result.is_ok())));
        self.ops.push(op.clone());
        match op {
            Op::Append(entries) => {
                if log.append(entries, done).is_err() {
                    self.told.lock().push((number, false));
                }
            }
            Op::Truncate(last) => log.truncate_after(last.map(LogIndex), done),
            Op::Vote(vote) => log.save_vote(vote, done),
            Op::Purge(upto) => log.purge(upto, done),
        }
    }

    /// True once the last call was told.
    pub fn settled(&self) -> bool {
        self.told.lock().len() == self.ops.len()
    }

    /// Calls that were confirmed, which must be the first ones in their order, and calls that were not; all must be told.
    pub fn outcome(self) -> Result<(Vec<Op>, Vec<Op>), String> {
        let told = self.told.lock().clone();
        if told.len() != self.ops.len() {
            return Err(format!("{} calls, {} told", self.ops.len(), told.len()));
        }
        // Calls that come after a failure are refused at once, maybe before the waiting ones are told of it.
        let confirmed = told.iter().take_while(|(_, ok)| *ok).count();
        if told[..confirmed].iter().enumerate().any(|(at, (number, _))| at != *number) {
            return Err(format!("told out of order: {told:?}"));
        }
        if told[confirmed..].iter().any(|(_, ok)| *ok) {
            return Err(format!("something succeeded after a failure: {told:?}"));
        }
        let mut ops = self.ops;
        let pending = ops.split_off(confirmed);
        Ok((ops, pending))
    }
}
