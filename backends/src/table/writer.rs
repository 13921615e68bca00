//! Writing one table.

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::blob::PAGE;
use ckpt_engine::db::Payload;

use super::{BlockBuilder, Finished, Handle, LONE_END, RAW, TableOptions, Totals, lone_header, trailer};
use crate::store::fs::FileInStagedDir;

/// Every so many keys of a data block are full, as LevelDB has it.
const FULL_KEYS_EVERY: usize = 16;

/// An index is a block, and must stay below 4 GiB.
const MAX_INDEX: usize = 1 << 30;

/// Values from this length on begin on a page: they are written from where they are, and read to where they belong. At most one in
/// 16 bytes is lost to it.
const LEAST_ALIGNED: usize = 64 << 10;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// A table on its way.
#[derive(Debug)]
pub(super) struct TableWriter<'a> {
    file: FileInStagedDir,
    options: &'a TableOptions,
    /// How long the file is.
    bytes: u64,
    /// The records that are not written yet.
    block: BlockBuilder,
    index: BlockBuilder,
    smallest: Option<Vec<u8>>,
    totals: Totals,
}

impl<'a> TableWriter<'a> {
    pub(super) fn new(file: FileInStagedDir, options: &'a TableOptions) -> Self {
        let (block, index) = (BlockBuilder::new(FULL_KEYS_EVERY), BlockBuilder::new(1));
        Self { file, options, bytes: 0, block, index, smallest: None, totals: Totals::default() }
    }

    /// Whether another one should be begun.
    pub(super) fn is_full(&self) -> bool {
        self.bytes + self.block.len() as u64 >= self.options.table_bytes || self.index.len() >= MAX_INDEX
    }

    /// Adds a record. Internal keys must ascend.
    pub(super) fn put(&mut self, key: Vec<u8>, value: &Payload) -> Result<()> {
        if self.smallest.is_none() {
            self.smallest = Some(key.clone());
        }
        self.totals.records += 1;
        self.totals.key_bytes += key.len() as u64;
        self.totals.value_bytes += value.len() as u64;
        if key.len() + value.len() >= self.options.block_bytes {
            self.write_pending()?;
            return self.write_lone(&key, value);
        }
        self.block.add(&key, value.pieces());
        if self.block.len() >= self.options.block_bytes { self.write_pending() } else { Ok(()) }
    }

    /// Writes the rest, what is about the table, the index and the footer.
    pub(super) fn finish(mut self) -> Result<Finished> {
        self.write_pending()?;
        let largest = self.index.last_key().to_vec();
        let index = self.index.finish();
        self.totals.data_bytes = self.bytes;
        self.totals.index_bytes = index.len() as u64;
        let mut names = BlockBuilder::new(1);
        for (name, block) in (self.options.family.about)(&self.totals) {
            let handle = self.write_block(vec![block.into()], RAW)?;
            names.add(name.as_bytes(), &[handle.encode().into()]);
        }
        let names = self.write_block(vec![names.finish().into()], RAW)?;
        let index = self.write_block(vec![index.into()], RAW)?;
        let footer = (self.options.family.footer)(&names, &index);
        let bytes = self.bytes + footer.len() as u64;
        self.file.append(vec![footer.into()])?;
        self.file.finish()?;
        Ok(Finished { bytes, smallest: self.smallest.unwrap_or_default(), largest })
    }

    /// Writes the records that are pending as one block.
    fn write_pending(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let key = self.block.last_key().to_vec();
        let block = self.block.finish();
        self.write_data(&key, vec![block.into()])
    }

    /// Writes a record as a block of its own, without putting it together first.
    fn write_lone(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        let header = lone_header(key, value.len());
        if value.len() >= LEAST_ALIGNED && self.options.compression.is_none() {
            self.pad(header.len())?;
        }
        let mut pieces = vec![header.into()];
        pieces.extend(value.pieces().iter().cloned());
        pieces.push(Bytes::from_static(&LONE_END));
        self.write_data(key, pieces)
    }

    /// Adds zeros, which belong to no block, until a block whose value begins after `header_len` bytes has that on a page.
    fn pad(&mut self, header_len: usize) -> Result<()> {
        let value = self.bytes + header_len as u64;
        let len = (value.next_multiple_of(PAGE as u64) - value) as usize;
        self.bytes += len as u64;
        self.file.append(vec![Bytes::from_static(&ZEROS).slice(..len)])
    }

    /// Writes a block whose last key is this one.
    fn write_data(&mut self, key: &[u8], pieces: Vec<Bytes>) -> Result<()> {
        let compressed =
            self.options.compression.and_then(|by| Some((by.kind, (by.compress)(&pieces.concat())?)));
        let handle = match compressed {
            Some((kind, compressed)) => self.write_block(vec![compressed.into()], kind)?,
            None => self.write_block(pieces, RAW)?,
        };
        self.totals.blocks += 1;
        // Any key up to that of the next block would do; LevelDB takes the shortest.
        self.index.add(key, &[Bytes::from(handle.encode())]);
        Ok(())
    }

    fn write_block(&mut self, mut pieces: Vec<Bytes>, compression: u8) -> Result<Handle> {
        let crc = pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece));
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        pieces.push(Bytes::copy_from_slice(&trailer(crc, compression)));
        let handle = Handle { offset: self.bytes, len };
        self.bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.file.append(pieces)?;
        Ok(handle)
    }
}
