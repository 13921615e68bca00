//! A checksum over all records of a db, for the epoch record beside it: the layout has no place for one.

use bytes::Bytes;
use crc32fast::Hasher;

use crate::db::Db;
use crate::error::Result;

/// The records so far.
#[derive(Debug, Default)]
pub(super) struct Checksum {
    records: Vec<(Vec<u8>, Hasher)>,
}

impl Checksum {
    /// Of one record: lengths, key, and a value that is in pieces.
    pub(super) fn of(key: &[u8], value: &[Bytes]) -> Hasher {
        let mut hasher = Hasher::new();
        let len: usize = value.iter().map(Bytes::len).sum();
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(&(len as u64).to_le_bytes());
        hasher.update(key);
        value.iter().for_each(|piece| hasher.update(piece));
        hasher
    }

    /// Adds a record.
    pub(super) fn add(&mut self, key: &[u8], record: Hasher) {
        self.records.push((key.to_owned(), record));
    }

    /// Of all of them in ascending order of keys, so that it is the same in every store; equal keys as they came.
    pub(super) fn finish(mut self) -> u32 {
        self.records.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut all = Hasher::new();
        self.records.iter().for_each(|(_, record)| all.combine(record));
        all.finalize()
    }
}

/// Reads all records of a db.
pub(in crate::checkpoint) fn records_crc32(db: &dyn Db) -> Result<u32> {
    let mut checksum = Checksum::default();
    let mut cursor = db.cursor()?;
    while let Some(key) = cursor.key() {
        let key = key.to_owned();
        checksum.add(&key, Checksum::of(&key, &[cursor.value()?]));
        cursor.next()?;
    }
    Ok(checksum.finish())
}
