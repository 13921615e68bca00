//! A position in the index of a pack. Values are fetched when they are asked for.

use bytes::Bytes;
use ckpt_engine::db::Cursor;
use ckpt_engine::{Error, Result};

use super::reader::PackDb;

/// A cursor over an open pack.
pub(super) struct PackCursor<'a> {
    db: &'a PackDb,
    number: usize,
}

impl<'a> PackCursor<'a> {
    /// At the first record.
    pub(super) fn new(db: &'a PackDb) -> Self {
        Self { db, number: 0 }
    }
}

impl Cursor for PackCursor<'_> {
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
