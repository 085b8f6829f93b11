//! State in RocksDB: a column family per family, no write-ahead log.
//!
//! The Raft log is the write-ahead log: what is in memtables when the process dies is applied again from there. A
//! checkpoint flushes all families as one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRawIteratorWithThreadMode, ErrorKind, FlushOptions, LogLevel, Options, ReadOptions, WriteOptions,
};

use super::{Change, STORE_FAMILY, State, WriteBatch, own_changes};
use crate::StoreError;
use crate::fs::{FileSystem, OpenMode};

/// Bytes of RocksDB's block cache, all families together.
const BLOCK_CACHE: usize = 8 << 20;
/// Bytes of memtables, all families together, above which RocksDB flushes on its own.
const WRITE_BUFFERS: usize = 16 << 20;
/// Bytes of the memtable of one family; its arena grows in eighths of this.
const WRITE_BUFFER: usize = 2 << 20;
/// Table files held open.
const OPEN_FILES: i32 = 256;
/// Threads for flush and compaction.
const BACKGROUND_JOBS: i32 = 2;
/// A manifest above this is rewritten; it is copied into each checkpoint.
const MANIFEST_BYTES: usize = 1 << 20;

/// A [`State`] in a RocksDB folder.
pub struct RocksState {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    names: Vec<&'static str>,
    db: DB,
    unlogged: WriteOptions,
}

impl fmt::Debug for RocksState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksState").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RocksState {
    /// Opens the RocksDB in `path`; makes an empty one only with `create`.
    ///
    /// With `create` false a folder that holds no RocksDB is an error, so that a damaged state is never replaced by
    /// an empty one.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        families: &'static [&'static str],
        path: &Path,
        create: bool,
    ) -> Result<Self, StoreError> {
        let mut names = families.to_vec();
        names.push(STORE_FAMILY);
        let cache = Cache::new_lru_cache(BLOCK_CACHE);
        let mut descriptors = vec![ColumnFamilyDescriptor::new("default", family_options(&cache))];
        descriptors
            .extend(names.iter().map(|name| ColumnFamilyDescriptor::new(*name, family_options(&cache))));
        let db = DB::open_cf_descriptors(&database_options(create), path, descriptors)
            .map_err(|error| StoreError::corrupt(path, 0, "a RocksDB that opens", error.to_string()))?;
        let mut unlogged = WriteOptions::default();
        unlogged.disable_wal(true);
        Ok(Self { fs, path: path.to_path_buf(), names, db, unlogged })
    }

    fn family(&self, family: usize) -> &ColumnFamily {
        self.db.cf_handle(self.names[family]).expect("opened with every family in `names`")
    }

    fn error(&self, error: &rocksdb::Error) -> StoreError {
        state_error(&self.path, error)
    }

    fn flush(&self) -> Result<(), StoreError> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        let families: Vec<&ColumnFamily> = (0..self.names.len()).map(|family| self.family(family)).collect();
        self.db.flush_cfs_opt(&families, &options).map_err(|error| self.error(&error))
    }
}

fn database_options(create: bool) -> Options {
    let mut options = Options::default();
    options.create_if_missing(create);
    // A family that a later version adds; the ones that exist are listed in the manifest and must open.
    options.create_missing_column_families(true);
    options.set_atomic_flush(true);
    options.set_avoid_unnecessary_blocking_io(true);
    options.set_db_write_buffer_size(WRITE_BUFFERS);
    options.set_max_background_jobs(BACKGROUND_JOBS);
    options.set_max_open_files(OPEN_FILES);
    options.set_max_file_opening_threads(1);
    options.set_max_manifest_file_size(MANIFEST_BYTES);
    options.set_manifest_preallocation_size(64 << 10);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

fn family_options(cache: &Cache) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(WRITE_BUFFER);
    options.set_max_write_buffer_number(3);
    options.set_target_file_size_base(8 << 20);
    options.set_max_bytes_for_level_base(32 << 20);
    options
}

/// What RocksDB reported, with the folder that it is about: a call that the system refused, or damage.
fn state_error(path: &Path, error: &rocksdb::Error) -> StoreError {
    match error.kind() {
        ErrorKind::IOError => StoreError::io("rocksdb", path, io::Error::other(error.to_string())),
        _ => StoreError::corrupt(path, 0, "a readable RocksDB", error.to_string()),
    }
}

impl State for RocksState {
    fn get(&self, family: usize, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.db.get_cf(self.family(family), key).map_err(|error| self.error(&error))
    }

    fn scan(
        &self,
        family: usize,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let mut options = ReadOptions::default();
        if let Some(to) = to {
            options.set_iterate_upper_bound(to);
        }
        let mut rows: DBRawIteratorWithThreadMode<'_, DB> =
            self.db.raw_iterator_cf_opt(self.family(family), options);
        rows.seek(from);
        while let Some((key, value)) = rows.item() {
            if !visit(key, value) {
                return Ok(());
            }
            rows.next();
        }
        // An iterator that met damage looks like one at its end; only its status tells.
        rows.status().map_err(|error| self.error(&error))
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let mut rows = rocksdb::WriteBatch::default();
        for change in batch.changes() {
            match change {
                Change::Put { family, key, value } => rows.put_cf(self.family(family), key, value),
                Change::Delete { family, key } => rows.delete_cf(self.family(family), key),
            }
        }
        for (key, value) in own_changes(batch) {
            rows.put_cf(self.family(self.families()), key, value);
        }
        self.db.write_opt(rows, &self.unlogged).map_err(|error| self.error(&error))
    }

    fn checkpoint(&self, path: &Path) -> Result<(), StoreError> {
        self.flush()?;
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(path))
            .map_err(|error| state_error(path, &error))?;
        // RocksDB syncs table files when it writes them. The copied ones are small, and a second sync costs nothing.
        for name in self.fs.read_dir(path)? {
            self.fs.open(&path.join(name), OpenMode::ReadWrite)?.sync_all()?;
        }
        self.fs.sync_dir(path)
    }

    fn families(&self) -> usize {
        self.names.len() - 1
    }
}
