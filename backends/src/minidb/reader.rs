//! Reading: the keys on opening, then ranges of the file.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink, missing_record, short_record};

use super::cursor::MiniCursor;
use super::format;
use crate::store::{Opened, Reader, Segment};

/// An open file.
#[derive(Debug)]
pub(super) struct MiniDb {
    reader: Box<dyn Reader>,
    /// All keys, one after the other.
    keys: Vec<u8>,
    entries: Vec<Entry>,
    /// The numbers of the entries by key, then number.
    by_key: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    key_end: usize,
    value: Range<u64>,
}

impl MiniDb {
    /// Goes over all entries.
    pub(super) fn open(opened: Opened) -> Result<Self> {
        let Opened { reader, len, tail } = opened;
        let tail_start = len - (tail.len() as u64).min(len);
        let mut db = Self { reader, keys: Vec::new(), entries: Vec::new(), by_key: Vec::new() };
        let (reader, keys, entries) = (&db.reader, &mut db.keys, &mut db.entries);
        let mut fetch = |range: Range<u64>| match range.start.checked_sub(tail_start) {
            Some(start) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX).min(tail.len());
                let more = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                Ok(tail.slice(start..start.saturating_add(more).min(tail.len())))
            }
            None => reader.fetch(range),
        };
        format::walk(len, &mut fetch, &mut |key, value| {
            keys.extend_from_slice(key);
            entries.push(Entry { key_end: keys.len(), value });
            Ok(())
        })?;
        // An entry has ten bytes at least, so 32 bits are enough for a file of 40 GiB of the smallest.
        let count = u32::try_from(db.entries.len());
        let count = count.map_err(|_| ckpt_engine::Error::unsupported("minidb file has too many entries"))?;
        let mut by_key: Vec<u32> = (0..count).collect();
        by_key.sort_by_key(|&number| (db.key(number as usize), number));
        db.by_key = by_key;
        Ok(db)
    }

    fn key(&self, number: usize) -> Option<&[u8]> {
        let start = match number.checked_sub(1) {
            Some(before) => self.entries.get(before)?.key_end,
            None => 0,
        };
        self.keys.get(start..self.entries.get(number)?.key_end)
    }

    /// Key and place of value of an entry, by its number in the file.
    pub(super) fn entry(&self, number: usize) -> Option<(&[u8], Range<u64>)> {
        Some((self.key(number)?, self.entries.get(number)?.value.clone()))
    }

    /// The first entry of a key.
    fn find(&self, key: &[u8]) -> Option<Range<u64>> {
        let at = self.by_key.partition_point(|&number| self.key(number as usize) < Some(key));
        let (found, value) = self.entry(*self.by_key.get(at)? as usize)?;
        (found == key).then_some(value)
    }

    /// Bytes of the file.
    pub(super) fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        self.reader.fetch(range)
    }

    /// Bytes of the file from `start` on, straight to where they are wanted: they may be as many as the caller has memory for.
    pub(super) fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let (len, range) = (into.len(), start..start.saturating_add(into.len() as u64));
        let segment = Segment { index: 0, range, len, into: Some(into) };
        let one = Limits { threads: 1, memory: 0 };
        self.reader.read(vec![segment], &one, &|_, outcome| outcome.map(drop))
    }

    /// The range of the file that a read wants.
    fn locate(&self, read: &Read<'_>) -> Result<Range<u64>> {
        let value = self.find(read.key).ok_or_else(|| missing_record(read.key))?;
        let len = value.end - value.start;
        if read.range.start > read.range.end || read.range.end > len {
            return Err(short_record(read.key, len, read.range.clone()));
        }
        Ok(value.start + read.range.start..value.start + read.range.end)
    }
}

impl Db for MiniDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.find(key).map(|value| self.fetch(value)).transpose()
    }

    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        let mut segments = Vec::with_capacity(reads.len());
        for (index, read) in reads.into_iter().enumerate() {
            let len = read.len()?;
            match self.locate(&read) {
                Ok(range) => segments.push(Segment { index, range, len, into: read.into }),
                Err(error) => sink(index, Err(error))?,
            }
        }
        self.reader.read(segments, limits, sink)
    }

    fn map(&self, _first: &[u8], _last: &[u8]) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(MiniCursor::new(self)))
    }

    fn bytes_read(&self) -> u64 {
        self.reader.bytes_read()
    }
}
