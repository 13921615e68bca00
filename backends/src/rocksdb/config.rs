//! Settings, and the options that they make for RocksDB.

use ::rocksdb::{
    BlockBasedOptions, ChecksumType, DBCompressionType, InfoLogger, IngestExternalFileOptions, LogLevel,
    Options, ReadOptions,
};
use ckpt_engine::Result;
use ckpt_engine::db::DriverOptions;

use super::table::FAMILY;
use crate::table::TableOptions;

/// The backend's name.
pub(super) const DB_TYPE: &str = "rocksdb";

pub(super) const MAX_KEY_LEN: usize = 1 << 20;

/// A block, whose size RocksDB keeps in 32 bits, holds the key, the value and some bytes around them.
pub(super) const MAX_VALUE_LEN: u64 = (1 << 31) - 1;

/// What `--db-option` can set.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// `block_bytes`: a block of a table is closed at this size. RocksDB reads and checks whole blocks, so by default every record
    /// has one of its own: nothing is read that was not asked for, and damage stays within a record.
    block_bytes: usize,
    /// `table_bytes`: a new table is begun at this size.
    table_bytes: u64,
}

impl Config {
    pub(super) fn from_options(mut options: DriverOptions) -> Result<Self> {
        let config = Self {
            block_bytes: options.take("block_bytes")?.unwrap_or(1),
            table_bytes: options.take("table_bytes")?.unwrap_or(1 << 30),
        };
        options.finish(DB_TYPE)?;
        Ok(config)
    }

    /// For writing tables. Chunks come compressed, or are known not to compress.
    pub(super) fn tables(&self) -> TableOptions {
        let Self { block_bytes, table_bytes } = *self;
        TableOptions { family: &FAMILY, block_bytes, table_bytes, compression: None }
    }

    /// For the empty database that takes them in.
    pub(super) fn write_options(&self) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_error_if_exists(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_block_based_table_factory(&self.block_options());
        options.set_disable_auto_compactions(true);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_info_logger(logger());
        options
    }

    /// For opening a database that somebody wrote; `direct`: past the page cache.
    pub(super) fn read_options(&self, direct: bool) -> Options {
        let mut options = Options::default();
        options.set_use_direct_reads(direct);
        options.set_block_based_table_factory(&self.block_options());
        options.set_paranoid_checks(true);
        options.set_skip_stats_update_on_db_open(true);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        // Without a logger of ours, opening would write a log file into the database's directory.
        options.set_info_logger(logger());
        options
    }

    fn block_options(&self) -> BlockBasedOptions {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_size(self.block_bytes);
        // What every RocksDB since 2015 reads: the defaults move on with its versions, and another program's may be older.
        blocks.set_format_version(2);
        blocks.set_checksum_type(ChecksumType::CRC32c);
        // Every record is read once: a cache would hold a second copy of it.
        blocks.disable_cache();
        blocks
    }
}

/// For one read.
pub(super) fn read_options() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_verify_checksums(true);
    options.fill_cache(false);
    options
}

/// Tables are moved in, not copied.
pub(super) fn ingest_options() -> IngestExternalFileOptions {
    let mut options = IngestExternalFileOptions::default();
    options.set_move_files(true);
    options
}

/// RocksDB's own messages, with ours.
fn logger() -> InfoLogger {
    InfoLogger::new_callback_logger(LogLevel::Warn, |level, message| match level {
        LogLevel::Error | LogLevel::Fatal => tracing::error!(target: "rocksdb", "{message}"),
        _ => tracing::debug!(target: "rocksdb", "{message}"),
    })
}
