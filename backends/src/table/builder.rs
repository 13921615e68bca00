//! Making a block.

use bytes::Bytes;

use super::put_varints;

/// Makes a block.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    bytes: Vec<u8>,
    /// Where the records with a full key are.
    full_keys: Vec<u32>,
    /// Every so many records.
    interval: usize,
    /// Since the last full key.
    since: usize,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    /// Every `interval`th key is full.
    pub(crate) fn new(interval: usize) -> Self {
        Self { bytes: Vec::new(), full_keys: Vec::new(), interval, since: 0, last_key: Vec::new() }
    }

    /// How long it would be.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + (self.full_keys.len() + 1) * size_of::<u32>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The internal key of the last record.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Adds a record. A block must stay below 4 GiB.
    pub(crate) fn add(&mut self, key: &[u8], value: &[Bytes]) {
        let mut shared = 0;
        if self.full_keys.is_empty() || self.since == self.interval {
            self.full_keys.push(self.bytes.len() as u32);
            self.since = 0;
        } else {
            shared = self.last_key.iter().zip(key).take_while(|(last, new)| last == new).count();
        }
        let rest = key.get(shared..).unwrap_or_default();
        put_header(&mut self.bytes, shared, rest, value.iter().map(Bytes::len).sum());
        value.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.since += 1;
    }

    /// The block, and begins a new one.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut full_keys = std::mem::take(&mut self.full_keys);
        if full_keys.is_empty() {
            full_keys.push(0);
        }
        bytes.extend(full_keys.iter().flat_map(|place| place.to_le_bytes()));
        bytes.extend((full_keys.len() as u32).to_le_bytes());
        self.last_key.clear();
        self.since = 0;
        bytes
    }
}

/// What comes before the value, in a block of one record.
pub(crate) fn lone_header(key: &[u8], value_len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_header(&mut bytes, 0, key, value_len);
    bytes
}

/// How long the value is in a block of one record that is so long. `None` if there is no such.
#[cfg(feature = "rocksdb")]
pub(crate) fn lone_value_len(key: &[u8], block_len: usize) -> Option<usize> {
    let around = lone_header(key, 0).len() - 1 + LONE_END.len();
    // The length itself takes one to five bytes.
    let value = |bytes: usize| block_len.checked_sub(around + bytes);
    (1..=5).find_map(|bytes| {
        value(bytes).filter(|len| lone_header(key, *len).len() + len + LONE_END.len() == block_len)
    })
}

/// What comes after it.
pub(crate) const LONE_END: [u8; 8] = [0, 0, 0, 0, 1, 0, 0, 0];

fn put_header(bytes: &mut Vec<u8>, shared: usize, rest: &[u8], value_len: usize) {
    put_varints(bytes, [shared as u64, rest.len() as u64, value_len as u64]);
    bytes.extend_from_slice(rest);
}
