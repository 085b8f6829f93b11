//! Where the frames of a sealed segment lie, kept beside the log so that a start need not read the segment:
//! `raft/sparse/<segment>.idx`.
//!
//! ```text
//!  "MQSI" · version u16 = 1 · zero u16
//!  base u64 · end u64 · first index u64        end: behind the last frame
//!  prev_crc u32 · chain u32                    of the first frame; head_crc of the last one
//!  terms u32 · frames u32
//!  terms times  { first index u64, term u64 }
//!  frames times { (offset - base) / 8 u32 }
//!  crc32c u32 of all before it                 little-endian
//! ```
//!
//! Derived: a file that is missing, damaged or of another content than the segment is not used, the segment is read then.
//! It is used only if the first and the last frame on disk are the ones it names; the chain value of the last one stands for
//! all before it. So one that a truncation made obsolete does no harm.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::handle::Shared;
use super::scan::Scanner;
use crate::error::Result;
use crate::fs::{OpenMode, create_dir_durably};
use crate::group_files::GroupFiles;
use crate::log_index::Frames;
use crate::segment::Segment;
use crate::{LogOffset, StoreError, Term};

const MAGIC: &[u8; 4] = b"MQSI";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 48;

/// Segments that wait to be written down; one that does not fit is read at the next start instead.
const QUEUE: usize = 64;

/// A sealed segment as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) frames: Frames,
    pub(super) prev_crc: u32,
    pub(super) chain: u32,
}

fn path_of(files: &GroupFiles, base: LogOffset) -> PathBuf {
    files.dir().join("raft").join("sparse").join(format!("{:020}.idx", base.0))
}

impl Sealed {
    fn encode(&self) -> Vec<u8> {
        let Frames { base, end, first, terms, offsets } = &self.frames;
        let mut out = Vec::with_capacity(HEADER_LEN + 16 * terms.len() + 4 * offsets.len() + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        for number in [*base, *end, *first] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.prev_crc, self.chain, terms.len() as u32, offsets.len() as u32] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for (index, term) in terms {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&term.0.to_le_bytes());
        }
        for offset in offsets {
            out.extend_from_slice(&offset.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        let whole = crc32c::crc32c(body) == u32::from_le_bytes(*crc);
        let (head, mut rest) = body.split_at_checked(HEADER_LEN)?;
        if !whole || &head[..4] != MAGIC || u16::from_le_bytes([head[4], head[5]]) != VERSION {
            return None;
        }
        let u64_at = |at: usize| head[at..].first_chunk().map(|raw| u64::from_le_bytes(*raw));
        let u32_at = |at: usize| head[at..].first_chunk().map(|raw| u32::from_le_bytes(*raw));
        let (terms, frames) = (u32_at(40)? as usize, u32_at(44)? as usize);
        if rest.len() != terms.checked_mul(16)?.checked_add(frames.checked_mul(4)?)? || frames == 0 {
            return None;
        }
        let mut list = Vec::with_capacity(terms);
        for _ in 0..terms {
            let (index, behind) = rest.split_first_chunk::<8>()?;
            let (term, behind) = behind.split_first_chunk::<8>()?;
            list.push((u64::from_le_bytes(*index), Term(u64::from_le_bytes(*term))));
            rest = behind;
        }
        let offsets: Vec<u32> =
            rest.chunks_exact(4).filter_map(|c| c.first_chunk().map(|c| u32::from_le_bytes(*c))).collect();
        let frames = Frames { base: u64_at(8)?, end: u64_at(16)?, first: u64_at(24)?, terms: list, offsets };
        Some(Self { frames, prev_crc: u32_at(32)?, chain: u32_at(36)? })
    }

    /// What the file of this segment says, if that is what the segment holds: its first and its last frame are read.
    pub(super) fn load(files: &GroupFiles, segment: &Segment) -> Result<Option<Self>> {
        let path = path_of(files, segment.base);
        let file = match files.fs().open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "not used, its segment is read");
                return Ok(None);
            }
        };
        let read = file.len().and_then(|len| {
            let mut bytes = vec![0; len as usize];
            let read = file.read_at(&mut bytes, 0)?;
            bytes.truncate(read);
            Ok(bytes)
        });
        let sealed = match read {
            Ok(bytes) => Self::decode(&bytes),
            Err(error) => {
                tracing::warn!(%error, "not used, its segment is read");
                return Ok(None);
            }
        };
        let Some(sealed) = sealed.filter(|sealed| sealed.frames.base == segment.base.0) else {
            tracing::warn!(path = %path.display(), "damaged, its segment is read");
            return Ok(None);
        };
        if sealed.fits(segment)? {
            return Ok(Some(sealed));
        }
        tracing::info!(path = %path.display(), "of an older content, its segment is read");
        Ok(None)
    }

    fn fits(&self, segment: &Segment) -> Result<bool> {
        let mut scanner = Scanner::new(segment)?;
        let (first, last) = self.frames.ends();
        let (Ok(one), Ok(other)) = (scanner.header(segment.base)?, scanner.header(last.1)?) else {
            return Ok(false);
        };
        Ok((one.id, one.prev_crc) == (first, self.prev_crc)
            && (other.id, other.head_crc, other.end().0) == (last.0, self.chain, self.frames.end)
            && other.end() <= LogOffset(scanner.file_end.0.next_multiple_of(8)))
    }

    /// Writes the file of a segment whose frames these are; it survives a power cut on return.
    pub(super) fn write(files: &GroupFiles, segment: &Segment, frames: Frames) -> Result<()> {
        let mut scanner = Scanner::new(segment)?;
        let (_, last) = frames.ends();
        let (Ok(one), Ok(other)) = (scanner.header(segment.base)?, scanner.header(last.1)?) else {
            return Ok(());
        };
        let sealed = Self { frames, prev_crc: one.prev_crc, chain: other.head_crc };
        if !sealed.fits(segment)? {
            return Ok(());
        }
        let path = path_of(files, segment.base);
        let fs = files.fs();
        if let Some(dir) = path.parent() {
            let tmp = path.with_extension("tmp");
            let file = fs.open(&tmp, OpenMode::Create)?;
            file.set_len(0)?;
            file.write_at(&[IoSlice::new(&sealed.encode())], 0)?;
            file.sync_all()?;
            fs.rename(&tmp, &path)?;
            fs.sync_dir(dir)?;
        }
        Ok(())
    }
}

/// Removes the files of segments that are gone.
pub(super) fn remove(files: &GroupFiles, below: LogOffset) -> Result<()> {
    let dir = files.dir().join("raft").join("sparse");
    if !files.fs().exists(&dir)? {
        return Ok(());
    }
    for name in files.fs().read_dir(&dir)? {
        let base = name.strip_suffix(".idx").and_then(|digits| digits.parse::<u64>().ok());
        if base.is_some_and(|base| base < below.0) {
            files.fs().remove_file(&dir.join(name))?;
        }
    }
    Ok(())
}

/// The thread that writes sealed segments down, away from the log writer.
pub(crate) struct Sealer {
    queue: Option<SyncSender<LogOffset>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sealer {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self> {
        create_dir_durably(&**shared.files.fs(), &shared.files.dir().join("raft").join("sparse"))?;
        let (queue, sealed) = sync_channel(QUEUE);
        let dir = shared.segments.dir().to_path_buf();
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("log-sealer".into())
            .spawn(move || run(&shared, &sealed))
            .map_err(|e| StoreError::io("start thread for", &dir, e))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Never waits. Every frame of the segment is flushed.
    pub(crate) fn seal(&self, base: LogOffset) {
        if let Some(queue) = &self.queue
            && queue.try_send(base).is_err()
        {
            tracing::debug!(%base, "read at the next start instead");
        }
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of sealed segments panicked");
        }
    }
}

fn run(shared: &Shared, sealed: &Receiver<LogOffset>) {
    while let Ok(base) = sealed.recv() {
        if shared.tail.lock().failed.is_some() {
            return;
        }
        if let Err(error) = write_down(shared, base) {
            // Derived data: nothing is lost. As with the log, what failed is not tried again by this process.
            tracing::warn!(%error, %base, "sealed segments are not written down any more, the next start reads them");
            return;
        }
    }
}

/// Writes the file of a segment that is in memory whole.
pub(super) fn write_down(shared: &Shared, base: LogOffset) -> Result<()> {
    let frames = shared.tail.lock().index.frames(base);
    let (Some(frames), Some(segment)) = (frames, shared.segments.starting_at(base)) else { return Ok(()) };
    Sealed::write(&shared.files, &segment, frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_as_it_went_in_and_every_flipped_bit_and_cut_is_noticed() {
        let frames = Frames {
            base: 4096,
            end: 8000,
            first: 17,
            terms: vec![(17, Term(3)), (19, Term(5))],
            offsets: vec![0, 9, 30, 400],
        };
        let sealed = Sealed { frames, prev_crc: 1, chain: 2 };
        let bytes = sealed.encode();
        assert_eq!(Sealed::decode(&bytes), Some(sealed));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Sealed::decode(&flipped), None, "bit {bit}");
        }
        assert!((0..bytes.len()).all(|len| Sealed::decode(&bytes[..len]).is_none()));
    }

    /// A log of `segments` GiB whose bodies are holes in the files.
    fn hollow_log(
        dir: &std::path::Path,
        config: &super::super::CommitLogConfig,
        segments: u64,
    ) -> crate::EntryId {
        use super::super::frame::{BatchMark, BatchNumber, encode_header, frame_len, set_batch};
        use super::super::{FrameKind, LogEntry};
        use crate::fs::{FileSystem, OsFileSystem};

        let body = bytes::Bytes::from(vec![0; config.frame_limit as usize - super::super::FRAME_HEADER_LEN]);
        let mut entry = LogEntry::new(FrameKind::Items, crate::EntryId::new(1, 0), body);
        let folder = dir.join("commitlog");
        create_dir_durably(&OsFileSystem, &folder).expect("creates");
        let (mut at, mut chain, mut number) = (0, config.chain_start, BatchNumber::default());
        for base in (0..segments).map(|n| n * config.segment_size) {
            let path = folder.join(format!("{base:020}"));
            let file = OsFileSystem.open(&path, OpenMode::CreateNew).expect("creates");
            while at < base + config.segment_size {
                let (mut head, crc) = encode_header(&entry, LogOffset(at), chain);
                number = number.next();
                set_batch(&mut head, BatchMark { number, first: true }, crc);
                file.write_at(&[IoSlice::new(&head)], at - base).expect("writes");
                (at, chain) = (at + frame_len(entry.body.len()), crc);
                entry.index.0 += 1;
            }
            file.set_len(config.segment_size).expect("extends");
        }
        crate::EntryId::new(1, entry.index.0 - 1)
    }

    /// RB-40: 20 GiB of log open in less than 2 s, as they are not read.
    #[test]
    fn a_start_does_not_depend_on_the_size_of_the_log() {
        use super::super::{CommitLog, CommitLogConfig};
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = CommitLogConfig { chain_start: 5, ..CommitLogConfig::default() };
        let last = hollow_log(dir.path(), &config, 20);
        let open = || {
            let files = GroupFiles::open(Arc::new(crate::fs::OsFileSystem), dir.path()).expect("opens");
            CommitLog::open(Arc::new(files), config.clone(), Some(last)).expect("opens")
        };
        let (log, first) = open();
        assert_eq!((first.skipped, first.last), (0, Some(last)));
        log.stop();
        drop(log);
        let began = std::time::Instant::now();
        let (log, again) = open();
        let took = began.elapsed();
        assert_eq!((again.skipped, again.segments, again.frames), (19, 20, first.frames));
        assert_eq!((log.end(), log.last()), (LogOffset(20 << 30), Some(last)));
        assert!(took < std::time::Duration::from_secs(2), "{took:?}");
        println!("20 GiB opened in {took:?}");
    }
}
