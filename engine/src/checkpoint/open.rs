//! One open checkpoint: what it holds, and loading from it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::Options;
use crate::blob::{Blob, Buffer, DType, Selection, Tensor, Workspace, byte_len, rows_shape, to_usize};
use crate::db::{Db, Limits, Read, Source};
use crate::error::{Error, Result, ResultExt};
use crate::format::codec::{self, Codec};
use crate::format::keys;
use crate::format::manifest::{BlobEntry, BlobKind, Located, Manifest};

/// An open checkpoint: a db whose manifest was read and checked.
pub struct Checkpoint {
    db: Arc<dyn Db>,
    source: Source,
    label: String,
    manifest: Manifest,
    options: Options,
}

/// What a checkpoint says of one blob.
#[derive(Clone, Debug, PartialEq)]
pub struct BlobInfo<'a> {
    /// The name.
    pub name: &'a str,
    /// Tensor or opaque bytes.
    pub kind: &'a BlobKind,
    /// The length in raw bytes.
    pub bytes: u64,
    /// What its chunks take in the store.
    pub stored_bytes: u64,
    /// Zstd if any chunk is compressed.
    pub codec: Codec,
    /// How many chunks.
    pub chunks: u64,
}

/// Bytes of one storage to be read into memory of the caller's.
pub(super) struct Fetch<'a> {
    /// Index of the storage.
    pub storage: usize,
    /// The raw bytes wanted.
    pub range: Range<u64>,
    /// Where they go; as long as `range`.
    pub out: &'a mut [u8],
}

/// What one read of a fetch is for.
struct Part<'a> {
    storage: usize,
    located: Located,
    /// Where the decoded bytes go, unless the read went straight there.
    out: Option<Mutex<&'a mut [u8]>>,
    /// The bytes of the decoded chunk that are wanted.
    within: Range<usize>,
}

impl Checkpoint {
    /// Reads and checks the manifest.
    pub(super) fn from_db(db: Arc<dyn Db>, source: Source, label: String, options: Options) -> Result<Self> {
        let record = db.get(keys::MANIFEST)?.ok_or_else(|| {
            Error::corrupt("db has no manifest: it is not a native checkpoint, or its index is damaged")
        })?;
        let manifest = Manifest::decode(&record)?;
        Ok(Self { db, source, label, manifest, options })
    }

    /// What the db holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The db below.
    pub fn db(&self) -> &Arc<dyn Db> {
        &self.db
    }

    /// Where it is.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its name for people.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The blobs in the order of their names.
    pub fn blobs(&self) -> Result<Vec<BlobInfo<'_>>> {
        let blobs = self.manifest.blobs.iter().map(|blob| {
            let storage = self.manifest.storage(blob)?;
            Ok(BlobInfo {
                name: &blob.name,
                kind: &blob.kind,
                bytes: storage.bytes,
                stored_bytes: storage.stored_bytes(),
                codec: storage.codec(),
                chunks: storage.chunks.len() as u64,
            })
        });
        blobs.collect()
    }

    /// The names of the blobs, in order.
    pub fn names(&self) -> Vec<&str> {
        self.manifest.blobs.iter().map(|blob| blob.name.as_str()).collect()
    }

    /// Loads the chosen blobs. Reads only their chunks; those that share bytes come back sharing them.
    ///
    /// All or nothing: a chunk that is damaged is an error that names db, blob and bytes.
    pub fn load(&self, blobs: &Selection) -> Result<Workspace> {
        self.load_selected(blobs).context(|| format!("cannot load from db `{}`", self.label))
    }

    /// Loads rows `rows` of the first dimension of a tensor, reading only the chunks that hold them (of a string tensor: all).
    pub fn load_rows(&self, name: &str, rows: Range<u64>) -> Result<Tensor> {
        self.load_rows_of(name, rows).context(|| format!("cannot load from db `{}`", self.label))
    }

    fn load_selected(&self, blobs: &Selection) -> Result<Workspace> {
        let wanted = blobs.resolve(&self.names())?;
        let wanted: Vec<&BlobEntry> =
            wanted.into_iter().filter_map(|index| self.manifest.blobs.get(index)).collect();
        let mut buffers: BTreeMap<usize, Buffer> = BTreeMap::new();
        for blob in &wanted {
            if let std::collections::btree_map::Entry::Vacant(entry) = buffers.entry(blob.storage) {
                let bytes = to_usize(self.manifest.storage(blob)?.bytes)?;
                entry.insert(Buffer::zeroed(bytes).context(|| format!("blob `{}`", blob.name))?);
            }
        }
        let fetches = buffers.iter_mut().map(|(&storage, buffer)| {
            let out = buffer.as_mut()?;
            Ok(Fetch { storage, range: 0..out.len() as u64, out })
        });
        self.fetch(fetches.collect::<Result<_>>()?)?;
        let blob = |entry: &&BlobEntry| {
            let data = buffers.get(&entry.storage).cloned().ok_or_else(|| Error::internal("no buffer"))?;
            let blob = make_blob(&entry.kind, data).context(|| format!("blob `{}`", entry.name))?;
            Ok((entry.name.clone(), blob))
        };
        wanted.iter().map(blob).collect()
    }

    fn load_rows_of(&self, name: &str, rows: Range<u64>) -> Result<Tensor> {
        let entry = self.manifest.blob(name).ok_or_else(|| crate::blob::no_such_blob(name))?;
        let (dtype, shape) = match &entry.kind {
            BlobKind::Tensor { dtype, shape } => (*dtype, shape),
            BlobKind::Bytes { type_name } => {
                return Err(Error::invalid(format!("blob is not a tensor blob=`{name}` type=`{type_name}`")));
            }
        };
        let of_rows = rows_shape(shape, &rows).context(|| format!("blob `{name}`"))?;
        let row = byte_len(dtype, shape.get(1..).unwrap_or_default())?;
        let Some(row) = row else {
            return self.load_selected(&Selection::names([name]))?.tensor(name)?.rows(rows);
        };
        // Within the storage, whose length the manifest's check has compared with the shape.
        let range = rows.start * row..rows.end * row;
        let mut data = Buffer::zeroed(to_usize(range.end - range.start)?)?;
        self.fetch(vec![Fetch { storage: entry.storage, range, out: data.as_mut()? }])?;
        Tensor::new(dtype, of_rows, data)
    }

    /// Reads ranges of storages, checking each chunk that is touched in the same read.
    pub(super) fn fetch(&self, fetches: Vec<Fetch<'_>>) -> Result<()> {
        let mut keys = Vec::new();
        let mut parts = Vec::new();
        let mut direct = Vec::new();
        for fetch in fetches {
            self.plan_fetch(fetch, &mut parts, &mut direct)?;
        }
        keys.extend(parts.iter().map(|part| keys::record_key(part.located.record)));
        let reads = keys.iter().zip(&parts).zip(direct).map(|((key, part), into)| Read {
            key,
            range: part.located.stored.clone(),
            into,
        });
        let bytes = parts.iter().map(|part| part.located.raw.end - part.located.raw.start).sum();
        self.options.observer.started(&self.label, bytes);
        let outcome = self.db.read(reads.collect(), &self.options.limits, &|index, stored| {
            let part =
                parts.get(index).ok_or_else(|| Error::internal("backend answers a read nobody made"))?;
            self.take(part, stored).context(|| self.describe(part.storage, &part.located))?;
            self.options.observer.advanced(part.located.raw.end - part.located.raw.start);
            Ok(())
        });
        self.options.observer.finished();
        outcome
    }

    /// Cuts a fetch into one read per chunk. A chunk that is stored raw and wanted whole is read straight to its place.
    fn plan_fetch<'a>(
        &self,
        fetch: Fetch<'a>,
        parts: &mut Vec<Part<'a>>,
        direct: &mut Vec<Option<&'a mut [u8]>>,
    ) -> Result<()> {
        let Fetch { storage, range, out } = fetch;
        let entry = self.manifest.storages.get(storage).ok_or_else(|| Error::internal("no such storage"))?;
        let mut left = out;
        for located in entry.located() {
            let start = located.raw.start.max(range.start);
            let end = located.raw.end.min(range.end);
            if start >= end {
                continue;
            }
            let split = left.split_at_mut_checked(to_usize(end - start)?);
            let (piece, rest) = split.ok_or_else(|| Error::internal("fetch is longer than its buffer"))?;
            left = rest;
            let within = to_usize(start - located.raw.start)?..to_usize(end - located.raw.start)?;
            let whole = start == located.raw.start && end == located.raw.end;
            let (into, out) = if whole && located.chunk.codec == Codec::Raw {
                (Some(piece), None)
            } else {
                (None, Some(Mutex::new(piece)))
            };
            direct.push(into);
            parts.push(Part { storage, located, out, within });
        }
        Ok(())
    }

    /// Checks what was read for a part and brings it to its place.
    fn take(&self, part: &Part<'_>, stored: Result<&[u8]>) -> Result<()> {
        let stored = stored?;
        codec::check(stored, part.located.chunk.crc32)?;
        let Some(out) = &part.out else {
            return Ok(());
        };
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        let raw_len = to_usize(part.located.raw.end - part.located.raw.start)?;
        if part.within == (0..raw_len) {
            return codec::decode_into(part.located.chunk.codec, stored, &mut out);
        }
        let raw = codec::decode(part.located.chunk.codec, stored, raw_len)?;
        let wanted = raw.get(part.within.clone()).ok_or_else(|| Error::internal("part outside its chunk"))?;
        out.copy_from_slice(wanted);
        Ok(())
    }

    /// Which bytes of which blob a chunk is, for errors.
    pub(super) fn describe(&self, storage: usize, located: &Located) -> String {
        let name = self.manifest.blobs.iter().find(|blob| blob.storage == storage);
        let name = name.map_or("", |blob| blob.name.as_str());
        format!("blob `{name}` bytes {}..{}", located.raw.start, located.raw.end)
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The budget for memory that a backend lends while it reads.
    pub(super) fn limits(&self) -> &Limits {
        &self.options.limits
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("db", &self.label).finish_non_exhaustive()
    }
}

fn make_blob(kind: &BlobKind, data: Buffer) -> Result<Blob> {
    match kind {
        BlobKind::Tensor { dtype: DType::String, shape } => {
            let tensor = Tensor::new(DType::String, shape.clone(), data);
            // The checksum held, so whoever wrote it wrote this; still it is the stored bytes that are wrong.
            tensor.map(Blob::Tensor).map_err(|error| error.with_kind(crate::ErrorKind::Corrupt))
        }
        BlobKind::Tensor { dtype, shape } => Tensor::new(*dtype, shape.clone(), data).map(Blob::Tensor),
        BlobKind::Bytes { type_name } => Ok(Blob::bytes(type_name.clone(), data)),
    }
}
