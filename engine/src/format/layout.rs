//! Which chunk goes into which record: the plan of a save.
//!
//! A storage is cut into chunks of [`CHUNK_BYTES`], each a record of its own, so that a reader takes just what it needs and a
//! record can be written straight from the tensor's memory. Small storages are gathered: they share records, each still a
//! chunk of its own with its own checksum, so that a hundred thousand small blobs cost a few hundred records.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use super::codec::{self, Compression};
use super::manifest::{BlobEntry, BlobKind, Chunk, Storage};
use crate::blob::{Blob, Buffer, MAX_NAME_LEN, Workspace};
use crate::db::Payload;
use crate::error::{Error, Result};

/// The raw length of a chunk.
pub const CHUNK_BYTES: usize = 4 << 20;

/// A storage of at most this many bytes shares a record with others.
const GATHER_BELOW: usize = 64 << 10;

/// A shared record is full at this many raw bytes. It bounds what a store without ranges reads too much for a small blob.
const GATHERED_BYTES: usize = 256 << 10;

/// Within a shared record every chunk begins at a multiple of this, so that mapped elements are aligned.
const GATHERED_ALIGN: usize = 64;

/// The plan of a save.
#[derive(Debug)]
pub struct Layout {
    /// The distinct buffers.
    pub buffers: Vec<Buffer>,
    /// What each record holds, by number.
    pub records: Vec<Vec<Piece>>,
    /// The blobs, in ascending order of names.
    pub blobs: Vec<BlobEntry>,
    /// The storages as far as they are known before their chunks are encoded.
    pub storages: Vec<Storage>,
}

/// A chunk's raw bytes: a range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the buffer and of the storage.
    pub storage: usize,
    /// The range of the buffer.
    pub range: Range<usize>,
}

/// A record ready to be put.
#[derive(Debug)]
pub struct EncodedRecord {
    /// Its value.
    pub value: Payload,
    /// For each piece: where its chunk begins in the value, and how it is stored.
    pub chunks: Vec<(u64, Chunk)>,
    /// The raw bytes of all pieces.
    pub raw_bytes: u64,
}

impl Layout {
    /// Plans the save of a workspace. Buffers that several blobs share are stored once. Fails with `InvalidInput` for a name
    /// that is too long and for more than fits the format.
    pub fn plan(workspace: &Workspace) -> Result<Self> {
        let mut layout = Self {
            buffers: Vec::new(),
            records: Vec::new(),
            blobs: Vec::with_capacity(workspace.len()),
            storages: Vec::new(),
        };
        let mut gathering = Gathering::default();
        let mut known: HashMap<(*const u8, usize), usize> = HashMap::new();
        for (name, blob) in workspace.iter() {
            if name.len() > MAX_NAME_LEN {
                return Err(Error::invalid(format!(
                    "blob name is longer than {MAX_NAME_LEN} bytes bytes=`{}` begins=`{}`",
                    name.len(),
                    name.chars().take(40).collect::<String>()
                )));
            }
            let data = blob.data();
            let storage = if data.is_empty() {
                layout.add_storage(data, &mut gathering)?
            } else {
                // All buffers are alive, so the same address and length are the same memory.
                match known.entry((data.as_ptr(), data.len())) {
                    std::collections::hash_map::Entry::Occupied(entry) => *entry.get(),
                    std::collections::hash_map::Entry::Vacant(entry) => {
                        *entry.insert(layout.add_storage(data, &mut gathering)?)
                    }
                }
            };
            layout.blobs.push(BlobEntry { name: name.to_owned(), storage, kind: kind_of(blob) });
        }
        Ok(layout)
    }

    /// At most so many bytes will be put, manifest not counted.
    pub fn max_bytes(&self) -> u64 {
        let pieces = self.records.iter().flatten();
        pieces.map(|piece| (piece.range.len() + GATHERED_ALIGN) as u64).sum()
    }

    /// The raw bytes of a record.
    pub fn record_bytes(record: &[Piece]) -> usize {
        record.iter().map(|piece| piece.range.len()).sum()
    }

    /// Encodes a record.
    pub fn encode(&self, record: &[Piece], compression: Compression) -> Result<EncodedRecord> {
        let mut value = Payload::new();
        let mut chunks = Vec::with_capacity(record.len());
        for piece in record {
            let padding = value.len().next_multiple_of(GATHERED_ALIGN) - value.len();
            value.push(Bytes::from_static(&[0; GATHERED_ALIGN]).slice(..padding));
            let offset = value.len() as u64;
            let buffer =
                self.buffers.get(piece.storage).ok_or_else(|| Error::internal("piece of no buffer"))?;
            let encoded = codec::encode(Bytes::from(buffer.slice(piece.range.clone())?), compression)?;
            let stored_bytes = encoded.bytes.len() as u64;
            chunks.push((offset, Chunk { crc32: encoded.crc32, codec: encoded.codec, stored_bytes }));
            value.push(encoded.bytes);
        }
        Ok(EncodedRecord { value, chunks, raw_bytes: Self::record_bytes(record) as u64 })
    }

    /// Notes in `storages` (a copy of the plan's) how the chunks of a record came out. Records must come in order.
    pub fn record_done(&self, storages: &mut [Storage], record: usize, chunks: &[(u64, Chunk)]) {
        let pieces = self.records.get(record).into_iter().flatten();
        for (piece, &(offset, chunk)) in pieces.zip(chunks) {
            if let Some(storage) = storages.get_mut(piece.storage) {
                if storage.chunks.is_empty() {
                    storage.offset = offset;
                }
                storage.chunks.push(chunk);
            }
        }
    }

    fn add_storage(&mut self, data: &Buffer, gathering: &mut Gathering) -> Result<usize> {
        let storage = self.storages.len();
        let first_record = if data.is_empty() {
            0
        } else if data.len() <= GATHER_BELOW {
            let piece = Piece { storage, range: 0..data.len() };
            gathering.add(&mut self.records, piece)
        } else {
            let first = self.records.len();
            let starts = (0..data.len()).step_by(CHUNK_BYTES);
            let range = |start: usize| start..data.len().min(start + CHUNK_BYTES);
            self.records.extend(starts.map(|start| vec![Piece { storage, range: range(start) }]));
            first
        };
        let too_many = || Error::invalid("checkpoint is too large: more than 4,294,967,295 records or blobs");
        u32::try_from(self.records.len()).map_err(|_| too_many())?;
        u32::try_from(storage).map_err(|_| too_many())?;
        self.buffers.push(data.clone());
        self.storages.push(Storage {
            bytes: data.len() as u64,
            chunk_bytes: CHUNK_BYTES as u64,
            first_record: u32::try_from(first_record).map_err(|_| too_many())?,
            chunks_per_record: 1,
            ..Storage::default()
        });
        Ok(storage)
    }
}

/// The shared record that is being filled.
#[derive(Default)]
struct Gathering {
    open: Option<(usize, usize)>,
}

impl Gathering {
    /// Adds a piece to the open record, or to a new one, and returns the record's number.
    fn add(&mut self, records: &mut Vec<Vec<Piece>>, piece: Piece) -> usize {
        let bytes = piece.range.len();
        if let Some((number, filled)) = &mut self.open
            && *filled + bytes <= GATHERED_BYTES
            && let Some(record) = records.get_mut(*number)
        {
            *filled += bytes;
            record.push(piece);
            return *number;
        }
        let number = records.len();
        records.push(vec![piece]);
        self.open = Some((number, bytes));
        number
    }
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
    use crate::blob::Tensor;

    fn zeros(len: usize) -> Blob {
        Blob::bytes("zeros", Buffer::zeroed(len).unwrap())
    }

    #[test]
    fn large_ones_are_cut_and_small_ones_gathered() {
        let mut workspace = Workspace::new();
        workspace.insert("a", zeros(10));
        workspace.insert("b", zeros(CHUNK_BYTES * 2 + 1));
        workspace.insert("c", zeros(20));
        workspace.insert("d", zeros(0));
        let layout = Layout::plan(&workspace).unwrap();
        let lens: Vec<Vec<usize>> = layout
            .records
            .iter()
            .map(|record| record.iter().map(|piece| piece.range.len()).collect())
            .collect();
        assert_eq!(lens, [vec![10, 20], vec![CHUNK_BYTES], vec![CHUNK_BYTES], vec![1]]);
        let firsts: Vec<u32> = layout.storages.iter().map(|storage| storage.first_record).collect();
        assert_eq!(firsts, [0, 1, 0, 0]);
    }

    #[test]
    fn gathered_records_stay_small() {
        let workspace = (0..1000).map(|index| (format!("{index:04}"), zeros(10_000))).collect();
        let layout = Layout::plan(&workspace).unwrap();
        assert_eq!(layout.records.len(), 1000_usize.div_ceil(GATHERED_BYTES / 10_000));
        assert!(layout.records.iter().all(|record| Layout::record_bytes(record) <= GATHERED_BYTES));
    }

    #[test]
    fn shared_memory_is_stored_once() {
        let tensor = Tensor::from_slice([4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let other_shape = Tensor::new(tensor.dtype(), [2, 2], tensor.data().clone()).unwrap();
        let mut workspace = Workspace::new();
        workspace.insert("a", tensor.clone());
        workspace.insert("b", other_shape);
        workspace.insert("part", tensor.rows(0..2).unwrap());
        let layout = Layout::plan(&workspace).unwrap();
        let storages: Vec<usize> = layout.blobs.iter().map(|blob| blob.storage).collect();
        assert_eq!(storages, [0, 0, 1]);
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        let mut workspace = Workspace::new();
        workspace.insert("x".repeat(MAX_NAME_LEN), zeros(1));
        assert!(Layout::plan(&workspace).is_ok());
        workspace.insert("x".repeat(MAX_NAME_LEN + 1), zeros(1));
        assert!(Layout::plan(&workspace).is_err());
    }
}
