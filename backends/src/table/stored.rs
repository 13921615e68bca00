//! A block as it is stored: with how it is compressed and a checksum after it.

use ckpt_engine::{Error, Result};

use super::{TRAILER, mask};

/// A block that was read with what comes after it: how it is compressed, and what it is, checked.
pub(crate) fn unseal(mut stored: Vec<u8>) -> Result<(u8, Vec<u8>)> {
    let kind = check(&stored)?;
    stored.truncate(stored.len() - TRAILER);
    Ok((kind, stored))
}

/// Compares a block with the checksum after it, and tells how it is compressed.
pub(crate) fn check(stored: &[u8]) -> Result<u8> {
    let parts =
        stored.split_last_chunk::<4>().and_then(|(checked, crc)| Some((checked, crc, checked.last()?)));
    let (checked, crc, kind) = parts.ok_or_else(|| Error::corrupt("block of a table has no length"))?;
    if mask(crc32c::crc32c(checked)) != u32::from_le_bytes(*crc) {
        return Err(Error::corrupt("block of a table has another checksum than it should"));
    }
    Ok(*kind)
}
