//! Write-once bytes under a name, with range reads: what a pack stands on.
//!
//! [`fs`] keeps them as files, `object` as objects behind HTTP. This is not a file system interface: nothing is changed in
//! place, nothing is appended to what is published, and a name is one part of a path under a prefix.

mod coalesce;
// Without these two nobody stages a directory.
#[cfg_attr(not(any(feature = "rocksdb", feature = "lmdb")), allow(dead_code, unused_imports))]
pub(crate) mod fs;
pub(crate) mod names;
#[cfg(feature = "object-store")]
pub(crate) mod object;
pub(crate) mod parallel;
#[cfg(any(feature = "rocksdb", feature = "leveldb"))]
pub(crate) mod wanted;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Capabilities, Limits, ReadSink, Records, Source};

/// The longest record of a place that is read: records are kilobytes, and what is longer was not written by us.
pub(crate) const MAX_RECORD_LEN: u64 = 16 << 20;

/// A place for write-once bytes. All methods may be called from several threads at once.
pub(crate) trait Store: Debug + Send + Sync + 'static {
    /// The db_type of the packs in it.
    fn db_type(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Begins to write. Nothing is visible before [`Writer::commit`].
    fn create(&self, at: &Source, expected: Expected) -> Result<Box<dyn Writer>>;

    /// Opens what is published, and fetches its end, in one request where the store can.
    ///
    /// Fails with `NotFound` if there is nothing, and with `InvalidInput` if it is no such thing (a directory).
    fn open(&self, at: &Source) -> Result<Opened>;

    /// Whether something is published there: one request. "Cannot tell" is an error.
    fn exists(&self, at: &Source) -> Result<bool>;

    /// The names of what is published directly under `prefix`. Fails with `NotFound` if there is no such place, where the
    /// store can tell.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;

    /// Removes what is published: invisible from the first step on. `Ok` if it is absent.
    fn delete(&self, at: &Source) -> Result<()>;

    /// The small records of the place.
    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>>;
}

/// What is known of a write before it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// At most so many bytes.
    pub(crate) bytes: u64,
    /// What may be used for writing behind.
    pub(crate) limits: Limits,
}

/// Bytes on their way, from front to end. Dropped, they are discarded and leave nothing behind.
pub(crate) trait Writer {
    /// Adds bytes at the end. It may be written later and its failure told by a later call. After an error the write is lost.
    fn append(&mut self, pieces: Vec<Bytes>) -> Result<()>;

    /// Makes the bytes durable and publishes them at once, in place of older ones of that name.
    ///
    /// After `Err` the older ones are as they were, unless the error says that it may have happened.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// Published bytes and their end.
#[derive(Debug)]
pub(crate) struct Opened {
    /// For more.
    pub(crate) reader: Box<dyn Reader>,
    /// How many there are.
    pub(crate) len: u64,
    /// The last of them: all, or as many as the store thinks fit.
    pub(crate) tail: Bytes,
}

/// Published bytes. Reads always the same ones, or fails: never parts of an older and of a newer version.
pub(crate) trait Reader: Debug + Send + Sync {
    /// The bytes of a range, which must be within.
    fn fetch(&self, range: Range<u64>) -> Result<Bytes>;

    /// Reads many ranges, which must be within, in any order and with as many at once as suits the store. Each outcome
    /// goes to `sink`, whose error ends the call.
    fn read(&self, segments: Vec<Segment<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()>;

    /// The bytes of a range without a copy, where the store can; else `None`. They stay readable when the reader is gone.
    fn map(&self, range: Range<u64>) -> Result<Option<Bytes>>;

    /// How many bytes were fetched so far.
    fn bytes_read(&self) -> u64;
}

/// A range to read.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    /// By what `sink` knows it.
    pub(crate) index: usize,
    /// The wanted bytes.
    pub(crate) range: Range<u64>,
    /// As long as the range.
    pub(crate) len: usize,
    /// Where to put them; exactly as long. Without it the store lends memory of its own.
    pub(crate) into: Option<&'a mut [u8]>,
}

/// Zeroed memory, or `Full` if there is not so much.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(len).map_err(|error| {
        let message = format!("out of memory for a read bytes=`{len}`");
        ckpt_engine::Error::new(ckpt_engine::ErrorKind::Full, message).with_source(error)
    })?;
    memory.resize(len, 0);
    Ok(memory)
}

/// The same error for another read of the record.
#[cfg(any(feature = "rocksdb", feature = "leveldb", feature = "lmdb"))]
pub(crate) fn again(error: &ckpt_engine::Error) -> ckpt_engine::Error {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text = format!("{text}: {source}");
    }
    ckpt_engine::Error::new(error.kind(), text)
}
