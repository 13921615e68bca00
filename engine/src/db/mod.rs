//! The contract between the engine and a backend.
//!
//! A checkpoint db is an ordered map from short keys to values that is **written once and read many times**. That is the
//! whole trick: no updates, no compaction, no write-ahead log, and a commit that is one rename or one completed upload.
//!
//! A backend implements [`Driver`] (the factory), [`Transaction`] (one write), [`Db`] and [`Cursor`] (reading) and
//! [`Records`] (small objects beside the dbs). It is selected by its `db_type` through a [`Registry`]. The engine knows no
//! backend and no path syntax: a [`Source`] is two strings that only the driver interprets.
//!
//! The names come from Caffe2's `caffe2/core/db.h`. The differences: a write commits when its body returns `Ok` and never
//! by a destructor; `exists` has three answers; reads are ranges, many at once, into memory of the caller's.

mod memory;
mod options;
mod registry;

use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use memory::MemoryDriver;
pub use options::DriverOptions;
pub use registry::{DriverFactory, Registry};

use crate::error::{Error, Result};

/// Where one db is: its name under a prefix. Only the driver knows how the two are joined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    prefix: String,
    name: String,
}

impl Source {
    /// The db called `name` under `prefix`.
    pub fn new(prefix: impl Into<String>, name: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), name: name.into() }
    }

    /// The place that holds the db, in the driver's own syntax.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The db's name within the place.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.strip_suffix('/').unwrap_or(&self.prefix) {
            "" => f.write_str(&self.name),
            prefix => write!(f, "{prefix}/{}", self.name),
        }
    }
}

/// What a backend can do, as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The longest key, in bytes.
    pub max_key_len: usize,
    /// The longest value, in bytes.
    pub max_value_len: u64,
    /// Where the data lives.
    pub locality: Locality,
    /// What [`Db::map`] gives.
    pub values: Values,
    /// In which order it takes and gives records.
    pub order: Order,
    /// How a save lays out a db here, unless it is told otherwise.
    pub layout: Layout,
}

/// Where a backend keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// In this process; gone with it.
    Process,
    /// On a file system.
    Local,
    /// Behind a network: requests are costly and many should be under way at once.
    Remote,
}

/// How a backend hands out stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// [`Db::map`] returns the stored bytes of one record, or of records that lie one behind the other, without a copy.
    Mapped,
    /// [`Db::map`] returns those of one record only: between two of them there is always something.
    MappedSingly,
    /// Every read copies; [`Db::map`] returns `None`.
    Copied,
}

impl Values {
    /// Whether anything is handed out without a copy.
    pub fn are_mapped(self) -> bool {
        self != Self::Copied
    }
}

/// In which order a backend takes records and gives them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By key, each key once.
    Ascending,
    /// As they were put; a key can come again.
    AsPut,
}

/// What the records of a db mean. Recognised on opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Chunks and a manifest: docs/FORMAT.md.
    #[default]
    Native,
    /// `BlobProto` messages, as Caffe2's Save operator writes them: docs/CAFFE2.md.
    Caffe2,
}

impl Layout {
    /// The name, as commands print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Caffe2 => "caffe2",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much a call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Worker threads, at least 1.
    pub threads: usize,
    /// Memory over the payload, in bytes. It bounds what is in flight; one record is always allowed.
    pub memory: usize,
}

impl Limits {
    /// The default budget over the payload: 256 MiB.
    pub const DEFAULT_MEMORY: usize = 256 << 20;
}

impl Default for Limits {
    /// One thread per processor, [`Limits::DEFAULT_MEMORY`].
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory: Self::DEFAULT_MEMORY,
        }
    }
}

/// What a write will put, known before it starts.
#[derive(Clone, Copy, Debug)]
pub struct WritePlan {
    /// How many records at most.
    pub records: u64,
    /// The sum of all values' lengths at most, in bytes.
    pub bytes: u64,
    /// What the backend may use for writing behind.
    pub limits: Limits,
}

/// A value on its way to a backend: pieces that follow each other. It owns them, so a backend may write behind.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Payload {
    /// An empty value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// The pieces in order, none of them empty.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The length of the value in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value in one piece: without a copy if it has at most one.
    pub fn into_bytes(mut self) -> Bytes {
        match self.pieces.len() {
            0 => Bytes::new(),
            1 => self.pieces.swap_remove(0),
            _ => self.pieces.concat().into(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        let mut payload = Self::new();
        payload.push(bytes);
        payload
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

/// The body of a write: puts every record of the db.
pub type WriteBody<'a> = dyn FnMut(&mut dyn Transaction) -> Result<()> + 'a;

/// A backend: the factory of its dbs. Selected by `db_type`.
///
/// A driver holds no open db. All methods may be called from several threads at once. They block; they must not be called
/// from inside an async runtime (a driver that cannot work there answers with an error, never with a panic).
pub trait Driver: Debug + Send + Sync {
    /// The name by which the backend is selected.
    fn db_type(&self) -> &'static str;

    /// What the backend can do.
    fn capabilities(&self) -> Capabilities;

    /// Writes the db at `source`: runs `body` and commits if it returns `Ok`.
    ///
    /// - After `Ok` the db is durable, visible at once and whole, in place of an older db of that name.
    /// - After `Err`, or if `body` panics, nothing of this write is visible and an older db of that name is as it was;
    ///   unless the error's [`effect`](crate::Error::effect) says that the commit may have happened.
    /// - After a crash at any moment the db is the older one (or absent) or the new one, whole.
    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()>;

    /// Opens a db for reading, without taking a lock that would keep others out and without writing anything.
    ///
    /// Fails with `NotFound` if there is none, and with `Corrupt` if what is there is not a db of this type.
    fn open(&self, source: &Source) -> Result<Arc<dyn Db>>;

    /// Whether there is a db at `source`. "Cannot tell" (no permission, no answer, something else in its place) is an
    /// error, never `false`. One cheap call, whatever the size; it does not check the contents.
    fn exists(&self, source: &Source) -> Result<bool>;

    /// The names of the dbs of this type directly under `prefix`, in any order. Fails with `NotFound` if the place itself
    /// does not exist, where the store can tell.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;

    /// Removes the db. `Ok` if it is absent. It is invisible from the first step on.
    fn destroy(&self, source: &Source) -> Result<()>;

    /// The small objects beside the dbs under `prefix`. Nothing is made before the first [`Records::put`].
    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>>;
}

/// One write of a db. Lives inside [`Driver::write`].
pub trait Transaction {
    /// Adds a record. Keys must be strictly ascending (bytewise; not where the [`Order`] is another), not empty and within the
    /// capabilities.
    ///
    /// After an error the write is lost: the body must return it.
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()>;
}

/// One range to read.
#[derive(Debug)]
pub struct Read<'a> {
    /// The record's key.
    pub key: &'a [u8],
    /// The wanted bytes of its value.
    pub range: Range<u64>,
    /// Where to put them; exactly as long as `range`. Without it the backend lends memory of its own.
    pub into: Option<&'a mut [u8]>,
}

impl Read<'_> {
    /// The length of the range, or an error where it does not fit this machine's memory or the given buffer.
    pub fn len(&self) -> Result<usize> {
        let len = self.range.end.checked_sub(self.range.start);
        let len = len.and_then(|len| usize::try_from(len).ok());
        let fits = |len: &usize| self.into.as_ref().is_none_or(|into| into.len() == *len);
        len.filter(fits).ok_or_else(|| {
            Error::invalid(format!(
                "range does not fit its buffer range=`{}..{}`",
                self.range.start, self.range.end
            ))
        })
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// Takes the outcome of one read: its index in the list, and its bytes or why there are none. Called once for every read, in
/// any order, from any thread. An error that it returns ends the call.
pub type ReadSink<'a> = dyn Fn(usize, Result<&[u8]>) -> Result<()> + Sync + 'a;

/// An open db.
pub trait Db: Debug + Send + Sync {
    /// The whole value of a key, or `None` if it has none. Of a repeated key the first.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Reads many ranges, in an order and with as many at once as suits the store, within `limits`.
    ///
    /// A read that fails is told to `sink` and does not stop the others: a missing key or a range past the value's end as
    /// `Corrupt`. The bytes have not been checked: `sink` does that while they are hot.
    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()>;

    /// The stored bytes of the values of the keys from `first` to `last`, which are in the db, without a copy, where the backend can
    /// ([`Values::Mapped`]) and they lie directly one behind the other; else `None`. They stay readable after the db is closed or
    /// replaced.
    fn map(&self, first: &[u8], last: &[u8]) -> Result<Option<Bytes>>;

    /// A cursor at the first key.
    fn cursor(&self) -> Result<Box<dyn Cursor + '_>>;

    /// How many bytes were fetched from the store through this handle so far, index and all.
    fn bytes_read(&self) -> u64;
}

/// A position in a db, in its [`Order`].
pub trait Cursor {
    /// The key at the position, or `None` past the end.
    fn key(&self) -> Option<&[u8]>;

    /// The value at the position, fetched now. Fails with `InvalidInput` past the end.
    fn value(&self) -> Result<Bytes>;

    /// The length of the value at the position, in bytes. Fails with `InvalidInput` past the end.
    fn value_len(&self) -> Result<u64>;

    /// Fetches the bytes of the value from `start` on into all of `into`, and where the store can, no others. Fails with
    /// `InvalidInput` past the end, and with `Corrupt` where the value has not so many.
    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()>;

    /// Goes to the next key. Stays past the end.
    fn next(&mut self) -> Result<()>;

    /// Goes to the first record, in the db's order, whose key is not less than `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
}

/// When a record may be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Replaces an older one at once: a reader sees the old or the new, whole.
    Replace,
    /// Fails with `AlreadyExists` if there is one. Of several callers one wins.
    Create,
}

/// Small named objects beside the dbs of a place: epoch records, pins, leases.
///
/// Names hold letters, digits, `.`, `_`, `-` and do not begin with a dot. Values are small (kilobytes).
pub trait Records: Debug + Send + Sync {
    /// The value, or `None` if there is none.
    fn get(&self, name: &str) -> Result<Option<Bytes>>;

    /// Stores a value: durable, whole and visible after `Ok`.
    fn put(&self, name: &str, value: Bytes, mode: PutMode) -> Result<()>;

    /// All names, in any order. Empty where nothing was ever put.
    fn list(&self) -> Result<Vec<String>>;

    /// Removes a value. `Ok` if it is absent.
    fn delete(&self, name: &str) -> Result<()>;
}

/// Checks that `key` may follow `last`: for backends, since every one must hold the same line.
pub fn check_order(last: Option<&[u8]>, key: &[u8]) -> Result<()> {
    if key.is_empty() || last.is_some_and(|last| last >= key) {
        return Err(Error::internal(format!(
            "keys must be put in strictly ascending order key=`{}`",
            key.escape_ascii()
        )));
    }
    Ok(())
}

/// The wanted range of a value, for backends that hold values in memory or mapped. A missing value and a range past the end
/// are `Corrupt`: whoever asks has read the manifest, which says that they are there.
pub fn slice_value<'v>(value: Option<&'v [u8]>, range: Range<u64>, key: &[u8]) -> Result<&'v [u8]> {
    let Some(value) = value else {
        return Err(missing_record(key));
    };
    let bounds = usize::try_from(range.start).and_then(|start| Ok(start..usize::try_from(range.end)?));
    bounds
        .ok()
        .and_then(|bounds| value.get(bounds))
        .ok_or_else(|| short_record(key, value.len() as u64, range))
}

/// Copies the bytes of a value from `start` on, for cursors over values that are in memory.
pub fn copy_value(value: &[u8], start: u64, into: &mut [u8], key: &[u8]) -> Result<()> {
    let end = start.saturating_add(into.len() as u64);
    into.copy_from_slice(slice_value(Some(value), start..end, key)?);
    Ok(())
}

/// The error of a cursor that has no record to speak of.
pub fn past_the_end() -> Error {
    Error::invalid("cursor is past the end")
}

/// The error for a record that should be there and is not.
pub fn missing_record(key: &[u8]) -> Error {
    Error::corrupt(format!("record is missing key=`{}`", key.escape_ascii()))
}

/// The error for a record that is shorter than it should be.
pub fn short_record(key: &[u8], len: u64, range: Range<u64>) -> Error {
    Error::corrupt(format!(
        "record is too short key=`{}` length=`{len}` wanted=`{}..{}`",
        key.escape_ascii(),
        range.start,
        range.end
    ))
}
