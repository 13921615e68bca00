//! The bytes of a pack, version 1. Pure: nothing here reads or writes a store.
//!
//! All numbers are little-endian. "Zeros" are written as zeros; a reader does not look at padding.
//!
//! ```text
//! 0            header     4096 bytes: magic `CKPTPACK`, u32 version = 1, zeros
//! 4096         values     each value as it was put, in ascending order of keys. One of 4096 bytes or more begins at the next
//!                         multiple of 4096, a smaller one at the next multiple of 64; zeros between them
//! I            index      begins at the next multiple of 64; one entry per record, in ascending order of keys, no gaps:
//!                           u16  length of the key, at least 1
//!                           key
//!                           u64  offset of the value, from the start of the pack
//!                           u64  length of the value
//! L - 64       footer     64 bytes:
//!                            0  magic `CKPTFOOT`
//!                            8  u32  version = 1
//!                           12  u32  CRC-32 of the index
//!                           16  u64  I, the offset of the index
//!                           24  u64  length of the index
//!                           32  u64  number of records
//!                           40  u64  L, the length of the pack
//!                           48  12 zeros
//!                           60  u32  CRC-32 of the footer's first 60 bytes
//! ```
//!
//! CRC-32 is that of zlib (IEEE 802.3). The values are not covered by it: their checksums are in the manifest, whose record
//! holds its own. The index follows the last value directly (but for padding) and the footer follows the index directly, so
//! that the end of the pack holds the manifest, the index and the footer.
//!
//! The alignment lets a value be written and read by direct I/O, and mapped with its elements aligned.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::{Error, Result};

/// The length of the header and the alignment of large values.
pub(super) const BLOCK: u64 = 4096;

/// The alignment of small values and of the index.
const LINE: u64 = 64;

/// The length of the footer.
pub(super) const FOOTER_LEN: usize = 64;

/// The longest key.
pub(super) const MAX_KEY_LEN: usize = u16::MAX as usize;

const VERSION: u32 = 1;
const HEADER_MAGIC: &[u8; 8] = b"CKPTPACK";
const FOOTER_MAGIC: &[u8; 8] = b"CKPTFOOT";
const FOOTER_CHECKED: usize = FOOTER_LEN - 4;
/// An entry of the index without its key.
const ENTRY_FIXED: u64 = 2 + 8 + 8;

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The first block of a pack.
pub(super) fn encode_header() -> Bytes {
    let mut header = Vec::with_capacity(ZEROS.len());
    header.extend_from_slice(HEADER_MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.resize(ZEROS.len(), 0);
    header.into()
}

/// The zeros between `end`, where the last value ended, and a value of `len` bytes.
pub(super) fn padding_before_value(end: u64, len: u64) -> Bytes {
    padding(end, if len < BLOCK { LINE } else { BLOCK })
}

/// The zeros between the last value and the index.
pub(super) fn padding_before_index(end: u64) -> Bytes {
    padding(end, LINE)
}

fn padding(end: u64, alignment: u64) -> Bytes {
    let len = end.wrapping_neg() % alignment;
    Bytes::from_static(ZEROS.get(..len as usize).unwrap_or(&ZEROS))
}

/// An upper bound for the length of a pack of so many records with keys of up to `key_len` bytes and so many bytes of values.
pub(super) fn max_len(records: u64, key_len: u64, value_bytes: u64) -> u64 {
    let overhead = records.saturating_mul(BLOCK + ENTRY_FIXED + key_len);
    value_bytes.saturating_add(overhead).saturating_add(BLOCK + LINE + FOOTER_LEN as u64)
}

/// The index while a pack is written.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    bytes: Vec<u8>,
    records: u64,
}

impl IndexBuilder {
    /// Adds a record. The caller keeps the order.
    pub(super) fn push(&mut self, key: &[u8], offset: u64, len: u64) -> Result<()> {
        let key_len = u16::try_from(key.len()).map_err(|_| {
            Error::invalid(format!("key is longer than {MAX_KEY_LEN} bytes length=`{}`", key.len()))
        })?;
        self.bytes.extend_from_slice(&key_len.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(&offset.to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.records += 1;
        Ok(())
    }

    /// The index that begins at `offset`, and the footer that follows it.
    pub(super) fn finish(self, offset: u64) -> (Bytes, Bytes) {
        let index_len = self.bytes.len() as u64;
        let footer = Footer {
            index_crc32: crc32fast::hash(&self.bytes),
            index: offset..offset + index_len,
            records: self.records,
        };
        (self.bytes.into(), footer.encode())
    }
}

/// What the end of a pack says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// Where the index is.
    pub(super) index: Range<u64>,
    index_crc32: u32,
    records: u64,
}

impl Footer {
    fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(FOOTER_LEN);
        bytes.extend_from_slice(FOOTER_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.index_crc32.to_le_bytes());
        bytes.extend_from_slice(&self.index.start.to_le_bytes());
        bytes.extend_from_slice(&(self.index.end - self.index.start).to_le_bytes());
        bytes.extend_from_slice(&self.records.to_le_bytes());
        bytes.extend_from_slice(&(self.index.end + FOOTER_LEN as u64).to_le_bytes());
        bytes.resize(FOOTER_CHECKED, 0);
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes.into()
    }

    /// Decodes the footer at the end of `tail`, the last bytes of a pack of `len` bytes. What it says of ranges and counts is
    /// within that length.
    pub(super) fn decode(tail: &[u8], len: u64) -> Result<Self> {
        if len == 0 {
            return Err(Error::corrupt("pack is empty"));
        }
        let too_short =
            || Error::corrupt(format!("pack is shorter than a header and a footer length=`{len}`"));
        if len < BLOCK + FOOTER_LEN as u64 {
            return Err(too_short());
        }
        let (_, footer) = tail.split_last_chunk::<FOOTER_LEN>().ok_or_else(too_short)?;
        let mut fields = Fields(footer);
        if fields.take(FOOTER_MAGIC.len())? != FOOTER_MAGIC {
            return Err(Error::corrupt("pack does not end in a footer: it is cut short or no pack"));
        }
        let version = fields.u32()?;
        let index_crc32 = fields.u32()?;
        let (offset, index_len, records, pack_len) =
            (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let (checked, crc32) = footer.split_last_chunk::<4>().ok_or_else(too_short)?;
        if crc32fast::hash(checked) != u32::from_le_bytes(*crc32) {
            return Err(Error::corrupt("footer of the pack does not match its checksum"));
        }
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "pack has a version that this build cannot read; update ckpt version=`{version}`"
            )));
        }
        let index_end = len - FOOTER_LEN as u64;
        let fits = pack_len == len && offset >= BLOCK && offset.checked_add(index_len) == Some(index_end);
        if !fits {
            return Err(Error::corrupt(format!(
                "pack has another length than its footer says length=`{len}` expected=`{pack_len}`"
            )));
        }
        if records > index_len / (ENTRY_FIXED + 1) {
            return Err(Error::corrupt(format!(
                "index of the pack is too short for its records records=`{records}` bytes=`{index_len}`"
            )));
        }
        Ok(Self { index: offset..index_end, index_crc32, records })
    }
}

/// Which record is where.
#[derive(Clone, Debug)]
pub(super) struct Index {
    bytes: Bytes,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// In `bytes`.
    key: Range<usize>,
    value: Range<u64>,
}

impl Index {
    /// Decodes the index that a footer describes. Keys are strictly ascending; values lie between the header and the index, in
    /// order, none over another.
    pub(super) fn decode(bytes: Bytes, footer: &Footer) -> Result<Self> {
        if bytes.len() as u64 != footer.index.end - footer.index.start {
            return Err(Error::internal("index of another length than the footer says"));
        }
        if crc32fast::hash(&bytes) != footer.index_crc32 {
            return Err(Error::corrupt("index of the pack does not match its checksum"));
        }
        let wrong = |what: &str| Error::corrupt(format!("index of the pack is wrong: {what}"));
        // At most one entry for every 19 bytes that are here.
        let mut entries: Vec<Entry> = Vec::with_capacity(usize::try_from(footer.records).unwrap_or_default());
        let mut fields = Fields(&bytes);
        let mut last_key: &[u8] = &[];
        let mut last_end = BLOCK;
        for _ in 0..footer.records {
            let key_len = usize::from(fields.u16()?);
            let key_start = bytes.len() - fields.0.len();
            let key = fields.take(key_len)?;
            let (offset, len) = (fields.u64()?, fields.u64()?);
            if key <= last_key {
                return Err(wrong("keys do not ascend"));
            }
            let end = offset.checked_add(len).filter(|&end| offset >= last_end && end <= footer.index.start);
            let end = end.ok_or_else(|| wrong("a value is outside its place"))?;
            entries.push(Entry { key: key_start..key_start + key_len, value: offset..end });
            (last_key, last_end) = (key, end);
        }
        if !fields.0.is_empty() {
            return Err(wrong("bytes are left over"));
        }
        Ok(Self { bytes, entries })
    }

    /// Where the value of a key is.
    pub(super) fn find(&self, key: &[u8]) -> Option<Range<u64>> {
        let at = self.lower_bound(key);
        self.entry(at).filter(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// The number of the first record whose key is not less than `key`.
    pub(super) fn lower_bound(&self, key: &[u8]) -> usize {
        self.entries.partition_point(|entry| self.key(entry) < key)
    }

    /// The key and the value's place of a record by number.
    pub(super) fn entry(&self, number: usize) -> Option<(&[u8], Range<u64>)> {
        self.entries.get(number).map(|entry| (self.key(entry), entry.value.clone()))
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        // Within by the making.
        self.bytes.get(entry.key.clone()).unwrap_or_default()
    }
}

/// Takes fields off the front of bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

fn cut_short() -> Error {
    Error::corrupt("index of the pack is wrong: it ends within an entry")
}
