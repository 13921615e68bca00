//! A position among the entries of a file, in their order there.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, past_the_end, short_record};

use super::reader::MiniDb;

/// A cursor over an open file.
pub(super) struct MiniCursor<'a> {
    db: &'a MiniDb,
    number: usize,
}

impl<'a> MiniCursor<'a> {
    /// At the first entry.
    pub(super) fn new(db: &'a MiniDb) -> Self {
        Self { db, number: 0 }
    }

    fn at(&self) -> Result<(&[u8], Range<u64>)> {
        self.db.entry(self.number).ok_or_else(past_the_end)
    }
}

impl Cursor for MiniCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.db.entry(self.number).map(|(key, _)| key)
    }

    fn value(&self) -> Result<Bytes> {
        self.db.fetch(self.at()?.1)
    }

    fn value_len(&self) -> Result<u64> {
        let (_, value) = self.at()?;
        Ok(value.end - value.start)
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let (key, value) = self.at()?;
        let (len, wanted) = (value.end - value.start, start..start.saturating_add(into.len() as u64));
        if wanted.end > len {
            return Err(short_record(key, len, wanted));
        }
        self.db.read_at(value.start + start, into)
    }

    fn next(&mut self) -> Result<()> {
        if self.key().is_some() {
            self.number += 1;
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.number = 0;
        while self.key().is_some_and(|found| found < key) {
            self.number += 1;
        }
        Ok(())
    }
}
