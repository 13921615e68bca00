//! A position among the keys of an LMDB environment. Values are fetched when they are asked for.

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, past_the_end, short_record};

use super::pages::Extent;
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

    fn at(&self) -> Result<(&[u8], Extent)> {
        self.db.index().entry(self.number).ok_or_else(past_the_end)
    }
}

impl Cursor for LmdbCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.db.index().entry(self.number).map(|(key, _)| key)
    }

    fn value(&self) -> Result<Bytes> {
        self.db.fetch(self.at()?.1)
    }

    fn value_len(&self) -> Result<u64> {
        Ok(self.at()?.1.len)
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let (key, value) = self.at()?;
        let wanted = start..start.saturating_add(into.len() as u64);
        if wanted.end > value.len {
            return Err(short_record(key, value.len, wanted));
        }
        self.db.read_value(value, start, into)
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
