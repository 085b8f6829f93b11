//! Giving up the oldest segments.

use std::sync::atomic::Ordering;

use super::frame::FrameHeader;
use super::handle::CommitLog;
use crate::LogOffset;
use crate::error::Result;

impl CommitLog {
    /// Where the oldest segment begins; nothing below it can be read any more.
    #[must_use]
    pub fn physical_start(&self) -> LogOffset {
        LogOffset(self.shared().physical_start.load(Ordering::Acquire))
    }

    /// Gives up the segments that end at or below `floor`, and never one with an entry above the durable purged mark. Where
    /// the log begins is recorded durably before a file is unlinked: crash in between → the next start unlinks them. Blocks.
    pub fn drop_below(&self, floor: LogOffset) -> Result<()> {
        let shared = self.shared();
        let _one = shared.dropping.lock();
        let size = shared.config.segment_size;
        let Some(purged) = shared.files.purged() else { return Ok(()) };
        let end_of_purged = {
            let tail = shared.tail.lock();
            match tail.index.first() {
                // The log goes on behind what was purged: all that is older may go.
                Some(first) if first.index > purged.index => tail.base.end,
                None => tail.base.end,
                Some(_) => tail.index.place(purged.index).map_or(tail.base.end, |(_, end)| end),
            }
        };
        // The end of a segment's last frame stands for the start of the next segment only if that has a frame.
        let highest = floor.min(end_of_purged);
        let mut start = LogOffset(highest.0 - highest.0 % size);
        while start > self.physical_start() && shared.segments.starting_at(start).is_none() {
            start = LogOffset(start.0 - size);
        }
        if start <= self.physical_start() {
            return Ok(());
        }
        let chain = match self.header_at(start)? {
            Some(header) => header.prev_crc,
            // The file was made, its first frame is on the way.
            None => return Ok(()),
        };
        shared.files.update_meta(|meta| {
            (meta.physical_start, meta.chain_start) = (start, chain);
            meta.damage.retain(|range| range.end() > start);
        })?;
        shared.physical_start.store(start.0, Ordering::Release);
        {
            let mut tail = shared.tail.lock();
            tail.index.drop_below(start);
            if tail.base.end < start {
                tail.base = super::tail::Base { end: start, chain };
            }
        }
        shared.segments.remove_below(start)?;
        super::sealed::remove(&shared.files, start)
    }

    fn header_at(&self, start: LogOffset) -> Result<Option<FrameHeader>> {
        let Some(segment) = self.shared().segments.starting_at(start) else { return Ok(None) };
        if self.flushed_end() <= start {
            return Ok(None);
        }
        let mut scanner = super::scan::Scanner::new(&segment)?;
        scanner.header(start)?.map(Some).map_err(|why| super::read::not_a_frame(&segment, start, why))
    }
}
