//! Reading: the keys on opening, then ranges of the file, or slices of its mapping.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink, missing_record, short_record};
use ckpt_engine::{Error, Result, ResultExt};
use memmap2::Mmap;

use super::cursor::LmdbCursor;
use super::error::io_error;
use super::index::Index;
use super::pages::{Extent, PAGE_HEADER};
use crate::store::{grow, parallel, zeroed};

/// An open environment.
#[derive(Debug)]
pub(super) struct LmdbDb {
    data: DataFile,
    index: Index,
    /// The whole file, from the first [`Db::map`] on.
    mapping: OnceLock<Bytes>,
}

/// The data file. It stays the same one if another takes its name.
#[derive(Debug)]
struct DataFile {
    file: File,
    path: PathBuf,
    bytes_read: AtomicU64,
}

impl LmdbDb {
    /// Opens the data file at `path` and walks its tree.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| io_error("cannot open file", path, error))?;
        let found = file.metadata().map_err(|error| io_error("cannot look at", path, error))?;
        let data = DataFile { file, path: path.to_owned(), bytes_read: AtomicU64::new(0) };
        let index = Index::load(found.len(), |offset, into| data.read_at(into, offset))
            .context(|| format!("cannot open LMDB environment path=`{}`", path.display()))?;
        Ok(Self { data, index, mapping: OnceLock::new() })
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// A whole value.
    pub(super) fn fetch(&self, value: Extent) -> Result<Bytes> {
        let mut bytes = zeroed(usize::try_from(value.len).unwrap_or(usize::MAX))?;
        self.read_value(value, 0, &mut bytes)?;
        Ok(bytes.into())
    }

    /// The bytes of a value from `start` on.
    pub(super) fn read_value(&self, value: Extent, start: u64, into: &mut [u8]) -> Result<()> {
        if let Some(page) = value.overflow {
            let mut header = [0; PAGE_HEADER];
            self.data.read_at(&mut header, value.offset - PAGE_HEADER as u64)?;
            self.check_overflow(&header, page, value)?;
        }
        self.data.read_at(into, value.offset + start)
    }

    fn check_overflow(&self, header: &[u8], page: u64, value: Extent) -> Result<()> {
        let checked = self.index.meta().check_overflow(header, page, value.len);
        checked.context(|| format!("cannot read LMDB environment path=`{}`", self.data.path.display()))
    }

    /// Where the value is that a read wants a range of.
    fn locate(&self, read: &Read<'_>) -> Result<Extent> {
        let value = self.index.find(read.key).ok_or_else(|| missing_record(read.key))?;
        if read.range.start > read.range.end || read.range.end > value.len {
            return Err(short_record(read.key, value.len, read.range.clone()));
        }
        Ok(value)
    }

    fn mapping(&self) -> Result<&Bytes> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let mapping = self.data.map()?;
        Ok(self.mapping.get_or_init(|| mapping))
    }
}

impl Db for LmdbDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.index.find(key).map(|value| self.fetch(value)).transpose()
    }

    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        for read in &reads {
            read.len()?;
        }
        let reads = reads.into_iter().enumerate().collect();
        parallel::for_each(
            limits.threads,
            reads,
            |scratch: &mut Vec<u8>, (index, read): (usize, Read<'_>)| {
                let value = match self.locate(&read) {
                    Ok(value) => value,
                    Err(error) => return sink(index, Err(error)),
                };
                let len = read.len()?;
                let into = match read.into {
                    Some(into) => into,
                    None => {
                        grow(scratch, len)?;
                        scratch.get_mut(..len).unwrap_or_default()
                    }
                };
                match self.read_value(value, read.range.start, into) {
                    Ok(()) => sink(index, Ok(into)),
                    Err(error) => sink(index, Err(error)),
                }
            },
        )
    }

    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(value) = self.index.find(key) else {
            return Ok(None);
        };
        let mapping = self.mapping()?;
        if let Some(page) = value.overflow {
            let header = slice(mapping, value.offset - PAGE_HEADER as u64, PAGE_HEADER as u64);
            self.check_overflow(&header.ok_or_else(|| self.data.was_cut())?, page, value)?;
        }
        let bytes = slice(mapping, value.offset, value.len).ok_or_else(|| self.data.was_cut())?;
        self.data.bytes_read.fetch_add(value.len, Ordering::Relaxed);
        Ok(Some(bytes))
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(LmdbCursor::new(self)))
    }

    fn bytes_read(&self) -> u64 {
        self.data.bytes_read.load(Ordering::Relaxed)
    }
}

impl DataFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.was_cut(),
            _ => io_error("cannot read file", &self.path, error),
        })?;
        self.bytes_read.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn map(&self) -> Result<Bytes> {
        // SAFETY: the mapping is read-only, and its bytes must not change while it lives. Nobody changes a published data
        // file: a db is replaced by another file of its name, and this one stays as it is for as long as it is mapped. (A
        // program that writes into it all the same breaks every reader of it, liblmdb's own included.)
        let mapping = unsafe { Mmap::map(&self.file) };
        let mapping = mapping.map_err(|error| io_error("cannot map file", &self.path, error))?;
        Ok(Bytes::from_owner(mapping))
    }

    fn was_cut(&self) -> Error {
        Error::corrupt(format!("file was cut short after it was opened path=`{}`", self.path.display()))
    }
}

/// A part of the mapping, or `None` if it is not all within.
fn slice(mapping: &Bytes, offset: u64, len: u64) -> Option<Bytes> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= mapping.len()).then(|| mapping.slice(start..end))
}
