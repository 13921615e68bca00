//! A block of a table: records in order.
//!
//! A record is how many bytes of its key are those of the key before (varint), how many follow, the value's length, then both. Every
//! so many records a key is given in full. Where these are (4 bytes each) and how many (4) is at the block's end.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::{Error, Result};

use super::encoding::key_order;
use super::{Input, TAG, split_key};

/// A block as it was before it was compressed.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    bytes: Bytes,
    /// Where the records end and the places of those with a full key begin.
    end: usize,
}

/// A position in a block.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The internal key of the record at the position. Empty before the first.
    key: Vec<u8>,
    value: Range<usize>,
    /// Where the next record is.
    next: usize,
    /// The end of the key before, to compare.
    before: Vec<u8>,
}

/// A record as it is stored.
struct Entry<'b> {
    /// So many bytes of the key are those of the key before.
    shared: usize,
    rest: &'b [u8],
    value: Range<usize>,
}

impl Block {
    pub(crate) fn new(bytes: Bytes) -> Result<Self> {
        let count = bytes.last_chunk().map(|count| u32::from_le_bytes(*count));
        let count = count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        let places = count.and_then(|count| count.checked_add(1)?.checked_mul(size_of::<u32>()));
        let end = places.and_then(|places| bytes.len().checked_sub(places));
        let end = end.ok_or_else(|| damaged("is shorter than it says"))?;
        Ok(Self { bytes, end })
    }

    /// How many bytes it is.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Goes to the next record; `false` if there is none. Keys must ascend.
    pub(crate) fn next(&self, walk: &mut Walk) -> Result<bool> {
        if walk.next >= self.end {
            return Ok(false);
        }
        let entry = self.entry(walk.next)?;
        if entry.shared > walk.key.len() || entry.shared + entry.rest.len() < TAG {
            return Err(damaged("has a key that cannot be"));
        }
        // Both keys are the same so far, and both go on for a tag at least.
        let same = walk.key.len().min(entry.shared + entry.rest.len()).saturating_sub(TAG).min(entry.shared);
        walk.before.clear();
        walk.before.extend_from_slice(walk.key.get(same..).unwrap_or_default());
        walk.key.truncate(entry.shared);
        walk.key.extend_from_slice(entry.rest);
        if walk.key.get(same..).is_none_or(|key| key_order(&walk.before) >= key_order(key)) {
            return Err(damaged("has keys that do not ascend"));
        }
        walk.next = entry.value.end;
        walk.value = entry.value;
        Ok(true)
    }

    /// Goes on, or stays, to the first record whose user's key is not less; `false` if there is none.
    pub(crate) fn advance(&self, walk: &mut Walk, user: &[u8]) -> Result<bool> {
        while walk.key.is_empty() || walk.user_key() < user {
            if !self.next(walk)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The value at the position, as a part of the block that keeps all of it in memory.
    #[cfg(feature = "leveldb")]
    pub(crate) fn lend(&self, walk: &Walk) -> Bytes {
        self.bytes.slice_ref(self.value(walk))
    }

    /// The value at the position.
    pub(crate) fn value(&self, walk: &Walk) -> &[u8] {
        self.bytes.get(walk.value.clone()).unwrap_or_default()
    }

    /// How many records have a full key. At least one, of a block that has any.
    pub(super) fn full_keys(&self) -> usize {
        (self.bytes.len() - self.end) / size_of::<u32>() - 1
    }

    /// Where the record of this number among those with a full key is.
    pub(super) fn full_key_at(&self, number: usize) -> Option<usize> {
        let places = self.bytes.get(self.end..self.bytes.len().checked_sub(size_of::<u32>())?)?;
        let place = places.get(number.checked_mul(size_of::<u32>())?..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*place)).ok()
    }

    /// The key of the record there, which must be full.
    pub(super) fn full_key(&self, at: usize) -> Result<&[u8]> {
        let entry = self.entry(at)?;
        if entry.shared > 0 {
            return Err(damaged("has a key that should be full and is not"));
        }
        Ok(entry.rest)
    }

    /// Whether there are no records.
    pub(super) fn is_empty(&self) -> bool {
        self.end == 0
    }

    fn entry(&self, at: usize) -> Result<Entry<'_>> {
        let records = self.bytes.get(at..self.end).unwrap_or_default();
        let entry = || {
            let mut input = Input(records);
            let (shared, rest, value) = (input.len()?, input.len()?, input.len()?);
            let rest = input.take(rest)?;
            let start = self.end - input.0.len();
            input.take(value)?;
            Some(Entry { shared, rest, value: start..start + value })
        };
        entry().ok_or_else(|| damaged("has a record that does not fit"))
    }
}

impl Walk {
    /// Before the record that is there, whose key must be full.
    pub(super) fn at(next: usize) -> Self {
        Self { next, ..Self::default() }
    }

    /// Where the next record is.
    pub(super) fn next_at(&self) -> usize {
        self.next
    }

    /// The internal key at the position.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// What became of the key at the position.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn kind(&self) -> Option<u8> {
        split_key(&self.key).map(|(_, tag)| tag as u8)
    }

    /// The user's key at the position.
    pub(crate) fn user_key(&self) -> &[u8] {
        split_key(&self.key).map(|(user, _)| user).unwrap_or_default()
    }
}

pub(super) fn damaged(why: &str) -> Error {
    Error::corrupt(format!("block of a table {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{BlockBuilder, DELETION, LONE_END, VALUE, internal_key, lone_header};

    fn key(user: &str, sequence: u64) -> Vec<u8> {
        internal_key(user.as_bytes(), sequence, VALUE)
    }

    fn build(interval: usize, records: &[(Vec<u8>, &str)]) -> Vec<u8> {
        let mut builder = BlockBuilder::new(interval);
        for (key, value) in records {
            builder.add(key, &[Bytes::copy_from_slice(value.as_bytes())]);
        }
        let len = builder.len();
        let bytes = builder.finish();
        assert_eq!(bytes.len(), if records.is_empty() { len + 4 } else { len });
        bytes
    }

    /// Internal keys and values.
    fn read(bytes: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let block = Block::new(Bytes::copy_from_slice(bytes))?;
        let (mut walk, mut found) = (Walk::default(), Vec::new());
        while block.next(&mut walk)? {
            found.push((walk.key().to_vec(), block.value(&walk).to_vec()));
        }
        assert!(!block.next(&mut walk)?);
        Ok(found)
    }

    fn records() -> Vec<(Vec<u8>, &'static str)> {
        vec![
            (key("a", 7), "1"),
            (key("ab", 300), ""),
            (key("abc", 2), "three"),
            (internal_key(b"abc", 1, DELETION), ""),
            (key("abcdefghijkl", 1), "four"),
            (key("b", 9), "five"),
        ]
    }

    #[test]
    fn a_block_has_these_bytes() {
        let bytes = build(2, &records()[..3]);
        let expected = b"\x00\x09\x01a\x01\x07\0\0\0\0\0\0\
            1\x01\x09\x00b\x01\x2c\x01\0\0\0\0\0\
            \x00\x0b\x05abc\x01\x02\0\0\0\0\0\0three\
            \0\0\0\0\x19\0\0\0\x02\0\0\0";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(build(16, &[]), [0, 0, 0, 0, 1, 0, 0, 0]);
        let lone = [&lone_header(&key("a", 7), 3), &b"xyz"[..], &LONE_END].concat();
        assert_eq!(lone, build(16, &[(key("a", 7), "xyz")]));
    }

    #[test]
    fn what_is_put_comes_back() {
        for interval in [1, 2, 3, 16] {
            let found = read(&build(interval, &records())).unwrap();
            let expected = records().into_iter().map(|(key, value)| (key, value.as_bytes().to_vec()));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
        assert_eq!(read(&build(16, &[])).unwrap(), []);
    }

    #[test]
    fn advancing_finds_the_first_that_is_not_less() {
        let block = Block::new(build(16, &records()).into()).unwrap();
        for (wanted, expected) in
            [("", "a"), ("a", "a"), ("aa", "ab"), ("abc", "abc"), ("abd", "b"), ("b", "b")]
        {
            let mut walk = Walk::default();
            assert!(block.advance(&mut walk, wanted.as_bytes()).unwrap(), "{wanted}");
            assert_eq!(walk.user_key(), expected.as_bytes());
            assert!(block.advance(&mut walk, wanted.as_bytes()).unwrap(), "it stays");
            assert_eq!(walk.user_key(), expected.as_bytes());
        }
        assert!(!block.advance(&mut Walk::default(), b"ba").unwrap());
        let mut walk = Walk::default();
        block.advance(&mut walk, b"abc").unwrap();
        assert_eq!(walk.key(), key("abc", 2), "the newest first");
    }

    #[test]
    fn damage_is_an_error_or_another_block() {
        let bytes = build(2, &records());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                // Checksums find it; here it must only not panic, and not go on for ever.
                let _ = read(&damaged);
            }
            let _ = read(&bytes[..at]);
        }
        for bytes in [&[][..], &[0; 3], &[0; 4], &[0xff; 4], &[0, 0, 0, 0, 2, 0, 0, 0], &[0xff; 40]] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        let backwards = [(key("b", 1), ""), (key("a", 1), "")];
        let twice = [(key("b", 1), ""), (key("b", 1), "")];
        let older_first = [(key("b", 1), ""), (key("b", 2), "")];
        for records in [&backwards[..], &twice, &older_first] {
            for interval in [1, 16] {
                assert!(read(&build(interval, records)).unwrap_err().to_string().contains("do not ascend"));
            }
        }
        let short = [(b"1234567".to_vec(), "")];
        assert!(read(&build(1, &short)).is_err());
    }
}
