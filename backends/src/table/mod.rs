//! Sorted tables, which LevelDB and RocksDB have in common. Nothing that is read is trusted.
//!
//! A table is data blocks, blocks about the table, an index of the data blocks, and a footer that says where these are. After each
//! block is how it is compressed (1) and a checksum of both (4). Numbers are little-endian, or varints: seven bits a byte, the lowest
//! first. A record has an internal key: the user's, then eight bytes with a sequence number and what became of the key. In what the
//! two differ is a [`Family`].

mod block;
mod builder;
mod encoding;
mod index;
mod stored;
mod tables;
mod writer;

pub(crate) use block::{Block, Walk};
#[cfg(feature = "rocksdb")]
pub(crate) use builder::lone_value_len;
pub(crate) use builder::{BlockBuilder, LONE_END, lone_header};
#[cfg(any(test, feature = "leveldb"))]
pub(crate) use encoding::key_order;
pub(crate) use encoding::{Input, internal_key, mask, put_varints, split_key, trailer};
pub(crate) use index::Index;
#[cfg(feature = "rocksdb")]
pub(crate) use stored::check;
pub(crate) use stored::unseal;
pub(crate) use tables::TablesWriter;

use std::fmt;

/// The name of the order that keys are in here: by their bytes.
pub(crate) const BYTEWISE: &[u8] = b"leveldb.BytewiseComparator";

/// The bytes of an internal key after the user's.
pub(crate) const TAG: usize = 8;

/// The kind of a record that sets its key.
pub(crate) const VALUE: u8 = 1;

/// The kind of a record that deletes its key.
#[cfg(any(test, feature = "leveldb"))]
pub(crate) const DELETION: u8 = 0;

/// The bytes after a block.
pub(crate) const TRAILER: usize = 5;

/// How a block is compressed: not at all.
pub(crate) const RAW: u8 = 0;

/// No block is longer: what is in it is found by 32 bits.
const MAX_BLOCK: u64 = u32::MAX as u64;

/// What a kind of database wants of its tables.
#[derive(Debug)]
pub(crate) struct Family {
    /// What people call it.
    pub(crate) name: &'static str,
    pub(crate) max_key_len: usize,
    pub(crate) max_value_len: u64,
    /// Whether records are counted in their keys; if not, all have the sequence number 0.
    pub(crate) is_sequenced: bool,
    /// The name of the table of this number, counted from 0, within the directory.
    pub(crate) table_name: fn(usize) -> String,
    /// Blocks about the table, with their names, in the order of these.
    pub(crate) about: fn(&Totals) -> Vec<(&'static str, Vec<u8>)>,
    /// The end of the table: where the block of the names and the index are.
    pub(crate) footer: fn(&Handle, &Handle) -> Vec<u8>,
}

/// How tables are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableOptions {
    pub(crate) family: &'static Family,
    /// A block is closed at this size.
    pub(crate) block_bytes: usize,
    /// A new table is begun at this size.
    pub(crate) table_bytes: u64,
    pub(crate) compression: Option<Compressor>,
}

/// A way to compress blocks.
#[derive(Clone, Copy)]
pub(crate) struct Compressor {
    /// As it is stored after a block.
    pub(crate) kind: u8,
    /// `None` if it is not worth it.
    pub(crate) compress: fn(&[u8]) -> Option<Vec<u8>>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What is in a table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) records: u64,
    /// Of internal keys.
    pub(crate) key_bytes: u64,
    pub(crate) value_bytes: u64,
    pub(crate) blocks: u64,
    /// Where the data blocks end.
    pub(crate) data_bytes: u64,
    pub(crate) index_bytes: u64,
}

/// A table that was written.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) bytes: u64,
    /// The internal keys of its first and last record.
    pub(crate) smallest: Vec<u8>,
    pub(crate) largest: Vec<u8>,
}

/// Where a block is, without what comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Handle {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_varints(&mut bytes, [self.offset, self.len]);
        bytes
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Self> {
        Some(Self { offset: input.varint()?, len: input.varint()? })
    }

    /// Where what comes after the block ends. `None` if there cannot be such a block.
    pub(crate) fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)?.checked_add(TRAILER as u64).filter(|_| self.len <= MAX_BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_that_cannot_be_have_no_end() {
        for (offset, len) in [(u64::MAX, 1), (u64::MAX - 5, 1), (0, u64::MAX), (0, 1 << 32)] {
            assert_eq!(Handle { offset, len }.end(), None);
        }
        assert_eq!(Handle { offset: 1 << 40, len: 3 }.end(), Some((1 << 40) + 8));
    }
}
