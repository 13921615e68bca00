//! Writing sorted tables, which LevelDB and RocksDB have in common.
//!
//! A table is data blocks, blocks about the table, an index of the data blocks, and a footer that says where these are. After each
//! block is how it is compressed (1) and a checksum of both (4). Numbers are little-endian, or varints: seven bits a byte, the lowest
//! first. A record has an internal key: the user's, then eight bytes with a sequence number and what became of the key. In what the
//! two differ is a [`Family`].

mod block;
mod tables;
mod writer;

pub(crate) use block::{BlockBuilder, LONE_END, lone_header};
pub(crate) use tables::TablesWriter;

use std::fmt;

/// The name of the order that keys are in here: by their bytes.
pub(crate) const BYTEWISE: &[u8] = b"leveldb.BytewiseComparator";

/// The bytes of an internal key after the user's.
pub(crate) const TAG: usize = 8;

/// The kind of a record that sets its key.
pub(crate) const VALUE: u8 = 1;

/// The bytes after a block.
pub(crate) const TRAILER: usize = 5;

/// How a block is compressed: not at all.
pub(crate) const RAW: u8 = 0;

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
}

/// An internal key.
pub(crate) fn internal_key(user: &[u8], sequence: u64, kind: u8) -> Vec<u8> {
    [user, &(sequence << 8 | u64::from(kind)).to_le_bytes()].concat()
}

/// What comes after a block. `crc` is the checksum of its bytes.
pub(crate) fn trailer(crc: u32, compression: u8) -> [u8; TRAILER] {
    let [a, b, c, d] = mask(crc32c::crc32c_append(crc, &[compression])).to_le_bytes();
    [compression, a, b, c, d]
}

/// A checksum as it is stored: rotated and shifted, so that a checksum of data that holds checksums is still a good one.
pub(crate) fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Adds numbers as varints.
pub(crate) fn put_varints<const N: usize>(bytes: &mut Vec<u8>, numbers: [u64; N]) {
    for mut number in numbers {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
}
