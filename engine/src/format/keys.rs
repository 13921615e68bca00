//! Keys of the records of a native db.
//!
//! A record of payload is `c` and its number (`u32`, big-endian, so that keys ascend as numbers do); the manifest is `m`, which
//! sorts after all of them, because it is written last.

/// The key of the manifest.
pub const MANIFEST: &[u8] = b"m";

const RECORD: u8 = b'c';

/// A record's key.
pub type RecordKey = [u8; 5];

/// The key of record `number`.
pub fn record_key(number: u32) -> RecordKey {
    let [a, b, c, d] = number.to_be_bytes();
    [RECORD, a, b, c, d]
}

/// The number of a record's key, or `None` for another key.
pub fn parse_record_key(key: &[u8]) -> Option<u32> {
    match key {
        &[RECORD, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_numbers_are_inverse_and_ascend() {
        let numbers = [0, 1, 255, 256, 65_535, 65_536, u32::MAX];
        let mut last: Vec<u8> = Vec::new();
        for number in numbers {
            let key = record_key(number);
            assert_eq!(parse_record_key(&key), Some(number));
            assert!(key.as_slice() > last.as_slice() && key.as_slice() < MANIFEST);
            last = key.to_vec();
        }
        assert_eq!(parse_record_key(MANIFEST), None);
        assert_eq!(parse_record_key(b"c123"), None);
    }
}
