//! The bytes of a file: the lengths before each entry, and the walk from one entry to the next.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::{Error, Result};

/// Two lengths.
pub(super) const HEADER_LEN: usize = 8;

/// The longest key and value.
pub(super) const MAX_LEN: u32 = i32::MAX as u32;

/// The first read, and the first after a long value was skipped.
const FIRST_READ: u64 = 512;
/// The largest read: many small entries are taken at once.
const MAX_READ: u64 = 64 << 10;
/// To skip less saves nothing: a disk gives whole pages.
const LEAST_SKIP: u64 = 4 << 10;

/// The lengths of an entry. Fails with `InvalidInput` for what Caffe2 could not read: an empty or too long key or value.
pub(super) fn header(key: usize, value: usize) -> Result<[u8; HEADER_LEN]> {
    let len = |len: usize| u32::try_from(len).ok().filter(|len| (1..=MAX_LEN).contains(len));
    let Some((key, value)) = len(key).zip(len(value)) else {
        return Err(Error::invalid(format!(
            "minidb holds no entry with an empty or longer than {MAX_LEN} bytes key or value key_bytes=`{key}` \
             value_bytes=`{value}`"
        )));
    };
    let [a, b, c, d] = key.to_le_bytes();
    let [e, f, g, h] = value.to_le_bytes();
    Ok([a, b, c, d, e, f, g, h])
}

/// Goes over the entries of a file of `len` bytes, of which `fetch` gives ranges, and hands key and place of value to `each`.
pub(super) fn walk(
    len: u64,
    fetch: &mut dyn FnMut(Range<u64>) -> Result<Bytes>,
    each: &mut dyn FnMut(&[u8], Range<u64>) -> Result<()>,
) -> Result<()> {
    let mut window = Window { fetch, len, start: 0, bytes: Bytes::new(), step: FIRST_READ };
    let mut at = 0;
    while at < len {
        let (key_len, value_len) = window.lengths(at)?;
        let key = at + HEADER_LEN as u64;
        let value = key + key_len;
        let end = value + value_len;
        if end > len {
            return Err(damaged(
                at,
                format!("entry is cut short or its lengths are damaged, it ends at {end} of {len}"),
            ));
        }
        each(&window.take(key, key_len)?, value..end)?;
        at = end;
    }
    Ok(())
}

/// A part of the file that is in memory.
struct Window<'f> {
    fetch: &'f mut dyn FnMut(Range<u64>) -> Result<Bytes>,
    len: u64,
    start: u64,
    bytes: Bytes,
    step: u64,
}

impl Window<'_> {
    fn lengths(&mut self, at: u64) -> Result<(u64, u64)> {
        if self.len - at < HEADER_LEN as u64 {
            return Err(damaged(at, format!("{} stray bytes are at the end of the file", self.len - at)));
        }
        let header = self.take(at, HEADER_LEN as u64)?;
        let mut lens =
            header.chunks_exact(4).map(|bytes| bytes.first_chunk().map(|bytes| i32::from_le_bytes(*bytes)));
        let mut len = || lens.next().flatten().and_then(|len| u64::try_from(len).ok()).filter(|&len| len > 0);
        match (len(), len()) {
            (Some(key), Some(value)) => Ok((key, value)),
            _ => Err(damaged(at, "a length is not positive".to_owned())),
        }
    }

    /// Bytes of the file, which are within.
    fn take(&mut self, at: u64, len: u64) -> Result<Bytes> {
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at + len > end {
            // Where one entry follows the other closely, ever more of them are taken at once. What was read may well end within
            // a value, so the next entry need not be at its very end.
            let is_near = end > 0 && at.saturating_sub(end) < LEAST_SKIP;
            self.step = if is_near { (self.step * 2).min(MAX_READ) } else { FIRST_READ };
            self.bytes = (self.fetch)(at..self.len.min(at + self.step.max(len)))?;
            self.start = at;
        }
        let start = usize::try_from(at - self.start).unwrap_or(usize::MAX);
        let end = usize::try_from(at - self.start + len).unwrap_or(usize::MAX);
        if end > self.bytes.len() || start > end {
            return Err(Error::internal("store gave fewer bytes than were asked for"));
        }
        Ok(self.bytes.slice(start..end))
    }
}

fn damaged(at: u64, what: String) -> Error {
    Error::corrupt(format!("minidb file is damaged: {what} offset=`{at}`"))
}
