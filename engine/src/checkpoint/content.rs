//! What a save writes: the blobs of a workspace, or of another checkpoint.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::Checkpoint;
use super::opened::Fetch;
use crate::blob::{Blob, Buffer, MAX_NAME_LEN, Workspace, to_usize};
use crate::error::{Error, Result};
use crate::format::manifest::{BlobEntry, BlobKind};
use crate::format::shuffle::Width;

/// Named blobs, in the order in which they are to be written, and how to get their bytes.
pub(super) struct Content<'a> {
    /// The blobs.
    pub(super) blobs: Vec<BlobEntry>,
    /// The lengths of the storages that the blobs name, in bytes.
    pub(super) storages: Vec<u64>,
    /// The memory that a read of a byte takes: that of a workspace is there already, another checkpoint's is read and decoded.
    memory_per_byte: usize,
    read: Box<ReadStorage<'a>>,
}

type ReadStorage<'a> = dyn Fn(usize, Range<usize>) -> Result<Bytes> + Sync + 'a;

impl Content<'static> {
    /// The blobs of a workspace. Those that share memory share a storage.
    pub(super) fn of_workspace(workspace: &Workspace) -> Result<Self> {
        Self::of_blobs(workspace.iter())
    }

    /// Blobs under these names.
    pub(super) fn of_blobs<'b>(named: impl Iterator<Item = (&'b str, &'b Blob)>) -> Result<Self> {
        let mut buffers: Vec<Buffer> = Vec::new();
        let mut blobs = Vec::new();
        let mut known: HashMap<(*const u8, usize), usize> = HashMap::new();
        let mut names = HashSet::new();
        for (name, blob) in named {
            check_name(name)?;
            if !names.insert(name) {
                return Err(Error::invalid(format!("two blobs would be saved under one name blob=`{name}`")));
            }
            let data = blob.data();
            let next = buffers.len();
            // All buffers are alive, so the same address and length are the same memory. Empty ones share nothing.
            let entry = known.entry((data.as_ptr(), data.len()));
            let storage = match entry {
                Entry::Occupied(entry) if !data.is_empty() => *entry.get(),
                _ => {
                    buffers.push(data.clone());
                    if let Entry::Vacant(entry) = entry {
                        entry.insert(next);
                    }
                    next
                }
            };
            blobs.push(BlobEntry { name: name.to_owned(), storage, kind: kind_of(blob) });
        }
        let storages = buffers.iter().map(|buffer| buffer.len() as u64).collect();
        let read = move |storage: usize, range: Range<usize>| {
            let buffer = buffers.get(storage).ok_or_else(|| Error::internal("blob of no buffer"))?;
            Ok(Bytes::from(buffer.slice(range)?))
        };
        Ok(Self { blobs, storages, memory_per_byte: 0, read: Box::new(read) })
    }
}

impl<'a> Content<'a> {
    /// The blobs of another checkpoint, read as they are needed.
    pub(super) fn of_checkpoint(checkpoint: &'a Checkpoint) -> Result<Self> {
        let mut blobs = Vec::new();
        let mut storages = Vec::new();
        for index in 0..checkpoint.blob_count() {
            let blob = checkpoint.described(index)?;
            if storages.len() <= blob.storage {
                storages.resize(blob.storage + 1, 0);
            }
            if let Some(bytes) = storages.get_mut(blob.storage) {
                *bytes = blob.bytes;
            }
            blobs.push(BlobEntry {
                name: blob.name.to_owned(),
                storage: blob.storage,
                kind: blob.kind.clone(),
            });
        }
        let read = move |storage: usize, range: Range<usize>| {
            let mut bytes = Buffer::zeroed(range.len())?;
            let range = range.start as u64..range.end as u64;
            checkpoint.fetch(vec![Fetch { storage, range, out: bytes.as_mut()? }])?;
            Ok(bytes.into())
        };
        Ok(Self { blobs, storages, memory_per_byte: 2, read: Box::new(read) })
    }

    /// Bytes of a storage.
    pub(super) fn read(&self, storage: usize, range: Range<usize>) -> Result<Bytes> {
        (self.read)(storage, range)
    }

    /// The memory that a record takes while it is on its way, of so many bytes of the content and so many to be put.
    pub(super) fn cost(&self, raw: usize, encoded: usize) -> usize {
        self.memory_per_byte.saturating_mul(raw).saturating_add(encoded)
    }

    /// All bytes of a blob.
    pub(super) fn read_blob(&self, blob: &BlobEntry) -> Result<Bytes> {
        self.read(blob.storage, 0..to_usize(self.bytes_of(blob))?)
    }

    /// The length of a blob.
    pub(super) fn bytes_of(&self, blob: &BlobEntry) -> u64 {
        self.storages.get(blob.storage).copied().unwrap_or_default()
    }

    /// The element width of each storage: that of the first tensor on it, `None` for opaque bytes and whatever is not worth shuffling.
    pub(super) fn widths(&self) -> Vec<Option<Width>> {
        let mut dtypes = vec![None; self.storages.len()];
        for blob in &self.blobs {
            if let (BlobKind::Tensor { dtype, .. }, Some(first @ None)) =
                (&blob.kind, dtypes.get_mut(blob.storage))
            {
                *first = Some(*dtype);
            }
        }
        dtypes.into_iter().map(|dtype| dtype.and_then(Width::of)).collect()
    }

    /// The sum of all bytes; shared ones count once.
    pub(super) fn bytes(&self) -> u64 {
        self.storages.iter().sum()
    }
}

impl fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("blobs", &self.blobs).finish_non_exhaustive()
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.len() <= MAX_NAME_LEN {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "blob name is longer than {MAX_NAME_LEN} bytes bytes=`{}` begins=`{}`",
        name.len(),
        name.chars().take(40).collect::<String>()
    )))
}

fn kind_of(blob: &Blob) -> BlobKind {
    match blob {
        Blob::Tensor(tensor) => BlobKind::Tensor { dtype: tensor.dtype(), shape: tensor.shape().to_vec() },
        Blob::Bytes { type_name, .. } => BlobKind::Bytes { type_name: type_name.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{DType, Tensor};

    #[test]
    fn shared_memory_is_stored_once() {
        let tensor = Tensor::from_slice([4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let other_shape = Tensor::new(tensor.dtype(), [2, 2], tensor.data().clone()).unwrap();
        let mut workspace = Workspace::new();
        workspace.insert("a", tensor.clone());
        workspace.insert("b", other_shape);
        workspace.insert("c", Blob::bytes("x", Buffer::zeroed(0).unwrap()));
        workspace.insert("d", Blob::bytes("x", Buffer::zeroed(0).unwrap()));
        workspace.insert("part", tensor.rows(0..2).unwrap());
        let content = Content::of_workspace(&workspace).unwrap();
        let storages: Vec<usize> = content.blobs.iter().map(|blob| blob.storage).collect();
        assert_eq!(storages, [0, 0, 1, 2, 3]);
        assert_eq!(content.storages, [16, 0, 0, 8]);
    }

    #[test]
    fn a_storage_has_the_width_of_the_first_tensor_on_it() {
        let tensor = Tensor::from_slice([2], &[1.0f32, 2.0]).unwrap();
        let mut workspace = Workspace::new();
        workspace.insert("a", Blob::bytes("x", tensor.data().clone()));
        workspace.insert("b", tensor.clone());
        workspace.insert("c", Tensor::new(DType::Bf16, [4], tensor.data().clone()).unwrap());
        workspace.insert("d", Blob::bytes("x", Buffer::zeroed(8).unwrap()));
        workspace.insert("e", Tensor::scalar(1u8));
        workspace.insert("f", Tensor::scalar(1i64));
        let content = Content::of_workspace(&workspace).unwrap();
        assert_eq!(content.widths(), [Some(Width::Four), None, None, Some(Width::Eight)]);
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        let mut workspace = Workspace::new();
        workspace.insert("x".repeat(MAX_NAME_LEN), Tensor::scalar(1u8));
        assert!(Content::of_workspace(&workspace).is_ok());
        workspace.insert("x".repeat(MAX_NAME_LEN + 1), Tensor::scalar(1u8));
        assert!(Content::of_workspace(&workspace).is_err());
    }
}
