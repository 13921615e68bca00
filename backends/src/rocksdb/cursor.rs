//! A position in a RocksDB database.

use std::path::Path;

use ::rocksdb::{DB, DBRawIterator};
use bytes::Bytes;
use ckpt_engine::db::Cursor;
use ckpt_engine::{Error, Result};

use super::{config, error};

/// A cursor over an open database.
pub(super) struct RocksCursor<'a> {
    iterator: DBRawIterator<'a>,
    path: &'a Path,
}

impl<'a> RocksCursor<'a> {
    /// At the first record.
    pub(super) fn new(db: &'a DB, path: &'a Path) -> Result<Self> {
        let mut iterator = db.raw_iterator_opt(config::read_options());
        iterator.seek_to_first();
        let cursor = Self { iterator, path };
        cursor.check()?;
        Ok(cursor)
    }

    /// An iterator that is not valid is past the end, or has failed.
    fn check(&self) -> Result<()> {
        self.iterator.status().map_err(|error| error::map("cannot read database", self.path, error))
    }
}

impl Cursor for RocksCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.iterator.key()
    }

    fn value(&self) -> Result<Bytes> {
        let value = self.iterator.value().map(Bytes::copy_from_slice);
        value.ok_or_else(|| Error::invalid("cursor is past the end"))
    }

    fn next(&mut self) -> Result<()> {
        if self.iterator.valid() {
            self.iterator.next();
        }
        self.check()
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.iterator.seek(key);
        self.check()
    }
}
