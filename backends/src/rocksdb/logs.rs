//! RocksDB's log files, checked before RocksDB reads them.
//!
//! The manifest and the write-ahead logs have one format: blocks of 32 KiB with records in them, each with a checksum. RocksDB checks
//! it, but after it has believed the record's type, and a type that one flipped bit made can send its reader round for ever. So every
//! record is checked here first; a database of ours has some hundred bytes of them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use ckpt_engine::{Error, Result};

const BLOCK: usize = 32 << 10;

/// Checksum, length, type.
const HEADER: usize = 7;

/// The types of a record or a part of one.
const PLAIN: std::ops::RangeInclusive<u8> = 1..=4;

/// The same in a file that was used before: the number of the log follows the header.
const RECYCLED: std::ops::RangeInclusive<u8> = 5..=8;
const RECYCLED_MORE: usize = 4;

/// Checks the manifest that `CURRENT` names, and every write-ahead log, of the database in `dir`. Returns how many bytes that took.
pub(super) fn check(dir: &Path) -> Result<u64> {
    let mut current = Vec::new();
    read(&dir.join("CURRENT"), |block| {
        current.extend_from_slice(block);
        // One block holds any name; what is longer names no manifest.
        if current.len() > BLOCK { Err(Error::corrupt("file CURRENT is too long")) } else { Ok(()) }
    })?;
    let name = current.strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
    let name = name.filter(|name| name.strip_prefix("MANIFEST-").is_some_and(is_number));
    let name = name.ok_or_else(|| {
        Error::corrupt(format!("file CURRENT does not name a manifest path=`{}`", dir.display()))
    })?;
    let mut bytes = current.len() as u64 + check_file(&dir.join(name))?;
    let failed = |error| Error::io(format!("cannot list directory path=`{}`", dir.display()), error);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if path.extension().is_some_and(|extension| extension == "log") && stem.is_some_and(is_number) {
            bytes += check_file(&path)?;
        }
    }
    Ok(bytes)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Hands out a file block by block and returns its length.
fn read(path: &Path, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let failed = |error: io::Error| match error.kind() {
        // The database is known to be there: a part of it is missing.
        io::ErrorKind::NotFound => {
            Error::corrupt(format!("a file of the database is missing path=`{}`", path.display()))
        }
        _ => Error::io(format!("cannot read file path=`{}`", path.display()), error),
    };
    let mut file = File::open(path).map_err(failed)?;
    let (mut block, mut bytes) = (Vec::with_capacity(BLOCK), 0);
    loop {
        block.clear();
        let len = (&mut file).take(BLOCK as u64).read_to_end(&mut block).map_err(failed)?;
        if len == 0 {
            return Ok(bytes);
        }
        bytes += len as u64;
        each(&block)?;
    }
}

fn check_file(path: &Path) -> Result<u64> {
    let mut start = 0;
    read(path, |block| {
        check_block(block).map_err(|(at, why)| {
            Error::corrupt(format!("log file {why} path=`{}` offset=`{}`", path.display(), start + at))
        })?;
        start += block.len();
        Ok(())
    })
}

/// Where and why a block is not sound. No record goes over the end of one.
fn check_block(block: &[u8]) -> Result<(), (usize, &'static str)> {
    let mut rest = block;
    while rest.len() >= HEADER {
        let at = block.len() - rest.len();
        match check_record(rest).map_err(|why| (at, why))? {
            // Room that was made and not used.
            None if rest.iter().all(|&byte| byte == 0) => return Ok(()),
            None => return Err((at, "has a record of no type")),
            Some(after) => rest = after,
        }
    }
    if rest.iter().any(|&byte| byte != 0) {
        return Err((block.len() - rest.len(), "has bytes after its last record"));
    }
    Ok(())
}

/// What follows a sound record, or `None` for one of no type and no length.
fn check_record(log: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let Some((&[a, b, c, d, low, high, kind], after)) = log.split_first_chunk::<HEADER>() else {
        return Err("is cut short");
    };
    let len = usize::from(u16::from_le_bytes([low, high]));
    if kind == 0 && len == 0 {
        return Ok(None);
    }
    let more = match kind {
        kind if PLAIN.contains(&kind) => 0,
        kind if RECYCLED.contains(&kind) => RECYCLED_MORE,
        _ => return Err("has a record of an unknown type"),
    };
    let (_, rest) = after.split_at_checked(len + more).ok_or("has a record longer than its block")?;
    // From the type on.
    let checked = log.get(HEADER - 1..HEADER + more + len).ok_or("has a record longer than its block")?;
    // Stored rotated and shifted, so that a checksum of data that holds checksums is still a good one.
    let expected = crc32c::crc32c(checked).rotate_right(15).wrapping_add(0xa282_ead8);
    if u32::from_le_bytes([a, b, c, d]) != expected {
        return Err("has a record whose checksum differs");
    }
    Ok(Some(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, more: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut checked = vec![kind];
        checked.extend_from_slice(more);
        checked.extend_from_slice(payload);
        let crc = crc32c::crc32c(&checked).rotate_right(15).wrapping_add(0xa282_ead8);
        let mut record = crc.to_le_bytes().to_vec();
        record.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        record.extend_from_slice(&checked);
        record
    }

    fn check_log(log: &[u8]) -> Result<(), (usize, &'static str)> {
        log.chunks(BLOCK).try_for_each(check_block)
    }

    #[test]
    fn sound_logs_pass_and_every_flip_does_not() {
        let mut log = record(1, &[], b"one");
        log.extend(record(7, &[9, 0, 0, 0], b"recycled"));
        log.extend(record(2, &[], &vec![5; BLOCK - log.len() - HEADER - 3]));
        // Three bytes are left of the block: too few for a header.
        log.extend([0; 3]);
        log.extend(record(4, &[], b"the end"));
        assert_eq!(check_log(&log), Ok(()));
        let mut with_room = log.clone();
        with_room.extend([0; 100]);
        assert_eq!(check_log(&with_room), Ok(()));
        for at in (0..60).chain(BLOCK - 10..log.len()) {
            for bit in 0..8 {
                let mut damaged = log.clone();
                damaged[at] ^= 1 << bit;
                assert!(check_log(&damaged).is_err(), "byte {at} bit {bit}");
            }
        }
        for len in BLOCK + 1..log.len() {
            assert!(check_log(&log[..len]).is_err(), "{len}");
        }
        assert_eq!(check_log(&[]), Ok(()));
    }
}
