//! Damaged frames of the log, fetched from another member (D11). What comes is taken only if the chain fits at both ends,
//! which proves that these are the bytes that were written here; who sends them does not matter.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mq_protocol::cluster as wire;
use mq_store::{DamagedRange, LogOffset, StoreError};

use crate::config::MemberConfig;
use crate::error::StartError;
use crate::group::Inner;
use crate::network::local::Uuid;

/// Ranges that one start repairs; more is a disk that has to be replaced.
pub(crate) const REPAIRS_MAX: usize = 16;
/// A longer range is not fetched: a snapshot is cheaper, or the disk is gone.
const RANGE_MAX: u64 = 64 << 20;
/// One answer has this long.
const ANSWER: Duration = Duration::from_secs(10);
/// The others may be starting, too: they are asked again this often, with a pause.
const ROUNDS: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// Repairs what recovery found; the damage itself, with what was tried, if that is not possible.
pub(crate) async fn repair(inner: &Arc<Inner>, damage: &StoreError) -> Result<(), StartError> {
    let StoreError::Damaged { from, to, chain_before, chain_after, .. } = damage else {
        return Err(StartError::Store(damage.clone()));
    };
    let range = DamagedRange {
        offset: *from,
        len: to.0.saturating_sub(from.0),
        chain_before: *chain_before,
        chain_after: *chain_after,
    };
    tracing::warn!(group = %inner.config.group, "fetching from another member: {damage}");
    for round in 0..ROUNDS {
        match from_members(inner, &range).await {
            Ok(()) => return Ok(()),
            Err(Refused::Here(error)) => return Err(StartError::Store(error)),
            Err(Refused::Range(why)) => tracing::error!(group = %inner.config.group, "not repaired: {why}"),
            Err(Refused::Members(why)) if round + 1 < ROUNDS => {
                tracing::warn!(group = %inner.config.group, "not repaired yet: {why}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(Refused::Members(why)) => tracing::error!(group = %inner.config.group, "not repaired: {why}"),
        }
        break;
    }
    Err(StartError::Store(damage.clone()))
}

/// Repairs what reads have noted, as far as a member answers now; what is left fails again when it is read.
pub(crate) async fn repair_noted(inner: &Arc<Inner>) -> Result<(), StartError> {
    let meta = inner.files.meta().unwrap_or_default();
    // The files are about to change, maybe as a whole: the ranges may not be theirs any more.
    if meta.intent.is_some() {
        return Ok(());
    }
    for range in meta.damage {
        match from_members(inner, &range).await {
            Ok(()) => {}
            Err(Refused::Here(error)) => return Err(StartError::Store(error)),
            Err(Refused::Range(why) | Refused::Members(why)) => {
                tracing::warn!(group = %inner.config.group, from = %range.offset, "still damaged: {why}");
            }
        }
    }
    Ok(())
}

enum Refused {
    /// The local disk failed: final.
    Here(StoreError),
    /// Nobody is asked for that much.
    Range(String),
    /// No member had it.
    Members(String),
}

async fn from_members(inner: &Arc<Inner>, range: &DamagedRange) -> Result<(), Refused> {
    if range.len > RANGE_MAX {
        return Err(Refused::Range(format!("{} bytes are damaged, the limit is {RANGE_MAX}", range.len)));
    }
    let me = inner.endpoint.local.me;
    let mut tried = Vec::new();
    for member in inner.config.members.iter().filter(|member| member.id != me) {
        let fetched = match fetch(inner, member, range).await {
            Ok(bytes) => bytes,
            Err(why) => {
                tried.push(format!("{}: {why}", member.node));
                continue;
            }
        };
        let (files, range) = (inner.files.clone(), *range);
        let repair = move || mq_store::commit_log::repair(&files, &range, &fetched);
        match inner.transport.handle().spawn_blocking(repair).await {
            Ok(Ok(())) => return Ok(()),
            // A failed write of a repair is final like any other one.
            Ok(Err(error @ StoreError::Io { .. })) => return Err(Refused::Here(error)),
            Ok(Err(why)) => tried.push(format!("{}: {why}", member.node)),
            Err(why) => tried.push(format!("{}: {why}", member.node)),
        }
    }
    if tried.is_empty() {
        return Err(Refused::Range("the group has no other member that could have it".to_owned()));
    }
    Err(Refused::Members(tried.join("; ")))
}

async fn fetch(inner: &Arc<Inner>, member: &MemberConfig, range: &DamagedRange) -> Result<Bytes, String> {
    let peer = inner.endpoint.peers.get(&member.raft_address)?;
    let (mut next, end) = (range.offset, range.offset.0 + range.len);
    let mut bytes = BytesMut::new();
    while next.0 < end {
        let request = wire::FetchFramesRequest {
            header: Some(inner.endpoint.local.header(member.id)),
            from: next.0,
            max_bytes: end - next.0,
        };
        let mut bulk = peer.bulk();
        let call = async {
            inner.endpoint.faults.pass(member.id).await;
            bulk.fetch_frames(request).await
        };
        let answer = tokio::time::timeout(ANSWER, call).await;
        let answer = answer.map_err(|_| format!("no answer within {ANSWER:?}"))?;
        let answer = answer.map_err(|status| status.to_string())?.into_inner();
        let local = &inner.endpoint.local;
        local.check_answer(answer.header.as_ref(), member.id, Uuid::Equal).map_err(|e| e.to_string())?;
        // The rest of a segment may be unused: then the next frame lies behind the range.
        if answer.start >= end {
            break;
        }
        if answer.frames.is_empty() || answer.next <= next.0 || answer.frames.len() as u64 > RANGE_MAX {
            return Err(format!("{} bytes up to {} for {next}", answer.frames.len(), answer.next));
        }
        bytes.extend_from_slice(&answer.frames);
        if bytes.len() as u64 > range.len {
            return Err(format!("a frame that begins at or behind {next} ends behind {end}"));
        }
        next = LogOffset(answer.next);
    }
    Ok(bytes.freeze())
}
