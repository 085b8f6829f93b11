//! All queues of a group.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::files::{FileId, OpenFiles, byte_of, file_path, queue_dir, topic_dir};
use super::queue::{Hot, Queue};
use super::unit::{UNIT_LEN, Unit, decode_run};
use super::writer::{Pending, Writer};
use super::{QueueId, UNITS_PER_FILE, cut};
use crate::checkpoint::QueueRange;
use crate::fs::{FileSystem, create_dir_durably};
use crate::{LogOffset, QueueOffset, StoreError};

/// Bounds of a [`QueueTable`].
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Files held open, all queues together; at least 2.
    pub open_files: usize,
    /// Newest units held in memory, all queues together; 24 bytes each.
    pub hot_units: usize,
    /// Most units that one read returns.
    pub read_units: usize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { open_files: 256, hot_units: 256 * 1024, read_units: 32 * 1024 }
    }
}

/// The ConsumeQueues of a broker group. One thread appends and publishes, any thread reads.
///
/// Published units survive a crash of the process; a crash of the machine only after [`QueueTable::sync`]. What is
/// missing then is made again from the log.
#[derive(Clone)]
pub struct QueueTable(Arc<Table>);

pub(super) struct Table {
    pub fs: Arc<dyn FileSystem>,
    pub root: PathBuf,
    pub files: OpenFiles,
    pub queues: RwLock<HashMap<QueueId, Arc<Queue>>>,
    pub writer: Mutex<Writer>,
    config: QueueConfig,
}

impl fmt::Debug for QueueTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueTable").field("root", &self.0.root).finish_non_exhaustive()
    }
}

impl QueueTable {
    /// Opens the queues in `dir`, which is made when missing. [`QueueTable::cut`] must follow before the first append.
    pub fn open(fs: Arc<dyn FileSystem>, dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(fs, dir, QueueConfig::default())
    }

    /// As [`QueueTable::open`], with other bounds.
    pub fn open_with(fs: Arc<dyn FileSystem>, dir: &Path, config: QueueConfig) -> Result<Self, StoreError> {
        create_dir_durably(fs.as_ref(), dir)?;
        let files = OpenFiles::new(fs.clone(), dir.to_path_buf(), config.open_files);
        let queues = cut::find_queues(fs.as_ref(), dir)?
            .into_iter()
            .map(|found| (found.id, Arc::new(Queue::new(found.id, found.min, found.max))))
            .collect();
        Ok(Self(Arc::new(Table {
            fs,
            root: dir.to_path_buf(),
            files,
            queues: RwLock::new(queues),
            writer: Mutex::default(),
            config,
        })))
    }

    /// Restart: cuts each queue to the next offset that the state's checkpoint names, hides queues it does not name.
    ///
    /// `next` comes from the newest checkpoint. A queue that is shorter has lost synced bytes: an error naming it.
    pub fn cut(&self, next: &BTreeMap<QueueId, QueueOffset>) -> Result<(), StoreError> {
        cut::cut(&self.0, next, &BTreeMap::new())
    }

    /// As [`QueueTable::cut`], with the ranges that the newest checkpoint lists: they say where each queue begins.
    pub fn cut_to(
        &self,
        next: &BTreeMap<QueueId, QueueOffset>,
        ranges: &[QueueRange],
    ) -> Result<(), StoreError> {
        let minimums = ranges.iter().map(|range| (range.id, range.min)).collect();
        cut::cut(&self.0, next, &minimums)
    }

    /// The first unit of each queue is from now on its first one at or above `floor`. Only the apply thread calls it,
    /// with everything published: the outcome is a function of the log. Files go when no kept checkpoint needs them.
    pub fn drop_below(&self, floor: LogOffset) -> Result<(), StoreError> {
        let mut queues: Vec<Arc<Queue>> = self.0.queues.read().values().cloned().collect();
        queues.sort_unstable_by_key(|queue| queue.id);
        for queue in queues {
            let (min, max) = queue.range();
            let (mut low, mut high) = (min, max);
            // Units lie in the order of the log, so that the first one to stay is found by halving.
            while low < high {
                // The first probe is the first unit: of most queues nothing goes.
                let middle = if low == min && high == max { min } else { low + (high - low) / 2 };
                let unit = self.read(queue.id, QueueOffset(middle), 1)?;
                match unit.first() {
                    Some(unit) if unit.offset < floor => low = middle + 1,
                    Some(_) => high = middle,
                    None => return Err(self.0.hole(queue.id, middle, max)),
                }
            }
            if low > min {
                queue.raise(low);
                self.0.writer.lock().raised.insert(queue.id);
            }
        }
        Ok(())
    }

    /// First and next position of every queue that ever held a message, by queue.
    pub(crate) fn ranges(&self) -> Vec<QueueRange> {
        let mut ranges: Vec<QueueRange> = (self.0.queues.read().values())
            .map(|queue| (queue.id, queue.range()))
            .filter(|(_, (_, max))| *max > 0)
            .map(|(id, (min, max))| QueueRange { id, min: QueueOffset(min), next: QueueOffset(max) })
            .collect();
        ranges.sort_unstable_by_key(|range| range.id);
        ranges
    }

    /// Adds the unit of position `at`; nobody sees it before [`QueueTable::publish`]. Only the apply thread calls it.
    ///
    /// An `at` that is not the queue's next position is an error: a hole would shift every later message.
    pub fn append(&self, id: QueueId, at: QueueOffset, unit: Unit) -> Result<(), StoreError> {
        let mut writer = self.0.writer.lock();
        writer.usable()?;
        if !writer.pending.contains_key(&id) {
            let queue = self.0.queue_for_append(&mut writer, id)?;
            let (_, max) = queue.range();
            writer.pending.insert(id, Pending { queue, at: max, bytes: Vec::new() });
        }
        let pending = writer.pending.get_mut(&id).expect("inserted above");
        if pending.next() != at.0 {
            return Err(self.0.hole(id, pending.next(), at.0));
        }
        pending.bytes.extend_from_slice(&unit.encode());
        Ok(())
    }

    /// Writes what was appended and makes it visible. Survives a crash of the process, not of the machine.
    pub fn publish(&self) -> Result<(), StoreError> {
        let mut writer = self.0.writer.lock();
        writer.usable()?;
        let pending = std::mem::take(&mut writer.pending);
        for one in pending.values() {
            let written = writer.write(self.0.fs.as_ref(), &self.0.root, &self.0.files, one);
            written.map_err(|error| writer.fail(error))?;
        }
        for one in pending.into_values() {
            writer.publish(one, self.0.config.hot_units);
        }
        Ok(())
    }

    /// At most `max` published units from `from` on; empty at or behind the end. May wait for a disk.
    ///
    /// A position below the queue's first unit is [`StoreError::BelowMinimum`].
    pub fn read(&self, id: QueueId, from: QueueOffset, max: usize) -> Result<Vec<Unit>, StoreError> {
        let Some(queue) = self.0.queue(id) else { return Ok(Vec::new()) };
        match queue.read_hot(from.0, max.min(self.0.config.read_units)) {
            Hot::Units(units) => Ok(units),
            Hot::Cold { from, to } => self.0.read_files(id, from, to),
            Hot::Below { min } => {
                Err(StoreError::BelowMinimum { queue: id, minimum: QueueOffset(min), found: from })
            }
        }
    }

    /// As [`QueueTable::read`], from memory only: `None` when a file would have to be read. Never waits for a disk.
    #[must_use]
    pub fn read_hot(&self, id: QueueId, from: QueueOffset, max: usize) -> Option<Vec<Unit>> {
        let Some(queue) = self.0.queue(id) else { return Some(Vec::new()) };
        match queue.read_hot(from.0, max.min(self.0.config.read_units)) {
            Hot::Units(units) => Some(units),
            Hot::Cold { .. } | Hot::Below { .. } => None,
        }
    }

    /// First and next published position; `(0, 0)` for a queue without messages.
    #[must_use]
    pub fn range(&self, id: QueueId) -> (QueueOffset, QueueOffset) {
        let (min, max) = self.0.queue(id).map_or((0, 0), |queue| queue.range());
        (QueueOffset(min), QueueOffset(max))
    }

    /// All queues that hold or held a message, in order.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueId> {
        self.0.queues.read().keys().copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Visits every published unit in order. Reads files, so it waits for the disk.
    pub fn for_each_unit(
        &self,
        id: QueueId,
        visit: &mut dyn FnMut(QueueOffset, Unit),
    ) -> Result<(), StoreError> {
        let (min, max) = self.range(id);
        let mut at = min;
        while at < max {
            let want = usize::try_from(max.0 - at.0).unwrap_or(usize::MAX);
            let units = self.read(id, at, want)?;
            if units.is_empty() {
                break; // removed meanwhile
            }
            for unit in units {
                visit(at, unit);
                at.0 += 1;
            }
        }
        Ok(())
    }

    /// Makes everything published so far survive a crash of the machine: files, then folders.
    pub fn sync(&self) -> Result<(), StoreError> {
        let dirty = {
            let mut writer = self.0.writer.lock();
            writer.usable()?;
            std::mem::take(&mut writer.dirty)
        };
        // Not under the lock: the apply thread goes on appending while a checkpoint waits for the disk.
        dirty.sync(self.0.fs.as_ref(), &self.0.root).map_err(|error| self.0.writer.lock().fail(error))
    }

    /// Takes all queues of a topic incarnation away from readers. Only the apply thread calls it, and the incarnation
    /// never comes back. The files go when both kept checkpoints know of the removal.
    pub fn remove(&self, topic_id: u32, incarnation: u32) -> Result<(), StoreError> {
        let mut writer = self.0.writer.lock();
        writer.usable()?;
        let mut queues = self.0.queues.write();
        let gone: BTreeSet<QueueId> = queues
            .keys()
            .chain(writer.pending.keys())
            .filter(|id| (id.topic_id, id.incarnation) == (topic_id, incarnation))
            .copied()
            .collect();
        for id in gone {
            queues.remove(&id);
            writer.pending.remove(&id);
            writer.removed.push(id);
        }
        Ok(())
    }

    /// A checkpoint became valid: deletes the files that none of the `kept` ones needs, each given by its ranges.
    pub(crate) fn settle<'a>(&self, kept: impl Iterator<Item = &'a [QueueRange]>) -> Result<(), StoreError> {
        let kept: Vec<&[QueueRange]> = kept.collect();
        let needs = |ranges: &&[QueueRange], id: &QueueId| {
            let at = ranges.binary_search_by_key(id, |range| range.id).ok()?;
            Some(ranges[at].min.0)
        };
        let mut writer = self.0.writer.lock();
        let mut removed = std::mem::take(&mut writer.removed);
        for id in removed.extract_if(.., |id| kept.iter().all(|ranges| needs(ranges, id).is_none())) {
            self.0.delete_files(&mut writer, id)?;
        }
        writer.removed = removed;
        for id in writer.raised.clone() {
            let Some(queue) = self.0.queue(id) else {
                writer.raised.remove(&id); // Goes as a whole.
                continue;
            };
            let (now, _) = queue.range();
            // A checkpoint that does not list the queue makes it anew from its first unit: then nothing goes.
            let needed = kept.iter().map(|ranges| needs(ranges, &id).unwrap_or(0)).min().unwrap_or(now);
            cut::remove_below(&self.0, id, needed.min(now))?;
            if needed >= now {
                writer.raised.remove(&id);
            }
        }
        Ok(())
    }
}

impl Table {
    pub fn queue(&self, id: QueueId) -> Option<Arc<Queue>> {
        self.queues.read().get(&id).cloned()
    }

    fn queue_for_append(&self, writer: &mut Writer, id: QueueId) -> Result<Arc<Queue>, StoreError> {
        if let Some(queue) = self.queue(id) {
            return Ok(queue);
        }
        if let Some(place) = writer.removed.iter().position(|removed| *removed == id) {
            // Made after the checkpoint, hidden by the cut, now made again by the replayed log: begins anew.
            writer.removed.swap_remove(place);
            self.delete_files(writer, id)?;
        }
        let queue = Arc::new(Queue::new(id, 0, 0));
        self.queues.write().insert(id, queue.clone());
        Ok(queue)
    }

    /// Deletes the folder of a queue, and that of its topic when it was the last one.
    fn delete_files(&self, writer: &mut Writer, id: QueueId) -> Result<(), StoreError> {
        self.files.forget(id);
        writer.dirty.forget(&self.root, id);
        let (queue, topic) = (queue_dir(&self.root, id), topic_dir(&self.root, id));
        if self.fs.exists(&queue)? {
            self.fs.remove_dir_all(&queue)?;
        }
        if self.fs.exists(&topic)? && self.fs.read_dir(&topic)?.is_empty() {
            self.fs.remove_dir_all(&topic)?;
            writer.dirty.folders.remove(&topic);
        }
        Ok(())
    }

    fn read_files(&self, id: QueueId, from: u64, to: u64) -> Result<Vec<Unit>, StoreError> {
        let mut units = Vec::with_capacity((to - from) as usize);
        let mut at = from;
        while at < to {
            let file = FileId::of(id, at);
            let end = to.min(file.first() + UNITS_PER_FILE);
            let mut bytes = vec![0; (end - at) as usize * UNIT_LEN];
            self.read_exact(file, byte_of(at), &mut bytes)?;
            units.extend(decode_run(&bytes));
            at = end;
        }
        Ok(units)
    }

    fn read_exact(&self, id: FileId, start: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let file = self.files.get(id, false)?;
        let read = file.read_at(bytes, start)?;
        if read == bytes.len() {
            return Ok(());
        }
        let (expected, found) = (start + bytes.len() as u64, start + read as u64);
        let expected = format!("{expected} bytes of published units");
        Err(StoreError::corrupt(&file_path(&self.root, id), found, expected, format!("{found} bytes")))
    }

    /// The replica's queue and the log disagree about how many messages there are: damage, never skipped over.
    fn hole(&self, id: QueueId, next: u64, at: u64) -> StoreError {
        let path = file_path(&self.root, FileId::of(id, next));
        StoreError::corrupt(&path, byte_of(next), format!("unit {next}"), format!("unit {at}"))
    }
}
