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
//! - before `joined` a node has neither voted nor stored, so anything up to there may be repeated after a crash;
//! - the same holds for a node with `joined` but no vote and no entry: it was killed between the two. It joins anew,
//!   else the first one, killed there, would wait for ever for an entry that only itself could propose.

mod form;

use std::sync::Arc;

use mq_protocol::cluster as wire;
use mq_runtime::random::Random;
use mq_store::StoreError;
use mq_store::commit_log::{CommitLog, CommitLogConfig};
use mq_store::{GroupFiles, GroupMeta};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::{GroupConfig, MAX_FRAME, NodeId};
use crate::error::{IdentityMismatch, StartError};
use crate::network::local::Local;
use crate::vote;

pub(crate) use form::{Start, form};

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
                    let gone = IdentityMismatch {
                        place: files.meta_path().display().to_string(),
                        ..mismatch(&files, "identity", "one beside the log", "none")
                    };
                    return Err(gone.into());
                }
                files.save_meta(&meta)?;
                meta
            }
        };
        check_meta(&files, &meta, config, me)?;
        if meta.joined && took_no_part(&files, &meta)? {
            files.update_meta(|meta| meta.joined = false)?;
        }
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

/// Neither a vote nor an entry was ever durable here, so nobody was told anything: a vote of term 1 or above is
/// synced before the first answer to a candidate or leader, and before an own candidacy.
fn took_no_part(files: &Arc<GroupFiles>, meta: &GroupMeta) -> Result<bool, StoreError> {
    if files.vote().as_ref().and_then(vote::from_record).is_some() {
        return Ok(false);
    }
    let config = CommitLogConfig {
        segment_size: meta.segment_size,
        frame_limit: meta.frame_limit,
        ring_bytes: 0,
        write_batch_bytes: meta.frame_limit as usize,
        chain_start: meta.chain_start,
    };
    let (log, _) = CommitLog::open(files.clone(), config, None)?;
    let empty = log.last().or(log.purged()).is_none();
    log.stop();
    Ok(empty)
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
        let (name, found) =
            if files.vote().is_none() { ("raft/vote", "no vote") } else { ("commitlog", "no log") };
        let gone = IdentityMismatch {
            place: files.dir().join(name).display().to_string(),
            ..mismatch(files, "content", "vote and log of a member", found)
        };
        return Err(gone.into());
    }
    Ok(())
}
