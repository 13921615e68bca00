//! [`Store`] over a file system: one file per name.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use ckpt_engine::db::{Capabilities, Layout, Limits, Locality, Order, ReadSink, Records, Source, Values};
use ckpt_engine::{Error, Result};

use super::behind::FileWriter;
use super::reading::FileReader;
use super::{FsRecords, Wanted, db_path, destroy_file, file_exists, io_error, list_files, wrong_type};
use crate::store::{Expected, Opened, Reader, Segment, Store, Writer};

/// How much of a file's end is read on opening: the footer, the index and mostly the manifest.
const TAIL: u64 = 64 << 10;

/// Files under a prefix that is a path.
#[derive(Debug)]
pub(crate) struct FsStore {
    db_type: &'static str,
}

impl FsStore {
    /// A store whose files are packs of this db_type.
    pub(crate) fn new(db_type: &'static str) -> Self {
        Self { db_type }
    }
}

impl Store for FsStore {
    fn db_type(&self) -> &'static str {
        self.db_type
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_key_len: usize::from(u16::MAX),
            max_value_len: u64::MAX,
            locality: Locality::Local,
            values: if self.db_type == "files" { Values::Mapped } else { Values::Copied },
            order: Order::Ascending,
            layout: Layout::Native,
        }
    }

    fn create(&self, at: &Source, expected: Expected) -> Result<Box<dyn Writer>> {
        let path = db_path(at.prefix(), at.name())?;
        check_kind(self.db_type, &path)?;
        Ok(Box::new(FileWriter::create(&path, expected)?))
    }

    fn open(&self, at: &Source) -> Result<Opened> {
        let path = db_path(at.prefix(), at.name())?;
        let file = File::open(&path).map_err(|error| io_error("cannot open file", &path, error))?;
        let found = file.metadata().map_err(|error| io_error("cannot look at", &path, error))?;
        if !found.is_file() {
            return Err(wrong_type(&path, Wanted::File));
        }
        let len = found.len();
        if let Some(other) = other_kind(self.db_type, &file, len) {
            let message =
                format!("file is a db of db_type `{other}`: use that one path=`{}`", path.display());
            return Err(Error::corrupt(message));
        }
        let reader = FileReader::new(file, path);
        let tail = reader.fetch(len.saturating_sub(TAIL)..len)?;
        Ok(Opened { reader: Box::new(reader), len, tail })
    }

    fn exists(&self, at: &Source) -> Result<bool> {
        file_exists(&db_path(at.prefix(), at.name())?)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        list_files(Path::new(prefix))
    }

    fn delete(&self, at: &Source) -> Result<()> {
        destroy_file(&db_path(at.prefix(), at.name())?)
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(FsRecords::new(prefix)))
    }
}

/// Fails if the file that would be replaced is a db of the other db_type that keeps files under the same names. What is damaged may be
/// replaced.
fn check_kind(db_type: &str, path: &Path) -> Result<()> {
    // Whatever keeps us from looking keeps us from writing too, and is told then.
    let Ok(file) = File::open(path) else { return Ok(()) };
    match file.metadata().ok().and_then(|found| other_kind(db_type, &file, found.len())) {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "file is a db of db_type `{other}`, which would be lost; save to another folder path=`{}`",
            path.display()
        ))),
    }
}

/// The db_type that a file is of, if it is the other one that keeps files, by how it begins.
fn other_kind(db_type: &str, file: &File, len: u64) -> Option<&'static str> {
    let mut head = [0; 8];
    file.read_exact_at(&mut head, 0).ok()?;
    // The lengths of a first entry that fits the file.
    let mut lens =
        head.chunks_exact(4).map(|bytes| bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes)));
    let (key, value) = (i64::from(lens.next()?), i64::from(lens.next()?));
    let is_minidb = (1..=4096).contains(&key) && value > 0 && (8 + key + value).unsigned_abs() <= len;
    match db_type {
        // As a pack begins.
        "minidb" if head == *b"CKPTPACK" => Some("files"),
        "files" if is_minidb => Some("minidb"),
        _ => None,
    }
}

impl Reader for FileReader {
    fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        self.fetch(range)
    }

    fn read(&self, segments: Vec<Segment<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        self.read(segments, limits, sink)
    }

    fn map(&self, range: Range<u64>) -> Result<Option<Bytes>> {
        self.map(range)
    }

    fn bytes_read(&self) -> u64 {
        self.bytes_read()
    }
}
