//! Between the name group's log and the route table: applies commands, keeps what changed, makes checkpoints.
//!
//! Families and keys of the state; values are the messages of `name_command.proto`:
//!
//! ```text
//! groups   broker group                        -> NameGroupRecord
//! topics   broker group, 0, namespace, 0, name -> NameTopic
//! staged   broker group, 0, part u32 be        -> NameFull
//! kv       namespace, 0, key                   -> NameKvRecord
//! counters "kv"                                -> NameKvCounter
//! ```
//!
//! What always holds: no name holds a 0, so that a key has one reading. The changes of one frame are one batch together with the applied entry. Readers see table and
//! stamp change as one, and before the state is written: the entry is committed and flushed, so a crash in between
//! applies it again, and nobody waits for RocksDB.

use std::sync::Arc;

use bytes::Bytes;
use mq_protocol::cluster::name_kv_result::Outcome as KvOutcome;
use mq_protocol::cluster::name_result::Outcome;
use mq_protocol::cluster::{
    NameFull, NameGroupRecord, NameKv, NameKvCounter, NameKvRecord, NameKvResult, NameResult, NameTopic,
};
use mq_raft::{Apply, ApplyDeps, ApplyError, CommittedFrame, FrameResults, encode_membership};
use mq_store::{
    Backend, CheckpointPolicy, CheckpointRecord, CommitLog, EntryId, FRAME_HEADER_LEN, FrameKind, GroupFiles,
    LogOffset, State, StateStore, WriteBatch, items,
};
use prost::Message;

use crate::command::Command;
use crate::kv::{self, KvTable};
use crate::name_state::{NameState, Shown};
use crate::route_changes::RouteChanges;
use crate::route_table::{Applied, Change, Group, RouteTable, topic_key};

/// Families of the state.
pub const FAMILIES: &[&str] = &["groups", "topics", "staged", "kv", "counters"];
const GROUPS: usize = 0;
const TOPICS: usize = 1;
const STAGED: usize = 2;
const KV: usize = 3;
const COUNTERS: usize = 4;
const KV_COUNTER: &[u8] = b"kv";

/// The state machine of the name group.
pub struct NameApply {
    store: StateStore,
    state: NameState,
    log: CommitLog,
    files: Arc<GroupFiles>,
    /// End and chain value of the newest frame applied by this process.
    last: Option<(LogOffset, u32)>,
    policy: CheckpointPolicy,
}

impl std::fmt::Debug for NameApply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameApply").field("last", &self.last).finish_non_exhaustive()
    }
}

/// Opens the state at its newest checkpoint and shows it in `state`. What the log has beyond it is applied again.
///
/// # Errors
/// State or log are damaged, or older than the checkpoint's record.
pub fn open(deps: ApplyDeps, backend: Backend, state: NameState) -> Result<NameApply, ApplyError> {
    let ApplyDeps { log, files, dir, meta: _, fs, retention: _ } = deps;
    let store = StateStore::open(fs, &dir.join("state"), FAMILIES, backend)?;
    store.check(&log, files.vote())?;
    let (table, kv, applied) = (load(&*store.state())?, load_kv(&*store.state())?, store.applied()?);
    let changes = RouteChanges::beginning_at(applied.unwrap_or_default().index.0);
    state.update(|shown| *shown = Shown { table, changes, kv, applied });
    Ok(NameApply { store, state, log, files, last: None, policy: CheckpointPolicy::default() })
}

impl NameApply {
    fn apply_frame(
        &mut self,
        shown: &mut Shown,
        frame: &CommittedFrame,
        batch: &mut WriteBatch,
        marks: &mut Vec<u64>,
    ) -> Result<FrameResults, ApplyError> {
        let mut results = Vec::new();
        match frame.kind {
            FrameKind::Items => {
                for item in items(&frame.body) {
                    let item = item?;
                    results.push(apply_item(shown, Command::decode(&item), frame.id, batch, marks));
                }
            }
            FrameKind::Membership => batch.set_membership(&encode_membership(frame)),
            FrameKind::Blank => {}
        }
        let len = (FRAME_HEADER_LEN + frame.body.len()).next_multiple_of(8) as u64;
        self.last = Some((LogOffset(frame.offset.0 + len), frame.head_crc));
        self.policy.applied(len);
        Ok(results)
    }

    fn checkpoint(&mut self) -> Result<(), ApplyError> {
        let Some((log_end, chain)) = self.last else { return Ok(()) };
        let record = CheckpointRecord { vote: self.files.vote(), log_end, chain };
        self.policy.begun();
        self.store.checkpoint(None, record)?;
        if let Some(checkpointed) = self.store.checkpointed() {
            self.log.checkpointed(checkpointed.index);
        }
        Ok(())
    }

    fn checkpoint_when_due(&mut self) -> Result<(), ApplyError> {
        if self.policy.due() { self.checkpoint() } else { Ok(()) }
    }
}

impl Apply for NameApply {
    fn applied(&self) -> Result<Option<EntryId>, ApplyError> {
        Ok(self.store.applied()?)
    }

    fn membership(&self) -> Result<Option<Bytes>, ApplyError> {
        Ok(self.store.membership()?.map(Bytes::from))
    }

    fn apply(
        &mut self,
        frames: &[CommittedFrame],
        results: &mut Vec<FrameResults>,
    ) -> Result<(), ApplyError> {
        let state = self.state.clone();
        for frame in frames {
            // One batch per frame: a digest mark sees the state after its own frame, however frames are grouped.
            let mut batch = WriteBatch::new();
            let mut marks = Vec::new();
            let answers = state.update(|shown| {
                let answers = self.apply_frame(shown, frame, &mut batch, &mut marks);
                shown.applied = Some(frame.id);
                answers
            })?;
            results.push(answers);
            batch.set_applied(frame.id);
            self.store.state().write(&batch)?;
            for mark in marks {
                state.digests().take(mark, frame.id.index, self.store.state().as_ref(), &self.log)?;
            }
        }
        self.checkpoint_when_due()
    }

    fn idle(&mut self) -> Result<(), ApplyError> {
        self.checkpoint_when_due()
    }

    fn stop(&mut self) -> Result<(), ApplyError> {
        self.checkpoint()
    }
}

/// Applies one item and answers it.
fn apply_item(
    shown: &mut Shown,
    command: Option<Command>,
    id: EntryId,
    batch: &mut WriteBatch,
    marks: &mut Vec<u64>,
) -> Bytes {
    let (group, outcome) = match command {
        Some(Command::Kv(command)) => return apply_kv(shown, &command, batch),
        Some(Command::Report(report)) => {
            let outcome =
                change_routes(shown, &report.broker_group, id, batch, |table| table.apply_report(&report));
            (report.broker_group, outcome)
        }
        Some(Command::Lost(lost)) => {
            let outcome =
                change_routes(shown, &lost.broker_group, id, batch, |table| table.apply_lost(&lost));
            (lost.broker_group, outcome)
        }
        Some(Command::DigestMark(mark)) => {
            marks.push(mark.mark);
            (String::new(), Outcome::Applied)
        }
        None => (String::new(), Outcome::Unknown),
    };
    answer(shown, (outcome, group), id)
}

fn change_routes(
    shown: &mut Shown,
    group: &str,
    id: EntryId,
    batch: &mut WriteBatch,
    apply: impl FnOnce(&mut RouteTable) -> Applied,
) -> Outcome {
    let before = shown.table.group(group).map(Group::shown_in_routes);
    let Applied { outcome, changes } = apply(&mut shown.table);
    let after = shown.table.group(group).map(Group::shown_in_routes);
    shown.changes.note(id.index.0, &changes, before != after);
    for change in &changes {
        keep(change, batch);
    }
    outcome
}

fn apply_kv(shown: &mut Shown, command: &NameKv, batch: &mut WriteBatch) -> Bytes {
    let outcome = shown.kv.apply(command);
    let name = (command.namespace.clone(), command.key.clone());
    let entry = shown.kv.get(&name);
    if outcome == kv::Outcome::Applied {
        let key = key(&name.0, name.1.as_bytes());
        match entry {
            Some(kv::Entry { value, revision, created }) => {
                let record = NameKvRecord { value: value.clone(), revision: *revision, created: *created };
                batch.put(KV, &key, &record.encode_to_vec());
            }
            None => batch.delete(KV, &key),
        }
        let counter = NameKvCounter { revision: shown.kv.revision() };
        batch.put(COUNTERS, KV_COUNTER, &counter.encode_to_vec());
    }
    let outcome = match outcome {
        kv::Outcome::Applied => KvOutcome::Applied,
        kv::Outcome::Unchanged => KvOutcome::Unchanged,
        kv::Outcome::Mismatch => KvOutcome::Mismatch,
        kv::Outcome::Full => KvOutcome::Full,
    };
    let kv::Entry { value, revision, created } = entry.cloned().unwrap_or_default();
    let result = NameKvResult {
        outcome: outcome.into(),
        revision: shown.kv.revision(),
        present: entry.is_some(),
        value,
        key_revision: revision,
        created,
    };
    result.encode_to_vec().into()
}

fn answer(shown: &Shown, (outcome, group): (Outcome, String), id: EntryId) -> Bytes {
    let record = shown.table.group(&group).map(|group| group.record());
    let result = NameResult {
        outcome: outcome.into(),
        view_index: record.map_or(0, |record| record.view_index),
        has_view: record.is_some_and(|record| record.has_view),
        term: id.term.0,
        index: id.index.0,
    };
    result.encode_to_vec().into()
}

fn key(group: &str, rest: &[u8]) -> Vec<u8> {
    [group.as_bytes(), &[0], rest].concat()
}

/// Writes a change to where [`load`] finds it.
fn keep(change: &Change, batch: &mut WriteBatch) {
    match change {
        Change::Group(record) => batch.put(GROUPS, record.broker_group.as_bytes(), &record.encode_to_vec()),
        Change::Topic { group, topic } => {
            let topic_key = topic_key(&topic.namespace, &topic.name);
            batch.put(TOPICS, &key(group, topic_key.as_bytes()), &topic.encode_to_vec());
        }
        Change::TopicGone { group, key: gone } => batch.delete(TOPICS, &key(group, gone.as_bytes())),
        Change::Staged { group, full } => {
            batch.put(STAGED, &key(group, &full.part.to_be_bytes()), &full.encode_to_vec());
        }
        Change::StagedGone { group, part } => batch.delete(STAGED, &key(group, &part.to_be_bytes())),
    }
}

fn load(state: &dyn State) -> Result<RouteTable, ApplyError> {
    let records: Vec<(String, NameGroupRecord)> = rows(state, GROUPS)?;
    let topics: Vec<(String, NameTopic)> = rows(state, TOPICS)?;
    let staged: Vec<(String, NameFull)> = rows(state, STAGED)?;
    Ok(RouteTable::load(records.into_iter().map(|(_, record)| record).collect(), topics, staged))
}

fn load_kv(state: &dyn State) -> Result<KvTable, ApplyError> {
    let mut records = Vec::new();
    let mut unreadable = None;
    state.scan(KV, &[], None, &mut |key, value| {
        let name = std::str::from_utf8(key).ok().and_then(|key| key.split_once('\0'));
        match (name, NameKvRecord::decode(value)) {
            (Some((namespace, key)), Ok(record)) => {
                records.push(((namespace.to_owned(), key.to_owned()), record));
            }
            _ => unreadable = Some(key.escape_ascii().to_string()),
        }
        unreadable.is_none()
    })?;
    let counter = match state.get(COUNTERS, KV_COUNTER)? {
        None => Ok(NameKvCounter::default()),
        Some(bytes) => NameKvCounter::decode(&bytes[..]),
    };
    match (unreadable, counter) {
        (None, Ok(NameKvCounter { revision })) => Ok(KvTable::load(records, revision)),
        (Some(key), _) => {
            Err(ApplyError::Other(format!("state family {}: unreadable row {key:?}", FAMILIES[KV])))
        }
        (None, Err(error)) => Err(ApplyError::Other(format!("state family {}: {error}", FAMILIES[COUNTERS]))),
    }
}

/// All rows of a family with the broker group that their key begins with.
fn rows<T: Message + Default>(state: &dyn State, family: usize) -> Result<Vec<(String, T)>, ApplyError> {
    let mut rows = Vec::new();
    let mut damaged = None;
    state.scan(family, &[], None, &mut |key, value| {
        let group = key.split(|byte| *byte == 0).next().unwrap_or_default();
        match (std::str::from_utf8(group), T::decode(value)) {
            (Ok(group), Ok(row)) => rows.push((group.to_owned(), row)),
            _ => damaged = Some(key.escape_ascii().to_string()),
        }
        damaged.is_none()
    })?;
    match damaged {
        Some(key) => {
            Err(ApplyError::Other(format!("state family {}: unreadable row {key:?}", FAMILIES[family])))
        }
        None => Ok(rows),
    }
}

#[cfg(test)]
mod tests;
