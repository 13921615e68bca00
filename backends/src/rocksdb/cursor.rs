//! A position in a RocksDB database.

use std::path::Path;

use ::rocksdb::{DB, DBRawIterator};
use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, copy_value, past_the_end};

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
        self.iterator.value().map(Bytes::copy_from_slice).ok_or_else(past_the_end)
    }

    fn value_len(&self) -> Result<u64> {
        self.iterator.value().map(|value| value.len() as u64).ok_or_else(past_the_end)
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let (key, value) = self.iterator.item().ok_or_else(past_the_end)?;
        copy_value(value, start, into, key)
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
