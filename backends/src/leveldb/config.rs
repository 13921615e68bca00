//! Settings.

use std::str::FromStr;

use ckpt_engine::db::DriverOptions;
use ckpt_engine::{Error, Result};

use super::format::table::BY_SNAPPY;
use super::writer::FAMILY;
use crate::table::{Compressor, TableOptions};

/// The backend's name.
pub(super) const DB_TYPE: &str = "leveldb";

pub(super) const MAX_KEY_LEN: usize = 1 << 20;

/// LevelDB reads a block in one call, and Linux moves a little less than 2 GiB in a call. A block holds the key, the value and some
/// bytes around them.
pub(super) const MAX_VALUE_LEN: u64 = (1 << 31) - (1 << 21);

/// A block of many records is shorter than twice this.
pub(super) const MAX_BLOCK_BYTES: usize = 256 << 20;

/// The way to compress blocks that `compression` names.
struct Compression(Option<Compressor>);

impl FromStr for Compression {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "none" => Ok(Self(None)),
            "snappy" => Ok(Self(Some(BY_SNAPPY))),
            _ => Err(()),
        }
    }
}

/// What `--db-option` can set.
///
/// - `block_bytes`: a block of a table is closed at this size. LevelDB reads and checks whole blocks, so by default every record has
///   one of its own: nothing is read that was not asked for, and damage stays within a record. Caffe2's default is 65536.
/// - `table_bytes`: a new table is begun at this size.
/// - `compression`: of blocks. Large tensors rarely get smaller by it.
pub(super) fn tables(mut options: DriverOptions) -> Result<TableOptions> {
    let tables = TableOptions {
        family: &FAMILY,
        block_bytes: options.take("block_bytes")?.unwrap_or(1),
        table_bytes: options.take("table_bytes")?.unwrap_or(1 << 30),
        compression: options.take("compression")?.and_then(|Compression(compressor)| compressor),
    };
    options.finish(DB_TYPE)?;
    if tables.block_bytes > MAX_BLOCK_BYTES {
        return Err(Error::invalid(format!(
            "db option is too large option=`block_bytes` value=`{}` most=`{MAX_BLOCK_BYTES}`",
            tables.block_bytes
        )));
    }
    Ok(tables)
}
