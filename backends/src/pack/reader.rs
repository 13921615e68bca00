//! Reading a pack: the end on opening, then ranges.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink, missing_record, short_record};
use ckpt_engine::{Error, Result};

use super::cursor::PackCursor;
use super::format::{FOOTER_LEN, Footer, Index};
use crate::store::{Opened, Reader, Segment};

/// An open pack.
#[derive(Debug)]
pub(super) struct PackDb {
    reader: Box<dyn Reader>,
    index: Index,
    /// Where `tail` begins.
    tail_start: u64,
    /// The end of the pack as it was fetched on opening: mostly it has the manifest, which was put last.
    tail: Bytes,
}

impl PackDb {
    /// Reads the index, in one more request if the end that was fetched does not hold all of it.
    pub(super) fn open(opened: Opened) -> Result<Self> {
        let Opened { reader, len, tail } = opened;
        let footer = Footer::decode(&tail, len)?;
        let outside = || Error::internal("store gave another end than it said");
        let tail_start = len.checked_sub(tail.len() as u64).ok_or_else(outside)?;
        let here = tail.slice(..tail.len().saturating_sub(FOOTER_LEN));
        let index = match footer.index.start.checked_sub(tail_start) {
            Some(start) => here.slice(usize::try_from(start).map_err(|_| outside())?..),
            None => {
                let before = reader.fetch(footer.index.start..tail_start)?;
                [before, here].concat().into()
            }
        };
        let index = Index::decode(index, &footer)?;
        Ok(Self { reader, index, tail_start, tail })
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The bytes of a range, from the end that is here or from the store.
    pub(super) fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        match self.in_tail(&range) {
            Some(bytes) => Ok(bytes),
            None => self.reader.fetch(range),
        }
    }

    fn in_tail(&self, range: &Range<u64>) -> Option<Bytes> {
        let start = usize::try_from(range.start.checked_sub(self.tail_start)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.tail_start)?).ok()?;
        (start <= end && end <= self.tail.len()).then(|| self.tail.slice(start..end))
    }

    /// The bytes of the pack that a read wants.
    fn locate(&self, read: &Read<'_>) -> Result<Range<u64>> {
        let value = self.index.find(read.key).ok_or_else(|| missing_record(read.key))?;
        let len = value.end - value.start;
        if read.range.start > read.range.end || read.range.end > len {
            return Err(short_record(read.key, len, read.range.clone()));
        }
        Ok(value.start + read.range.start..value.start + read.range.end)
    }
}

impl Db for PackDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.index.find(key).map(|value| self.fetch(value)).transpose()
    }

    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        let mut segments = Vec::with_capacity(reads.len());
        for (index, read) in reads.into_iter().enumerate() {
            let len = read.len()?;
            match self.locate(&read) {
                Err(error) => sink(index, Err(error))?,
                Ok(range) => match self.in_tail(&range) {
                    None => segments.push(Segment { index, range, len, into: read.into }),
                    Some(bytes) => {
                        let found = match read.into {
                            Some(into) => {
                                into.copy_from_slice(&bytes);
                                into
                            }
                            None => &bytes[..],
                        };
                        sink(index, Ok(found))?;
                    }
                },
            }
        }
        self.reader.read(segments, limits, sink)
    }

    fn map(&self, first: &[u8], last: &[u8]) -> Result<Option<Bytes>> {
        let numbers = self.index.lower_bound(first)..=self.index.lower_bound(last);
        let mut run: Option<Range<u64>> = None;
        for number in numbers {
            let Some((key, value)) = self.index.entry(number) else { return Ok(None) };
            if key > last || run.as_ref().is_none() && key != first {
                return Ok(None);
            }
            match &mut run {
                None => run = Some(value),
                Some(run) if run.end == value.start => run.end = value.end,
                Some(_) => return Ok(None),
            }
        }
        run.map_or(Ok(None), |run| self.reader.map(run))
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(PackCursor::new(self)))
    }

    fn bytes_read(&self) -> u64 {
        self.reader.bytes_read()
    }
}
