//! One open checkpoint: what it holds, and loading from it, whatever its layout.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::caffe2::{self, Caffe2};
use super::native::Native;
use super::opened::{About, BlobInfo, Fetch, Opened};
use super::{Loading, Options, VerifyReport};
use crate::blob::{Blob, Buffer, DType, PAGE, Selection, Tensor, Workspace, byte_len, rows_shape, to_usize};
use crate::db::{Db, Layout, Source};
use crate::error::{Error, Result, ResultExt};
use crate::format::keys;
use crate::format::manifest::{BlobKind, DbId, Manifest};
use crate::observer::{Observer, Silent};

/// An open checkpoint: a db whose index was read and checked.
pub struct Checkpoint {
    opened: Opened,
    contents: Contents,
    about: About,
}

#[derive(Debug)]
enum Contents {
    Native(Native),
    Caffe2(Caffe2),
}

impl Checkpoint {
    /// Reads and checks the manifest, or what Caffe2 has in its place.
    pub(super) fn from_db(db: Arc<dyn Db>, source: Source, label: String, options: Options) -> Result<Self> {
        let opened = Opened { db, source, label, options };
        // A blob of Caffe2 may have the manifest's key; it does not begin as a manifest does.
        let record = opened.db.get(keys::MANIFEST)?.filter(|record| Manifest::is_one(record));
        let (contents, about) = match record {
            Some(record) => {
                let (native, about) = Native::open(&record)?;
                (Contents::Native(native), about)
            }
            None => {
                let (caffe2, about) = Caffe2::open(&opened)?;
                (Contents::Caffe2(caffe2), about)
            }
        };
        Ok(Self { opened, contents, about })
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The manifest, which a checkpoint in the native layout has.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.contents {
            Contents::Native(native) => Some(native.manifest()),
            Contents::Caffe2(_) => None,
        }
    }

    /// The id of its save.
    pub fn id(&self) -> &DbId {
        &self.about.id
    }

    /// The db below.
    pub fn db(&self) -> &Arc<dyn Db> {
        &self.opened.db
    }

    /// Where it is.
    pub fn source(&self) -> &Source {
        &self.opened.source
    }

    /// Its name for people.
    pub fn label(&self) -> &str {
        &self.opened.label
    }

    /// How many blobs it has.
    pub fn blob_count(&self) -> usize {
        match &self.contents {
            Contents::Native(native) => native.manifest().blobs.len(),
            Contents::Caffe2(caffe2) => caffe2.blobs().len(),
        }
    }

    /// The sum of all blobs' bytes; what several blobs share counts once.
    pub fn bytes(&self) -> u64 {
        match &self.contents {
            Contents::Native(native) => native.manifest().bytes(),
            Contents::Caffe2(caffe2) => caffe2.bytes(),
        }
    }

    /// What all chunks take in the store.
    pub fn stored_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Native(native) => native.manifest().stored_bytes(),
            Contents::Caffe2(caffe2) => caffe2.blobs().iter().map(|blob| blob.stored_bytes).sum(),
        }
    }

    /// The blobs in the order of their names. Fails with `Corrupt` if the headers of one are damaged, which only the caffe2 layout
    /// finds out by itself: the others can still be loaded by their names.
    pub fn blobs(&self) -> Result<Vec<BlobInfo<'_>>> {
        (0..self.blob_count()).map(|index| self.described(index)).collect()
    }

    /// The names of the blobs, in order.
    pub fn names(&self) -> Vec<&str> {
        match &self.contents {
            Contents::Native(native) => {
                native.manifest().blobs.iter().map(|blob| blob.name.as_str()).collect()
            }
            Contents::Caffe2(caffe2) => caffe2.blobs().iter().map(|blob| blob.name.as_str()).collect(),
        }
    }

    /// A blob by its place in the order of names.
    pub(super) fn described(&self, index: usize) -> Result<BlobInfo<'_>> {
        match &self.contents {
            Contents::Native(native) => native.described(index),
            Contents::Caffe2(caffe2) => caffe2.described(index),
        }
    }

    /// A blob by its name.
    pub fn blob(&self, name: &str) -> Result<BlobInfo<'_>> {
        let found = match &self.contents {
            Contents::Native(native) => {
                native.manifest().blobs.binary_search_by(|blob| blob.name.as_str().cmp(name))
            }
            Contents::Caffe2(caffe2) => caffe2.blobs().binary_search_by(|blob| blob.name.as_str().cmp(name)),
        };
        self.described(found.map_err(|_| crate::blob::no_such_blob(name))?)
    }

    /// Loads the chosen blobs. Reads only their chunks; those that share bytes come back sharing them.
    ///
    /// All or nothing: a chunk that is damaged is an error that names db, blob and bytes.
    pub fn load(&self, blobs: &Selection) -> Result<Workspace> {
        self.load_selected(blobs).context(|| format!("cannot load from db `{}`", self.label()))
    }

    /// Loads rows `rows` of the first dimension of a tensor, reading only the chunks that hold them (of a string tensor: all).
    pub fn load_rows(&self, name: &str, rows: Range<u64>) -> Result<Tensor> {
        self.load_rows_of(name, rows).context(|| format!("cannot load from db `{}`", self.label()))
    }

    fn load_selected(&self, blobs: &Selection) -> Result<Workspace> {
        let wanted = blobs.resolve(&self.names())?;
        let wanted = wanted.into_iter().map(|index| self.described(index)).collect::<Result<Vec<_>>>()?;
        let mut buffers: BTreeMap<usize, Buffer> = BTreeMap::new();
        let mapped = self.map_storages(wanted.iter().map(|blob| blob.storage))?;
        let mut arenas: Vec<Arena> = Vec::new();
        for blob in &wanted {
            if let Some(bytes) = mapped.get(&blob.storage) {
                buffers.insert(blob.storage, bytes.clone().into());
            } else if let std::collections::btree_map::Entry::Vacant(entry) = buffers.entry(blob.storage) {
                // Takes its place below.
                entry.insert(Buffer::zeroed(0)?);
                Arena::add(&mut arenas, blob.storage, to_usize(blob.bytes)?);
            }
        }
        let mut memory = arenas.iter().map(|arena| Buffer::zeroed(arena.len)).collect::<Result<Vec<_>>>()?;
        let mut fetches = Vec::new();
        for (arena, memory) in arenas.iter().zip(&mut memory) {
            arena.fetches(memory.as_mut()?, &mut fetches)?;
        }
        self.fetch_observed(fetches)?;
        for (arena, memory) in arenas.iter().zip(memory) {
            for (storage, range) in &arena.parts {
                buffers.insert(*storage, memory.slice(range.clone())?);
            }
        }
        let blob = |info: &BlobInfo<'_>| {
            let data = buffers.get(&info.storage).cloned().ok_or_else(|| Error::internal("no buffer"))?;
            let blob = make_blob(info.kind, data).context(|| format!("blob `{}`", info.name))?;
            Ok((info.name.to_owned(), blob))
        };
        wanted.iter().map(blob).collect()
    }

    /// The bytes of those storages that can be mapped and shall be.
    fn map_storages(&self, storages: impl Iterator<Item = usize>) -> Result<BTreeMap<usize, Bytes>> {
        match (&self.contents, self.opened.options.loading) {
            (Contents::Native(native), loading @ (Loading::Mapped | Loading::MappedUnchecked)) => {
                native.map(&self.opened, storages.collect(), loading == Loading::Mapped)
            }
            // Caffe2's tensors lie in messages, where nothing is aligned.
            _ => Ok(BTreeMap::new()),
        }
    }

    fn load_rows_of(&self, name: &str, rows: Range<u64>) -> Result<Tensor> {
        let info = self.blob(name)?;
        let (dtype, shape) = match info.kind {
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
        // Within the storage, whose length was compared with the shape on opening.
        let range = rows.start * row..rows.end * row;
        let mut data = Buffer::zeroed(to_usize(range.end - range.start)?)?;
        self.fetch_observed(vec![Fetch { storage: info.storage, range, out: data.as_mut()? }])?;
        Tensor::new(dtype, of_rows, data)
    }

    /// [`fetch`](Self::fetch) with progress.
    fn fetch_observed(&self, fetches: Vec<Fetch<'_>>) -> Result<()> {
        let observer = self.opened.options.observer.clone();
        observer.started(self.label(), fetches.iter().map(|fetch| fetch.range.end - fetch.range.start).sum());
        let outcome = self.fetch_with(fetches, &*observer);
        observer.finished();
        outcome
    }

    /// Reads ranges of storages, checking what can be checked in the same read.
    pub(super) fn fetch(&self, fetches: Vec<Fetch<'_>>) -> Result<()> {
        self.fetch_with(fetches, &Silent)
    }

    fn fetch_with(&self, fetches: Vec<Fetch<'_>>, observer: &dyn Observer) -> Result<()> {
        match &self.contents {
            Contents::Native(native) => native.fetch(&self.opened, fetches, observer),
            Contents::Caffe2(caffe2) => caffe2.fetch(&self.opened, fetches, observer),
        }
    }

    /// CRC-32 over all records of a db in the caffe2 layout, which keeps no checksums: reads all of it. `None` for the native layout.
    ///
    /// Of every record, in ascending order of keys: the lengths of key and value (`u64`, little-endian), key, value. An epoch record
    /// keeps it, and [`Checkpoints::verify`](super::Checkpoints::verify) compares it.
    pub fn records_crc32(&self) -> Result<Option<u32>> {
        match self.about.layout {
            Layout::Native => Ok(None),
            Layout::Caffe2 => caffe2::records_crc32(&*self.opened.db).map(Some),
        }
    }

    /// Reads and checks everything.
    pub(super) fn verify(&self) -> Result<VerifyReport> {
        match &self.contents {
            Contents::Native(native) => native.verify(self, &self.opened),
            Contents::Caffe2(caffe2) => caffe2::verify(caffe2, &self.opened),
        }
    }

    pub(super) fn native(&self) -> Option<(&Native, &Opened)> {
        match &self.contents {
            Contents::Native(native) => Some((native, &self.opened)),
            Contents::Caffe2(_) => None,
        }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("db", &self.label()).finish_non_exhaustive()
    }
}

/// Memory that small storages of one load share: the system hands out a large piece faster than many small ones. A blob that is changed
/// later gets memory of its own.
#[derive(Default)]
struct Arena {
    parts: Vec<(usize, Range<usize>)>,
    len: usize,
}

impl Arena {
    /// As long as a large page. It bounds what one blob that is kept keeps of others.
    const LEN: usize = 2 << 20;
    /// A longer one is by itself.
    const SMALL: usize = 256 << 10;

    /// Gives a storage its place: in the last arena or in a new one.
    fn add(arenas: &mut Vec<Self>, storage: usize, len: usize) {
        let fits = |arena: &&mut Self| len <= Self::SMALL && arena.len + len <= Self::LEN;
        let arena = match arenas.last_mut().filter(fits) {
            Some(arena) => arena,
            None => {
                arenas.push(Self::default());
                let Some(arena) = arenas.last_mut() else { return };
                arena
            }
        };
        let start = arena.len.next_multiple_of(if len < PAGE { 64 } else { PAGE });
        arena.len = start + len;
        arena.parts.push((storage, start..arena.len));
    }

    /// What is to be read into its memory.
    fn fetches<'m>(&self, mut memory: &'m mut [u8], fetches: &mut Vec<Fetch<'m>>) -> Result<()> {
        let mut end = 0;
        for (storage, range) in &self.parts {
            let split = memory.split_at_mut_checked(range.start - end);
            let split = split.and_then(|(_, rest)| rest.split_at_mut_checked(range.len()));
            let (out, rest) = split.ok_or_else(|| Error::internal("place outside its memory"))?;
            fetches.push(Fetch { storage: *storage, range: 0..out.len() as u64, out });
            (memory, end) = (rest, range.end);
        }
        Ok(())
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
