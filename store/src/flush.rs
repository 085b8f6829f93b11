//! The log writer: one thread per log that takes everything queued, writes it with one pwritev, syncs it with one fdatasync,
//! and tells the callers in order. What is queued meanwhile is the next batch, so batches grow with the load and no timer is
//! needed.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::commit_log::Shared;
use crate::commit_log::frame::{BatchMark, BatchNumber, FRAME_HEADER_LEN, set_batch};
use crate::commit_log::sealed::Sealer;
use crate::commit_log::tail::{Cut, Job, QueuedFrame, Work};
use crate::commit_log::{FlushCallback, FlushedWatermark};
use crate::error::Result;
use crate::group_files::Intent;
use crate::item::padded;
use crate::segment::Segment;
use crate::{EntryId, LogOffset, StoreError};

/// Kept for the next batch's headers, bytes.
const HEADS_KEPT: usize = 256 << 10;

/// Told when the batch that holds the last of its frames is flushed.
struct Waiting {
    last: EntryId,
    epoch: u64,
    bytes: u64,
    done: FlushCallback,
}

/// Frames that go to the disk together: one segment, contiguous.
#[derive(Default)]
struct Batch {
    frames: Vec<QueuedFrame>,
    bytes: u64,
    waiting: Vec<Waiting>,
}

/// The writer of one log.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    sealer: Sealer,
    number: BatchNumber,
    open: Option<Segment>,
    batch: Batch,
    /// Headers of a batch, each with the padding of the frame before it in front.
    heads: Vec<u8>,
    /// Taken from the queue, not yet done.
    taken: VecDeque<Job>,
    /// When the job was queued whose frames are being gathered, or that is being done.
    current: Option<Instant>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, last: BatchNumber, sealer: Sealer) -> Self {
        Self {
            shared,
            sealer,
            number: last,
            open: None,
            batch: Batch::default(),
            heads: Vec::new(),
            taken: VecDeque::new(),
            current: None,
        }
    }

    pub(crate) fn run(mut self) {
        while self.take() {
            if let Err(why) = self.work_off() {
                tracing::error!(error = %why, "the log cannot be written any more");
                self.end(why);
                return;
            }
        }
        self.end(StoreError::Stopped);
    }

    /// Waits for work; false when the log shall stop and nothing is left.
    fn take(&mut self) -> bool {
        let mut tail = self.shared.tail.lock();
        tail.writing_since = None;
        while tail.queue.is_empty() {
            if tail.stopping {
                return false;
            }
            self.shared.work.wait(&mut tail);
        }
        std::mem::swap(&mut self.taken, &mut tail.queue);
        tail.writing_since = self.taken.front().map(|job| job.queued_at);
        true
    }

    fn work_off(&mut self) -> Result<()> {
        while let Some(Job { work, queued_at, done }) = self.taken.pop_front() {
            self.current = Some(queued_at);
            match work {
                Work::Append { frames, last, epoch, bytes } => {
                    self.gather(frames, Waiting { last, epoch, bytes, done })?;
                }
                other => {
                    // Nothing of the batch may come after it.
                    if let Err(why) = self.flush().and_then(|()| self.act(&other)) {
                        self.batch.waiting.push(Waiting::only(done));
                        return Err(why);
                    }
                    done(Ok(()));
                    if matches!(other, Work::Vote(_)) {
                        self.shared.files.settle_vote()?;
                    }
                    self.shared.tail.lock().writing_since = self.taken.front().map(|job| job.queued_at);
                }
            }
        }
        self.current = None;
        self.flush()
    }

    /// Adds frames to the batch, flushing it where the segment ends or the limit is reached.
    fn gather(&mut self, frames: Vec<QueuedFrame>, waiting: Waiting) -> Result<()> {
        let (size, limit) = (self.shared.config.segment_size, self.shared.config.write_batch_bytes as u64);
        let mut frames = frames.into_iter();
        let mut result = Ok(());
        for frame in frames.by_ref() {
            let rolls = self.batch.frames.first().is_some_and(|f| f.offset.0 / size != frame.offset.0 / size);
            if rolls || self.batch.bytes + frame.len() > limit {
                result = self.flush();
                if result.is_err() {
                    break;
                }
            }
            self.batch.bytes += frame.len();
            self.batch.frames.push(frame);
        }
        self.batch.waiting.push(waiting);
        result
    }

    /// Writes and syncs the batch, then tells those who waited for it.
    fn flush(&mut self) -> Result<()> {
        if self.batch.frames.is_empty() {
            return Ok(());
        }
        let segment = self.segment()?;
        self.number = self.number.next();
        self.write(&segment)?;
        #[cfg(any(test, feature = "testkit"))]
        if self.shared.report_before_sync.load(std::sync::atomic::Ordering::Relaxed) {
            self.report();
            return segment.file.sync_data();
        }
        segment.file.sync_data()?;
        self.report();
        Ok(())
    }

    fn write(&mut self, segment: &Segment) -> Result<()> {
        let frames = &self.batch.frames;
        self.heads.clear();
        let mut pads = Vec::with_capacity(frames.len() + 1);
        let mut pad = 0;
        for (at, frame) in frames.iter().enumerate() {
            self.heads.resize(self.heads.len() + pad, 0);
            let start = self.heads.len();
            self.heads.extend_from_slice(&frame.header);
            let mark = BatchMark { number: self.number, first: at == 0 };
            set_batch(&mut self.heads[start..], mark, frame.head_crc);
            pads.push(pad);
            pad = padded(frame.body.len()) - frame.body.len();
        }
        self.heads.resize(self.heads.len() + pad, 0);
        let mut parts = Vec::with_capacity(2 * frames.len() + 1);
        let mut rest = &self.heads[..];
        for (frame, pad) in frames.iter().zip(&pads) {
            let (head, behind) = rest.split_at(pad + FRAME_HEADER_LEN);
            rest = behind;
            parts.push(IoSlice::new(head));
            if !frame.body.is_empty() {
                parts.push(IoSlice::new(&frame.body));
            }
        }
        if !rest.is_empty() {
            parts.push(IoSlice::new(rest));
        }
        segment.file.write_at(&parts, frames[0].offset.0 - segment.base.0)
    }

    /// The batch is flushed: raises the mark, frees memory, tells.
    fn report(&mut self) {
        let Batch { frames, waiting, .. } = std::mem::take(&mut self.batch);
        drop(frames);
        self.heads.clear();
        self.heads.shrink_to(HEADS_KEPT);
        // A truncation ends a batch, so all of it is of one epoch.
        if let Some(last) = waiting.last() {
            self.shared.watermark.raise(last.last, last.epoch);
        }
        let bytes: u64 = waiting.iter().map(|one| one.bytes).sum();
        {
            let mut tail = self.shared.tail.lock();
            tail.unflushed_bytes -= bytes;
            tail.flushed = self.shared.watermark.flushed().map(|id| id.index);
            let flushed = tail.flushed;
            tail.ring.trim(flushed);
            tail.writing_since = self.current;
        }
        for one in waiting {
            (one.done)(Ok(()));
        }
    }

    /// The segment of the batch; created, with its folder synced, if it does not exist.
    fn segment(&mut self) -> Result<Segment> {
        let offset = self.batch.frames[0].offset;
        let base = LogOffset(offset.0 - offset.0 % self.shared.config.segment_size);
        if let Some(open) = self.open.as_ref().filter(|s| s.base == base) {
            return Ok(open.clone());
        }
        let segments = &self.shared.segments;
        let segment = match segments.starting_at(base) {
            Some(segment) => segment,
            None => {
                let created = segments.create(base)?;
                if let Some(full) = base.0.checked_sub(self.shared.config.segment_size) {
                    self.sealer.seal(LogOffset(full));
                }
                created
            }
        };
        self.open = Some(segment.clone());
        Ok(segment)
    }

    fn act(&mut self, work: &Work) -> Result<()> {
        match work {
            Work::Vote(vote) => self.shared.files.save_vote(*vote),
            Work::Truncate { cut, epoch } => {
                self.truncate(*cut)?;
                self.shared.watermark.cut_done(*epoch);
                Ok(())
            }
            Work::Purge(upto) => {
                self.shared.files.update_meta(|meta| {
                    if meta.purged.is_none_or(|p| p.index < upto.index) {
                        meta.purged = Some(*upto);
                    }
                })?;
                // Nothing below it is waited for any more.
                self.shared.watermark.skip_to(*upto);
                Ok(())
            }
            Work::Barrier | Work::Append { .. } => Ok(()),
        }
    }

    /// Crash after the intent, before it is cleared → recovery does the same again. Crash before the intent → nothing
    /// happened, the frames are still there.
    fn truncate(&mut self, cut: Cut) -> Result<()> {
        let Cut { cut, first, old_end, head_crc } = cut;
        let files = &self.shared.files;
        files.update_meta(|meta| meta.intent = Some(Intent::Truncate { cut, first, old_end, head_crc }))?;
        self.open = None;
        truncate_files(&self.shared.segments, cut)?;
        files.update_meta(|meta| meta.intent = None)
    }

    /// Nothing is written any more: everybody who waits is told why, in order.
    fn end(&mut self, why: StoreError) {
        let queued = {
            let mut tail = self.shared.tail.lock();
            tail.stopping = true;
            if !matches!(why, StoreError::Stopped) {
                tail.failed.get_or_insert(why.clone());
            }
            std::mem::take(&mut tail.queue)
        };
        self.shared.watermark.end(why.clone());
        for waiting in std::mem::take(&mut self.batch.waiting) {
            (waiting.done)(Err(why.clone()));
        }
        for job in self.taken.drain(..).chain(queued) {
            (job.done)(Err(why.clone()));
        }
    }
}

impl Drop for Writer {
    /// Also a writer that panics leaves nobody waiting.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(StoreError::Stopped);
        }
    }
}

impl Waiting {
    fn only(done: FlushCallback) -> Self {
        Self { last: EntryId::default(), epoch: 0, bytes: 0, done }
    }
}

/// Takes everything from `cut` on away, durably: later segments from the newest on, then zeros in the segment of the cut.
pub(crate) fn truncate_files(segments: &crate::segment::Segments, cut: LogOffset) -> Result<()> {
    segments.remove_from(cut)?;
    if let Some(segment) = segments.containing(cut) {
        let end = segment.end()?;
        if end > cut {
            segment.zero(cut, end)?;
        }
    }
    Ok(())
}
