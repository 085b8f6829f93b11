//! What a member knows of itself and of its log, in `raft/meta`.
//!
//! ```text
//!  version u16 = 1
//!  cluster, group, group_uuid, store_id        each: length u16, UTF-8
//!  members                                     count u16, each as above
//!  segment_size u64 · frame_limit u32 · node_id u64 · joined u8
//!  purged                                      0 | 1, term u64, index u64
//!  physical_start u64 · chain_start u32
//!  intent                                      0 | 1 (truncation), cut u64, first u64, old_end u64, head_crc u32
//!                                                | 2 (install), term u64, index u64, physical start u64, chain start u32
//!  damage                                      count u16, each: offset u64, len u64, chain_before u32, chain_after u32
//!  little-endian, one after the other
//! ```

use crate::error::Result;
use crate::snapshot::Install;
use crate::{EntryId, LogOffset, StoreError};

const VERSION: u16 = 1;

/// A change of the log's files that has begun; recovery finishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Everything from `cut` on goes away.
    Truncate {
        /// End of the last frame that is kept.
        cut: LogOffset,
        /// Place of the first frame that goes; in the next segment if it did not fit behind `cut`.
        first: LogOffset,
        /// End of the log before.
        old_end: LogOffset,
        /// head_crc of the first frame that goes.
        head_crc: u32,
    },
    /// The staged snapshot takes the place of log, queues and state.
    Install(Install),
}

/// Frames of the log that a read found damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// First byte.
    pub offset: LogOffset,
    /// Number of bytes.
    pub len: u64,
    /// head_crc of the frame before the range.
    pub chain_before: u32,
    /// prev_crc of the frame behind the range.
    pub chain_after: u32,
}

impl DamagedRange {
    /// Offset behind the range.
    #[must_use]
    pub const fn end(&self) -> LogOffset {
        LogOffset(self.offset.0 + self.len)
    }
}

/// Identity of a member and of its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMeta {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the group.
    pub group: String,
    /// Made once for a group, at bootstrap.
    pub group_uuid: String,
    /// The members at bootstrap.
    pub members: Vec<String>,
    /// Bytes of a segment, fixed at bootstrap.
    pub segment_size: u64,
    /// Greatest frame in bytes, fixed at bootstrap.
    pub frame_limit: u32,
    /// Id of this member.
    pub node_id: u64,
    /// Made with the folder.
    pub store_id: String,
    /// This member has voted or appended, or is about to.
    pub joined: bool,
    /// Entries up to here are purged from the Raft log.
    pub purged: Option<EntryId>,
    /// Where the oldest segment begins.
    pub physical_start: LogOffset,
    /// prev_crc of the frame at `physical_start`.
    pub chain_start: u32,
    /// A change that has begun.
    pub intent: Option<Intent>,
    /// Damage that reads have found.
    pub damage: Vec<DamagedRange>,
}

impl GroupMeta {
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let Self {
            cluster,
            group,
            group_uuid,
            members,
            segment_size,
            frame_limit,
            node_id,
            store_id,
            joined,
            purged,
            physical_start,
            chain_start,
            intent,
            damage,
        } = self;
        let mut out = VERSION.to_le_bytes().to_vec();
        for text in [cluster, group, group_uuid, store_id] {
            put_text(&mut out, text)?;
        }
        put_count(&mut out, "members", members.len())?;
        for member in members {
            put_text(&mut out, member)?;
        }
        out.extend_from_slice(&segment_size.to_le_bytes());
        out.extend_from_slice(&frame_limit.to_le_bytes());
        out.extend_from_slice(&node_id.to_le_bytes());
        out.push(u8::from(*joined));
        out.push(u8::from(purged.is_some()));
        if let Some(id) = purged {
            out.extend_from_slice(&id.term.0.to_le_bytes());
            out.extend_from_slice(&id.index.0.to_le_bytes());
        }
        out.extend_from_slice(&physical_start.0.to_le_bytes());
        out.extend_from_slice(&chain_start.to_le_bytes());
        put_intent(&mut out, intent.as_ref());
        put_count(&mut out, "damaged ranges", damage.len())?;
        for range in damage {
            out.extend_from_slice(&range.offset.0.to_le_bytes());
            out.extend_from_slice(&range.len.to_le_bytes());
            out.extend_from_slice(&range.chain_before.to_le_bytes());
            out.extend_from_slice(&range.chain_after.to_le_bytes());
        }
        Ok(out)
    }

    /// The record, or what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest(bytes);
        let version = u16::from_le_bytes(rest.array()?);
        if version != VERSION {
            return Err(format!("meta version {version}"));
        }
        let [cluster, group, group_uuid, store_id] = [rest.text()?, rest.text()?, rest.text()?, rest.text()?];
        let count = u16::from_le_bytes(rest.array()?);
        let members = (0..count).map(|_| rest.text()).collect::<Result<_, _>>()?;
        let segment_size = rest.u64()?;
        let frame_limit = rest.u32()?;
        let node_id = rest.u64()?;
        let joined = rest.flag()?;
        let purged = if rest.flag()? { Some(EntryId::new(rest.u64()?, rest.u64()?)) } else { None };
        let physical_start = LogOffset(rest.u64()?);
        let chain_start = rest.u32()?;
        let intent = rest.intent()?;
        let count = u16::from_le_bytes(rest.array()?);
        let damage = (0..count)
            .map(|_| {
                Ok::<_, String>(DamagedRange {
                    offset: LogOffset(rest.u64()?),
                    len: rest.u64()?,
                    chain_before: rest.u32()?,
                    chain_after: rest.u32()?,
                })
            })
            .collect::<Result<_, _>>()?;
        if !rest.0.is_empty() {
            return Err(format!("{} bytes behind the end", rest.0.len()));
        }
        Ok(Self {
            cluster,
            group,
            group_uuid,
            members,
            segment_size,
            frame_limit,
            node_id,
            store_id,
            joined,
            purged,
            physical_start,
            chain_start,
            intent,
            damage,
        })
    }
}

fn put_intent(out: &mut Vec<u8>, intent: Option<&Intent>) {
    let (kind, numbers, crc) = match intent {
        None => return out.push(0),
        Some(Intent::Truncate { cut, first, old_end, head_crc }) => {
            (1, [cut.0, first.0, old_end.0], head_crc)
        }
        Some(Intent::Install(Install { snapshot, physical_start, chain_start })) => {
            (2, [snapshot.term.0, snapshot.index.0, physical_start.0], chain_start)
        }
    };
    out.push(kind);
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&crc.to_le_bytes());
}

fn put_count(out: &mut Vec<u8>, what: &'static str, count: usize) -> Result<()> {
    let limit = u16::MAX;
    let count = u16::try_from(count).map_err(|_| StoreError::Limit {
        what,
        value: count as u64,
        limit: u64::from(limit),
    })?;
    out.extend_from_slice(&count.to_le_bytes());
    Ok(())
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Result<()> {
    put_count(out, "bytes of a name", text.len())?;
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// What is left to decode.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl Rest<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or("the record ends early")?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, String> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(format!("{other} where 0 or 1 has to stand")),
        }
    }

    fn intent(&mut self) -> Result<Option<Intent>, String> {
        match self.array()? {
            [0] => Ok(None),
            [1] => Ok(Some(Intent::Truncate {
                cut: LogOffset(self.u64()?),
                first: LogOffset(self.u64()?),
                old_end: LogOffset(self.u64()?),
                head_crc: self.u32()?,
            })),
            [2] => Ok(Some(Intent::Install(Install {
                snapshot: EntryId::new(self.u64()?, self.u64()?),
                physical_start: LogOffset(self.u64()?),
                chain_start: self.u32()?,
            }))),
            [other] => Err(format!("intent {other}")),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        let (head, tail) = self.0.split_at_checked(len).ok_or("the record ends early")?;
        self.0 = tail;
        String::from_utf8(head.to_vec()).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_comes_back_as_it_went_in() {
        let mut meta = GroupMeta {
            cluster: "c".into(),
            group: "broker-a".into(),
            group_uuid: "u-1".into(),
            members: vec!["n1=h:1".into(), "n2=h:2".into()],
            segment_size: 1 << 30,
            frame_limit: 8 << 20,
            node_id: 3,
            store_id: "s".into(),
            joined: true,
            purged: Some(EntryId::new(7, 20)),
            physical_start: LogOffset(1 << 30),
            chain_start: 0xABCD,
            intent: Some(Intent::Truncate {
                cut: LogOffset(8),
                first: LogOffset(16),
                old_end: LogOffset(96),
                head_crc: 5,
            }),
            damage: vec![DamagedRange { offset: LogOffset(24), len: 8, chain_before: 1, chain_after: 2 }],
        };
        let install = Install {
            snapshot: EntryId::new(7, 90),
            physical_start: LogOffset(1 << 30),
            chain_start: 0xDCBA,
        };
        for _ in 0..3 {
            let bytes = meta.encode().expect("small");
            assert_eq!(GroupMeta::decode(&bytes).as_ref(), Ok(&meta));
            for len in 0..bytes.len() {
                assert!(GroupMeta::decode(&bytes[..len]).is_err(), "cut to {len} bytes");
            }
            let next =
                matches!(meta.intent, Some(Intent::Truncate { .. })).then_some(Intent::Install(install));
            (meta.purged, meta.intent, meta.damage) = (None, next, Vec::new());
        }
    }
}
