//! Writing one table.

use std::io::IoSlice;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::Payload;

use super::config::{Compression, Config};
use super::format::block::{BlockBuilder, LONE_END, lone_header};
use super::format::table::{Handle, compress, encode_footer, trailer};
use crate::store::fs::FileInStagedDir;

/// Every so many keys of a data block are full, as LevelDB has it.
const FULL_KEYS_EVERY: usize = 16;

/// An index is a block, and must stay below 4 GiB.
const MAX_INDEX: usize = 1 << 30;

/// A table on its way.
#[derive(Debug)]
pub(super) struct TableWriter<'a> {
    file: FileInStagedDir,
    config: &'a Config,
    /// How long the file is.
    bytes: u64,
    /// The records that are not written yet.
    block: BlockBuilder,
    index: BlockBuilder,
    smallest: Option<Vec<u8>>,
}

/// A table that was written.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) bytes: u64,
    /// The internal keys of its first and last record.
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
}

impl<'a> TableWriter<'a> {
    pub(super) fn new(file: FileInStagedDir, config: &'a Config) -> Self {
        let (block, index) = (BlockBuilder::new(FULL_KEYS_EVERY), BlockBuilder::new(1));
        Self { file, config, bytes: 0, block, index, smallest: None }
    }

    /// Whether another one should be begun.
    pub(super) fn is_full(&self) -> bool {
        self.bytes + self.block.len() as u64 >= self.config.table_bytes || self.index.len() >= MAX_INDEX
    }

    /// Adds a record. Internal keys must ascend.
    pub(super) fn put(&mut self, key: Vec<u8>, value: &Payload) -> Result<()> {
        if self.smallest.is_none() {
            self.smallest = Some(key.clone());
        }
        if key.len() + value.len() >= self.config.block_bytes {
            self.write_pending()?;
            return self.write_lone(&key, value);
        }
        self.block.add(&key, value.pieces());
        if self.block.len() >= self.config.block_bytes { self.write_pending() } else { Ok(()) }
    }

    /// Writes the rest, the index and the footer.
    pub(super) fn finish(mut self) -> Result<Finished> {
        self.write_pending()?;
        let names = self.write_block(&[&BlockBuilder::new(1).finish()], false)?;
        let largest = self.index.last_key().to_vec();
        let index = self.index.finish();
        let index = self.write_block(&[&index], false)?;
        let footer = encode_footer(&names, &index);
        self.file.write(&mut [IoSlice::new(&footer)])?;
        let bytes = self.bytes + footer.len() as u64;
        Ok(Finished { bytes, smallest: self.smallest.unwrap_or_default(), largest })
    }

    /// Writes the records that are pending as one block.
    fn write_pending(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let key = self.block.last_key().to_vec();
        let block = self.block.finish();
        self.write_data(&key, &[&block])
    }

    /// Writes a record as a block of its own, without putting it together first.
    fn write_lone(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        let header = lone_header(key, value.len());
        let pieces = value.pieces().iter().map(|piece| &piece[..]);
        let pieces: Vec<&[u8]> = std::iter::once(&header[..]).chain(pieces).chain([&LONE_END[..]]).collect();
        self.write_data(key, &pieces)
    }

    /// Writes a block whose last key is this one.
    fn write_data(&mut self, key: &[u8], pieces: &[&[u8]]) -> Result<()> {
        let compressed = match self.config.compression {
            Compression::None => None,
            Compression::Snappy => compress(&pieces.concat()),
        };
        let handle = match compressed {
            Some(compressed) => self.write_block(&[&compressed], true)?,
            None => self.write_block(pieces, false)?,
        };
        // Any key up to that of the next block would do; LevelDB takes the shortest.
        self.index.add(key, &[Bytes::from(handle.encode())]);
        Ok(())
    }

    fn write_block(&mut self, pieces: &[&[u8]], is_compressed: bool) -> Result<Handle> {
        let crc = pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece));
        let trailer = trailer(crc, is_compressed);
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        slices.push(IoSlice::new(&trailer));
        self.file.write(&mut slices)?;
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        let handle = Handle { offset: self.bytes, len };
        self.bytes += len + trailer.len() as u64;
        Ok(handle)
    }
}
