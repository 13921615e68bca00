//! The bytes of LevelDB's files, decoded and encoded. Pure; nothing that it reads is trusted.
//!
//! Numbers are little-endian, or varints: seven bits a byte, the lowest first. A record of a table has an internal key: the user's,
//! then eight bytes with a sequence number and what became of the key. All orders are of internal keys: ascending by the user's key,
//! and of one key the newest first.

pub(super) mod batch;
pub(super) mod block;
pub(super) mod edit;
pub(super) mod index;
pub(super) mod log;
pub(super) mod table;

use std::cmp::Reverse;

use bytes::Bytes;

#[cfg(test)]
pub(super) use crate::table::internal_key;
pub(super) use crate::table::{BYTEWISE, TAG, VALUE, mask, put_varints};

/// Sequence numbers share their eight bytes with the kind.
pub(super) const MAX_SEQUENCE: u64 = (1 << 56) - 1;

/// The kind of a record that deletes its key.
pub(super) const DELETION: u8 = 0;

/// What a key was set to, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// Later ones are greater.
    pub(super) sequence: u64,
    /// `None` if the key was deleted.
    pub(super) value: Option<Bytes>,
}

impl Stored {
    /// The newer of the two. Of equal ones, which are copies, the first.
    pub(super) fn newer(first: Option<Self>, other: Self) -> Self {
        match first {
            Some(first) if first.sequence >= other.sequence => first,
            _ => other,
        }
    }
}

/// The user's key of an internal one, and its last eight bytes as a number. `None` if it is too short.
pub(super) fn split_key(internal: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = internal.split_last_chunk()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// What sorts as internal keys do.
pub(super) fn key_order(internal: &[u8]) -> impl Ord {
    split_key(internal).map(|(user, tag)| (user, Reverse(tag)))
}

/// Adds bytes with their length before them.
pub(super) fn put_prefixed(bytes: &mut Vec<u8>, prefixed: &[u8]) {
    put_varints(bytes, [prefixed.len() as u64]);
    bytes.extend_from_slice(prefixed);
}

/// Takes numbers and pieces off the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'b>(pub(super) &'b [u8]);

impl<'b> Input<'b> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of 64 bits.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            number |= bits << shift;
            // The tenth byte has one bit.
            if number >> shift != bits {
                return None;
            }
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A length of 32 bits.
    pub(super) fn len(&mut self) -> Option<usize> {
        let len = u32::try_from(self.varint()?).ok()?;
        usize::try_from(len).ok()
    }

    /// Bytes with their length before them.
    pub(super) fn prefixed(&mut self) -> Option<&'b [u8]> {
        let len = self.len()?;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        let cases: [(u64, &[u8]); 7] = [
            (0, &[0]),
            (1, &[1]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (u64::from(u32::MAX), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ];
        for (number, expected) in cases {
            let mut bytes = Vec::new();
            put_varints(&mut bytes, [number]);
            assert_eq!(bytes, expected);
            bytes.push(7);
            let mut input = Input(&bytes);
            assert_eq!((input.varint(), input.0), (Some(number), &[7][..]));
            assert_eq!(Input(&expected[..expected.len() - 1]).varint(), None);
        }
        for shift in 0..64 {
            let mut bytes = Vec::new();
            put_varints(&mut bytes, [1 << shift]);
            assert_eq!((bytes.len(), Input(&bytes).varint()), (shift / 7 + 1, Some(1 << shift)));
        }
    }

    #[test]
    fn what_is_no_varint_is_refused() {
        assert_eq!(Input(&[]).varint(), None);
        assert_eq!(Input(&[0x80; 9]).varint(), None);
        // More than 64 bits.
        assert_eq!(Input(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint(), None);
        assert_eq!(Input(&[0x80; 11]).varint(), None);
        // More than 32 bits.
        assert_eq!(Input(&[0x80, 0x80, 0x80, 0x80, 0x10]).len(), None);
        // More bytes than there are.
        assert_eq!(Input(&[3, 1, 2]).prefixed(), None);
        assert_eq!(Input(&[2, 1, 2]).prefixed(), Some(&[1, 2][..]));
    }

    #[test]
    fn internal_keys_sort_by_key_and_the_newest_first() {
        let sorted = [
            internal_key(b"", 1, VALUE),
            internal_key(b"a", MAX_SEQUENCE, VALUE),
            internal_key(b"a", 2, VALUE),
            internal_key(b"a", 2, DELETION),
            internal_key(b"a", 1, VALUE),
            internal_key(b"a\0", 9, VALUE),
            internal_key(b"b", 1, VALUE),
        ];
        assert!(sorted.is_sorted_by(|a, b| key_order(a) < key_order(b)));
        assert_eq!(internal_key(b"k", 0x0102, VALUE), b"k\x01\x02\x01\0\0\0\0\0");
        assert_eq!(split_key(b"k\x01\x02\x01\0\0\0\0\0"), Some((&b"k"[..], 0x0102 << 8 | 1)));
        assert_eq!(split_key(b"1234567"), None);
    }

    /// As `util/crc32c_test.cc` of LevelDB has it: the checksum of "foo", masked.
    #[test]
    fn checksums_are_masked_as_in_leveldb() {
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(mask(0), 0xa282_ead8);
        assert_eq!(mask(0x0000_8000), 0xa282_ead9);
    }
}
