//! How RocksDB is opened for the log and for the state, and how its errors become ours.
//!
//! Invariants: no compression, so that a library built with any set of codecs opens it; an incomplete last record of the write-ahead log is what a
//! power cut leaves and is dropped, any other damage refuses to open.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rocksdb::{BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, DBRecoveryMode, Options};

/// Two of them a database: one is written to the disk while the other fills.
const MEMTABLE_BYTES: usize = 16 << 20;
/// Write-ahead logs are let go of by flushing before they are larger: opening replays them, and must take a second at most.
const MAX_WAL_BYTES: u64 = 64 << 20;
/// Blocks, filters and indices of the state: ten million handles' filters are 13 MB, the rest is for rows.
const STATE_CACHE_BYTES: usize = 48 << 20;
/// The log is read from memory; from the disk only by who is far behind.
const LOG_CACHE_BYTES: usize = 2 << 20;
/// A tenth of a limit of 1,024 descriptors for each database.
const MAX_OPEN_FILES: i32 = 100;
/// Filter bits a key: one look-up in a hundred of an absent key goes to the disk.
const BLOOM_BITS: f64 = 10.0;

/// Why a database, or a directory of ours, cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system or RocksDB refused, or what is there is damaged.
    #[error("{path}: {error}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process has it.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The log is another node's.
    #[error("{path} is the log of node {found}, not of node {expected}; a node that lost its log needs a new id")]
    OtherNode {
        /// Where.
        path: PathBuf,
        /// Whose log it is.
        found: u64,
        /// Who opened it.
        expected: u64,
    },
}

impl OpenError {
    /// For errors about `path`.
    pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |error| Self::Io { path: path.to_owned(), error }
    }
}

/// RocksDB's error as the system's kind of error, for openraft.
pub(super) fn broken(error: rocksdb::Error) -> io::Error {
    let kind = match error.kind() {
        rocksdb::ErrorKind::Corruption => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.into_string())
}

/// What is on the disk is not what was written there.
pub(super) fn damaged(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// Opens, or makes, a database.
pub(super) fn open(options: &Options, path: &Path) -> Result<DB, OpenError> {
    DB::open(options, path).map_err(|error| match error.kind() {
        rocksdb::ErrorKind::IOError if error.to_string().contains("lock") => OpenError::InUse(path.to_owned()),
        _ => OpenError::at(path)(broken(error)),
    })
}

/// For the log: every record is written in order, read seldom, and deleted soon.
pub(super) fn log_options() -> Options {
    options(LOG_CACHE_BYTES)
}

/// For the state: many small rows, read one by one.
pub(super) fn state_options() -> Options {
    options(STATE_CACHE_BYTES)
}

fn options(cache_bytes: usize) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_total_wal_size(MAX_WAL_BYTES);
    options.set_max_open_files(MAX_OPEN_FILES);
    // One thread to flush and compact is enough for a few megabytes a second, and leaves processors to the clients.
    options.set_max_background_jobs(2);
    // RocksDB's own log: kept short, the node has its own.
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_block_based_table_factory(&tables(cache_bytes));
    options
}

fn tables(cache_bytes: usize) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    if let Ok(cache) = Cache::new_lru_cache(cache_bytes) {
        tables.set_block_cache(&cache);
    }
    tables.set_bloom_filter(BLOOM_BITS, false);
    // In partitions: the filter of a whole file does not fit a shard of the cache, and would be read again for each look-up.
    tables.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    tables.set_partition_filters(true);
    // Filters and indices count as cache: otherwise memory grows with the number of rows.
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
    tables
}

/// Makes names in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
