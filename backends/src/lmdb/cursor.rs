//! A position among the keys of an LMDB environment. Values are fetched when they are asked for.

use bytes::Bytes;
use ckpt_engine::db::Cursor;
use ckpt_engine::{Error, Result};

use super::reader::LmdbDb;

/// A cursor over an open environment.
pub(super) struct LmdbCursor<'a> {
    db: &'a LmdbDb,
    number: usize,
}

impl<'a> LmdbCursor<'a> {
    /// At the first record.
    pub(super) fn new(db: &'a LmdbDb) -> Self {
        Self { db, number: 0 }
    }
}

impl Cursor for LmdbCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.db.index().entry(self.number).map(|(key, _)| key)
    }

    fn value(&self) -> Result<Bytes> {
        let entry = self.db.index().entry(self.number);
        let (_, value) = entry.ok_or_else(|| Error::invalid("cursor is past the end"))?;
        self.db.fetch(value)
    }

    fn next(&mut self) -> Result<()> {
        if self.key().is_some() {
            self.number += 1;
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.number = self.db.index().lower_bound(key);
        Ok(())
    }
}
