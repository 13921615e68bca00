//! What all of a table is made of: varints, internal keys, checksums.

use std::cmp::Reverse;

use super::TRAILER;

/// An internal key.
pub(crate) fn internal_key(user: &[u8], sequence: u64, kind: u8) -> Vec<u8> {
    [user, &(sequence << 8 | u64::from(kind)).to_le_bytes()].concat()
}

/// The user's key of an internal one, and its last eight bytes as a number. `None` if it is too short.
pub(crate) fn split_key(internal: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = internal.split_last_chunk()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// What sorts as internal keys do.
pub(crate) fn key_order(internal: &[u8]) -> impl Ord {
    split_key(internal).map(|(user, tag)| (user, Reverse(tag)))
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

/// Takes numbers and pieces off the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'b>(pub(crate) &'b [u8]);

impl<'b> Input<'b> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of 64 bits.
    pub(crate) fn varint(&mut self) -> Option<u64> {
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
    pub(crate) fn len(&mut self) -> Option<usize> {
        let len = u32::try_from(self.varint()?).ok()?;
        usize::try_from(len).ok()
    }

    /// Bytes with their length before them.
    pub(crate) fn prefixed(&mut self) -> Option<&'b [u8]> {
        let len = self.len()?;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{DELETION, VALUE};

    const MAX_SEQUENCE: u64 = (1 << 56) - 1;

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
