//! Restart: what lies on disk, and cutting it to what the state's checkpoint knows.

use std::collections::BTreeMap;
use std::path::Path;

use super::files::{FileId, byte_of, file_path, parse_file, parse_topic_dir, queue_dir};
use super::table::Table;
use super::unit::UNIT_LEN;
use super::writer::Dirty;
use super::{FILE_LEN, QueueId, UNITS_PER_FILE};
use crate::fs::{FileSystem, OpenMode};
use crate::{QueueOffset, StoreError};

/// A queue on disk: its first unit and the one behind the last whole unit of its unbroken run of files.
pub(super) struct Found {
    pub id: QueueId,
    pub min: u64,
    pub max: u64,
}

/// All queues below `root`. Names that are not ours are left alone.
pub(super) fn find_queues(fs: &dyn FileSystem, root: &Path) -> Result<Vec<Found>, StoreError> {
    let mut found = Vec::new();
    for topic in fs.read_dir(root)? {
        let Some((topic_id, incarnation)) = parse_topic_dir(&topic) else { continue };
        for queue in fs.read_dir(&root.join(&topic))? {
            let Ok(queue) = queue.parse() else { continue };
            let id = QueueId { topic_id, incarnation, queue };
            let (min, max) = find_range(fs, root, id)?;
            found.push(Found { id, min, max });
        }
    }
    Ok(found)
}

/// The range covered without a gap from the first file on. A file behind a short one can only be left over from before
/// a crash of the machine; it is not counted, and the cut removes it.
fn find_range(fs: &dyn FileSystem, root: &Path, id: QueueId) -> Result<(u64, u64), StoreError> {
    let numbers = file_numbers(fs, root, id)?;
    let Some(first) = numbers.first() else { return Ok((0, 0)) };
    let min = first * UNITS_PER_FILE;
    let mut max = min;
    for number in &numbers {
        let file = FileId { queue: id, number: *number };
        if file.first() != max {
            break;
        }
        let len = fs.len(&file_path(root, file))?.min(FILE_LEN);
        max += len / UNIT_LEN as u64;
    }
    Ok((min, max))
}

fn file_numbers(fs: &dyn FileSystem, root: &Path, id: QueueId) -> Result<Vec<u64>, StoreError> {
    let names = fs.read_dir(&queue_dir(root, id))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| parse_file(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// See [`QueueTable::cut`](super::QueueTable::cut).
pub(super) fn cut(
    table: &Table,
    next: &BTreeMap<QueueId, QueueOffset>,
    minimums: &BTreeMap<QueueId, QueueOffset>,
) -> Result<(), StoreError> {
    let mut writer = table.writer.lock();
    let mut queues = table.queues.write();
    for (id, next) in next {
        let (first, max) = queues.get(id).map_or((0, 0), |queue| queue.range());
        let min = minimums.get(id).map_or(first, |min| min.0);
        if min == next.0 {
            continue; // Nothing is counted on.
        }
        if next.0 < min || next.0 > max || first > min {
            return Err(lost(table, *id, next.0, first, max));
        }
    }
    for (id, min) in minimums {
        let empty = next.get(id) == Some(min) && min.0 > 0;
        if empty && !queues.contains_key(id) {
            make_room(table, &mut writer.dirty, *id, min.0)?;
            queues.insert(*id, std::sync::Arc::new(super::queue::Queue::new(*id, min.0, min.0)));
        }
    }
    let on_disk: Vec<QueueId> = queues.keys().copied().collect();
    for id in on_disk {
        let Some(next) = next.get(&id) else {
            // Deleted at or below the checkpoint; or made behind it, then the replay begins it anew.
            queues.remove(&id);
            writer.removed.push(id);
            continue;
        };
        let (first, _) = queues[&id].range();
        let min = minimums.get(&id).map_or(first, |min| min.0);
        if cut_files(table, id, next.0)? {
            writer.dirty.folders.insert(queue_dir(&table.root, id));
        }
        let kept = FileId::of(id, next.0.max(1) - 1);
        if next.0 > min {
            // Its cut must not be undone by a crash of the machine while newer units are counted on.
            writer.dirty.files.insert(kept);
        }
        queues.insert(id, std::sync::Arc::new(super::queue::Queue::new(id, min, next.0)));
    }
    Ok(())
}

/// Makes the file in which an empty queue goes on at `next`; what lies before it there is never read.
fn make_room(table: &Table, dirty: &mut Dirty, id: QueueId, next: u64) -> Result<(), StoreError> {
    let file = FileId::of(id, next);
    if byte_of(next) > 0 {
        dirty.new_file(table.fs.as_ref(), &table.root, file)?;
        let path = file_path(&table.root, file);
        table.fs.open(&path, OpenMode::Create)?.set_len(byte_of(next))?;
        dirty.files.insert(file);
    }
    Ok(())
}

/// Removes files behind `next` and shortens the one that holds it; says whether a file was removed.
fn cut_files(table: &Table, id: QueueId, next: u64) -> Result<bool, StoreError> {
    let fs = table.fs.as_ref();
    let numbers = file_numbers(fs, &table.root, id)?;
    let first = numbers.first().copied();
    table.files.forget(id);
    let mut removed = false;
    for number in numbers.into_iter().rev() {
        let file = FileId { queue: id, number };
        let path = file_path(&table.root, file);
        if file.first() >= next && Some(number) != first {
            fs.remove_file(&path)?;
            removed = true;
            continue;
        }
        let keep = if file.first() >= next {
            0 // the first file of an empty queue stays: its name holds the minimum
        } else if next >= file.first() + UNITS_PER_FILE {
            FILE_LEN
        } else {
            byte_of(next)
        };
        if fs.len(&path)? != keep {
            let open = fs.open(&path, OpenMode::ReadWrite)?;
            open.set_len(keep)?;
        }
    }
    Ok(removed)
}

/// Unlinks the files of which every unit lies below `min`, but never the last one: its name tells where the queue is.
pub(super) fn remove_below(table: &Table, id: QueueId, min: u64) -> Result<(), StoreError> {
    let numbers = file_numbers(table.fs.as_ref(), &table.root, id)?;
    for number in numbers.iter().take(numbers.len().saturating_sub(1)) {
        let file = FileId { queue: id, number: *number };
        if file.first() + UNITS_PER_FILE > min {
            break;
        }
        table.files.close(file);
        table.fs.remove_file(&file_path(&table.root, file))?;
    }
    Ok(())
}

fn lost(table: &Table, id: QueueId, next: u64, min: u64, max: u64) -> StoreError {
    let path = file_path(&table.root, FileId::of(id, next.max(1) - 1));
    StoreError::corrupt(
        &path,
        max * UNIT_LEN as u64,
        format!("queue {id} to hold the {next} units that the checkpoint counts"),
        format!("units {min} to {max}"),
    )
}
