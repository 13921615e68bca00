//! Settings.

use std::str::FromStr;

use ckpt_engine::db::DriverOptions;
use ckpt_engine::{Error, Result};

/// The backend's name.
pub(super) const DB_TYPE: &str = "leveldb";

pub(super) const MAX_KEY_LEN: usize = 1 << 20;

/// LevelDB reads a block in one call, and Linux moves a little less than 2 GiB in a call. A block holds the key, the value and some
/// bytes around them.
pub(super) const MAX_VALUE_LEN: u64 = (1 << 31) - (1 << 21);

/// A block of many records is shorter than twice this.
pub(super) const MAX_BLOCK_BYTES: usize = 256 << 20;

/// What `--db-option` can set.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// `block_bytes`: a block of a table is closed at this size. LevelDB reads and checks whole blocks, so by default every record has
    /// one of its own: nothing is read that was not asked for, and damage stays within a record. Caffe2's default is 65536.
    pub(super) block_bytes: usize,
    /// `table_bytes`: a new table is begun at this size.
    pub(super) table_bytes: u64,
    /// `compression`: of blocks. Large tensors rarely get smaller by it.
    pub(super) compression: Compression,
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Snappy,
}

impl FromStr for Compression {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "none" => Ok(Self::None),
            "snappy" => Ok(Self::Snappy),
            _ => Err(()),
        }
    }
}

impl Config {
    pub(super) fn from_options(mut options: DriverOptions) -> Result<Self> {
        let config = Self {
            block_bytes: options.take("block_bytes")?.unwrap_or(1),
            table_bytes: options.take("table_bytes")?.unwrap_or(1 << 30),
            compression: options.take("compression")?.unwrap_or(Compression::None),
        };
        options.finish(DB_TYPE)?;
        if config.block_bytes > MAX_BLOCK_BYTES {
            return Err(Error::invalid(format!(
                "db option is too large option=`block_bytes` value=`{}` most=`{MAX_BLOCK_BYTES}`",
                config.block_bytes
            )));
        }
        Ok(config)
    }
}
