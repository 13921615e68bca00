//! Which chunk goes into which record: the plan of a save.
//!
//! A storage is cut into chunks of [`CHUNK_BYTES`], each a record of its own, so that a reader takes just what it needs and a
//! record can be written straight from the tensor's memory. Small storages are gathered: they share records, each still a
//! chunk of its own with its own checksum, so that a hundred thousand small blobs cost a few hundred records.

use std::ops::Range;

use bytes::Bytes;

use super::codec;
use super::manifest::{Chunk, Storage};
use super::shuffle::Width;
use crate::blob::to_usize;
use crate::db::Payload;
use crate::error::{Error, Result};

/// The raw length of a chunk.
pub const CHUNK_BYTES: usize = 4 << 20;

/// Where only single records can be mapped, a storage of at most this many raw bytes is one chunk. It bounds what a reader of a few
/// rows reads too much, and what a copy to another store has in memory at once.
pub const WHOLE_BYTES: usize = 64 << 20;

/// A storage of at most this many bytes shares a record with others.
const GATHER_BELOW: usize = 64 << 10;

/// A shared record is full at this many raw bytes. It bounds what a store without ranges reads too much for a small blob.
const GATHERED_BYTES: usize = 256 << 10;

/// Within a shared record every chunk begins at a multiple of this, so that mapped elements are aligned.
const GATHERED_ALIGN: usize = 64;

/// The plan of a save.
#[derive(Debug)]
pub struct Layout {
    /// What each record holds, by number.
    pub records: Vec<Vec<Piece>>,
    /// The storages as far as they are known before their chunks are encoded.
    pub storages: Vec<Storage>,
}

/// A chunk's raw bytes: a range of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the storage.
    pub storage: usize,
    /// Which bytes of it.
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
    /// Plans the save of storages of these lengths; one of up to `whole` bytes (at least [`CHUNK_BYTES`], at most
    /// [`MAX_CHUNK_BYTES`](super::manifest::MAX_CHUNK_BYTES)) is one chunk. Fails with `InvalidInput` for more than fits the format.
    pub fn plan(lens: &[u64], whole: usize) -> Result<Self> {
        let mut layout = Self { records: Vec::new(), storages: Vec::with_capacity(lens.len()) };
        let mut gathering = Gathering::default();
        for &len in lens {
            layout.add_storage(to_usize(len)?, whole, &mut gathering)?;
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

    /// Encodes a record with zstd of this level, if one is given. `widths` has the element width of each storage, `raw` gives the raw bytes.
    pub fn encode(
        record: &[Piece],
        level: Option<i32>,
        widths: &[Option<Width>],
        raw: impl Fn(&Piece) -> Result<Bytes>,
    ) -> Result<EncodedRecord> {
        let mut value = Payload::new();
        let mut chunks = Vec::with_capacity(record.len());
        for piece in record {
            let padding = value.len().next_multiple_of(GATHERED_ALIGN) - value.len();
            value.push(Bytes::from_static(&[0; GATHERED_ALIGN]).slice(..padding));
            let offset = value.len() as u64;
            let width = widths.get(piece.storage).copied().flatten();
            let encoded = codec::encode(raw(piece)?, width, level)?;
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

    fn add_storage(&mut self, len: usize, whole: usize, gathering: &mut Gathering) -> Result<()> {
        let storage = self.storages.len();
        let chunk = if len <= whole { len.max(CHUNK_BYTES) } else { CHUNK_BYTES };
        let first_record = if len == 0 {
            0
        } else if len <= GATHER_BELOW {
            let piece = Piece { storage, range: 0..len };
            gathering.add(&mut self.records, piece)
        } else {
            let first = self.records.len();
            let starts = (0..len).step_by(chunk);
            let range = |start: usize| start..len.min(start + chunk);
            self.records.extend(starts.map(|start| vec![Piece { storage, range: range(start) }]));
            first
        };
        let too_many = || Error::invalid("checkpoint is too large: more than 4,294,967,295 records or blobs");
        u32::try_from(self.records.len()).map_err(|_| too_many())?;
        u32::try_from(storage).map_err(|_| too_many())?;
        self.storages.push(Storage {
            bytes: len as u64,
            chunk_bytes: chunk as u64,
            first_record: u32::try_from(first_record).map_err(|_| too_many())?,
            chunks_per_record: 1,
            ..Storage::default()
        });
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ones_are_cut_and_small_ones_gathered() {
        let layout = Layout::plan(&[10, CHUNK_BYTES as u64 * 2 + 1, 20, 0], CHUNK_BYTES).unwrap();
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
    fn one_that_may_be_whole_is_one_chunk() {
        let (small, large) = (CHUNK_BYTES as u64 * 2, CHUNK_BYTES as u64 * 2 + 1);
        let layout = Layout::plan(&[10, small, large], CHUNK_BYTES * 2).unwrap();
        let lens: Vec<usize> = layout.records.iter().map(|record| Layout::record_bytes(record)).collect();
        assert_eq!(lens, [10, CHUNK_BYTES * 2, CHUNK_BYTES, CHUNK_BYTES, 1]);
        let chunks: Vec<u64> = layout.storages.iter().map(|storage| storage.chunk_bytes).collect();
        assert_eq!(chunks, [CHUNK_BYTES as u64, small, CHUNK_BYTES as u64]);
    }

    #[test]
    fn gathered_records_stay_small() {
        let layout = Layout::plan(&[10_000; 1000], CHUNK_BYTES).unwrap();
        assert_eq!(layout.records.len(), 1000_usize.div_ceil(GATHERED_BYTES / 10_000));
        assert!(layout.records.iter().all(|record| Layout::record_bytes(record) <= GATHERED_BYTES));
    }
}
