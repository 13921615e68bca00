//! Reading: the keys on opening, then ranges of the file, or slices of its mapping.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use bytes::Bytes;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink, missing_record, short_record};
use ckpt_engine::{Error, Result, ResultExt};

use super::cursor::LmdbCursor;
use super::error::io_error;
use super::index::Index;
use super::pages::{Extent, PAGE_HEADER};
use crate::store::fs::FileReader;
use crate::store::{Segment, again};

/// An open environment.
#[derive(Debug)]
pub(super) struct LmdbDb {
    data: FileReader,
    index: Index,
}

impl LmdbDb {
    /// Opens the data file at `path` and walks its tree.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| io_error("cannot open file", path, error))?;
        let found = file.metadata().map_err(|error| io_error("cannot look at", path, error))?;
        let data = FileReader::new(file, path.to_owned());
        let index = Index::load(found.len(), |offset, into| data.read_at(into, offset))
            .context(|| format!("cannot open LMDB environment path=`{}`", path.display()))?;
        Ok(Self { data, index })
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// A whole value.
    pub(super) fn fetch(&self, value: Extent) -> Result<Bytes> {
        self.check_pages(value)?;
        self.data.fetch(value.offset..value.offset + value.len)
    }

    /// The bytes of a value from `start` on.
    pub(super) fn read_value(&self, value: Extent, start: u64, into: &mut [u8]) -> Result<()> {
        self.check_pages(value)?;
        self.data.read_large(into, value.offset + start)
    }

    /// Compares the header of the pages of a large value with what the tree says of them.
    fn check_pages(&self, value: Extent) -> Result<()> {
        let Some(page) = value.overflow else { return Ok(()) };
        let mut header = [0; PAGE_HEADER];
        self.data.read_at(&mut header, value.offset - PAGE_HEADER as u64)?;
        let checked = self.index.meta().check_overflow(&header, page, value.len);
        checked.context(|| format!("cannot read LMDB environment path=`{}`", self.data.path().display()))
    }

    /// Where the value is that a read wants a range of.
    fn locate(&self, read: &Read<'_>) -> Result<Extent> {
        let value = self.index.find(read.key).ok_or_else(|| missing_record(read.key))?;
        if read.range.start > read.range.end || read.range.end > value.len {
            return Err(short_record(read.key, value.len, read.range.clone()));
        }
        Ok(value)
    }
}

impl Db for LmdbDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.index.find(key).map(|value| self.fetch(value)).transpose()
    }

    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        let mut segments = Vec::with_capacity(reads.len());
        // Chunks that share a record come one after another: its pages are looked at once.
        let mut records: Vec<(Extent, OnceLock<Result<()>>)> = Vec::new();
        let mut numbers = vec![0; reads.len()];
        for ((index, read), number) in reads.into_iter().enumerate().zip(&mut numbers) {
            let len = read.len()?;
            let value = match self.locate(&read) {
                Ok(value) => value,
                Err(error) => {
                    sink(index, Err(error))?;
                    continue;
                }
            };
            if records.last().is_none_or(|(last, _)| *last != value) {
                records.push((value, OnceLock::new()));
            }
            *number = records.len() - 1;
            let range = value.offset + read.range.start..value.offset + read.range.end;
            segments.push(Segment { index, range, len, into: read.into });
        }
        self.data.read(segments, limits, &|index, found| {
            let record = numbers.get(index).and_then(|&number| records.get(number));
            let (value, checked) = record.ok_or_else(|| Error::internal("answer to a read nobody made"))?;
            match checked.get_or_init(|| self.check_pages(*value)) {
                Ok(()) => sink(index, found),
                Err(error) => sink(index, Err(again(error))),
            }
        })
    }

    fn map(&self, first: &[u8], last: &[u8]) -> Result<Option<Bytes>> {
        // Between two values there is at least a header.
        let Some(value) = self.index.find(first).filter(|_| first == last) else {
            return Ok(None);
        };
        self.check_pages(value)?;
        let bytes = self.data.map(value.offset..value.offset + value.len)?;
        bytes.map(Some).ok_or_else(|| {
            let path = self.data.path().display();
            Error::corrupt(format!("file was cut short after it was opened path=`{path}`"))
        })
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(LmdbCursor::new(self)))
    }

    fn bytes_read(&self) -> u64 {
        self.data.bytes_read()
    }
}
