//! The log files: the manifest, and what was not yet made into tables.
//!
//! A log is blocks of 32 KiB. A record is cut where a block ends: each part has a checksum (4), a length (2), and whether it is all
//! of the record (1), its first part (2), a middle one (3) or its last (4). Less room than these seven bytes at a block's end is zero.
//!
//! LevelDB reads on after damage and tells nobody, unless it is asked to be strict. Here damage is an error. Only what the end of the
//! file cuts off is, in a log of records, no damage: it was being written when the machine stopped.

use bytes::Bytes;
use ckpt_engine::{Error, ErrorKind, Result};

use super::{Input, mask};

/// What a log is read in.
pub(crate) const BLOCK: usize = 32 << 10;

/// Checksum, length, part.
const HEADER: usize = 7;

const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// What the end of a file may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end of a record.
    Clean,
    /// That, or within a record that was never finished: it is passed over.
    Torn,
}

/// Puts the records of a log together.
#[derive(Debug)]
pub(crate) struct LogReader {
    end: End,
    /// How many bytes of the file came before.
    offset: u64,
    /// A record on its way.
    begun: Option<Vec<u8>>,
    /// Where bytes begin that hold nothing: nothing may follow them.
    over: bool,
}

/// A part of a record, or why there is none.
enum Part<'b> {
    Found {
        kind: u8,
        bytes: &'b [u8],
    },
    /// Zeros: room that was made and not used.
    Nothing,
    /// The block ends before it does.
    Cut,
}

impl LogReader {
    /// At the front of a file.
    pub(crate) fn new(end: End) -> Self {
        Self { end, offset: 0, begun: None, over: false }
    }

    /// Takes the next [`BLOCK`] bytes of the file, or those that are left of it, and hands out each record that ends there.
    pub(crate) fn read(&mut self, block: &[u8], each: &mut dyn FnMut(Bytes) -> Result<()>) -> Result<()> {
        let mut input = Input(block);
        while !input.is_empty() {
            let at = self.offset + (block.len() - input.0.len()) as u64;
            if self.over {
                if input.0.iter().any(|&byte| byte != 0) {
                    return Err(damaged(at, "has bytes after its end"));
                }
                break;
            }
            match part(&mut input).map_err(|why| damaged(at, why))? {
                Part::Found { kind, bytes } => self.join(kind, bytes, at, each)?,
                Part::Nothing => self.over = true,
                // No part goes over the end of a block: only the end of the file cuts it off.
                Part::Cut if block.len() == BLOCK => {
                    return Err(damaged(at, "has a record that goes over the end of its block"));
                }
                Part::Cut if self.end == End::Clean => return Err(damaged(at, "ends within a record")),
                Part::Cut => {
                    self.begun = None;
                    self.over = true;
                    break;
                }
            }
            if input.0.len() < HEADER && input.0.iter().all(|&byte| byte == 0) {
                break;
            }
        }
        self.offset += block.len() as u64;
        Ok(())
    }

    /// To be called after the last block.
    pub(crate) fn finish(self) -> Result<()> {
        if self.end == End::Clean && self.begun.is_some() {
            return Err(damaged(self.offset, "ends within a record"));
        }
        Ok(())
    }

    fn join(
        &mut self,
        kind: u8,
        bytes: &[u8],
        at: u64,
        each: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        if matches!(kind, WHOLE | FIRST) && self.begun.take().is_some_and(|begun| !begun.is_empty()) {
            return Err(damaged(at, "has a record without its end"));
        }
        match kind {
            WHOLE => each(Bytes::copy_from_slice(bytes)),
            FIRST => {
                self.begun = Some(bytes.to_vec());
                Ok(())
            }
            MIDDLE | LAST => {
                let mut begun =
                    self.begun.take().ok_or_else(|| damaged(at, "has a record without its begin"))?;
                extend(&mut begun, bytes)?;
                if kind == MIDDLE {
                    self.begun = Some(begun);
                    return Ok(());
                }
                // It is kept as long as anything in it is.
                begun.shrink_to_fit();
                each(begun.into())
            }
            _ => Err(Error::unsupported(format!(
                "LevelDB log has a record of a type that LevelDB does not write type=`{kind}` offset=`{at}`"
            ))),
        }
    }
}

/// Takes a part off the front of what is left of a block.
fn part<'b>(block: &mut Input<'b>) -> Result<Part<'b>, &'static str> {
    let mut input = *block;
    let header = (|| Some((input.array()?, input.array()?, input.array()?)))();
    let Some((checksum, len, [kind])) = header else { return Ok(Part::Cut) };
    let (checksum, len) = (u32::from_le_bytes(checksum), usize::from(u16::from_le_bytes(len)));
    if kind == 0 && len == 0 {
        return Ok(Part::Nothing);
    }
    // From the kind on.
    let checked = block.0.get(HEADER - 1..).unwrap_or_default();
    let Some(bytes) = input.take(len) else {
        // If it is all there for some length, then it is the length that is wrong, and more may follow that must not be lost.
        if is_whole(checked, checksum) {
            return Err("has a record with a damaged length");
        }
        return Ok(Part::Cut);
    };
    let checked = checked.get(..=len).unwrap_or_default();
    if mask(crc32c::crc32c(checked)) != checksum {
        return Err("has a record whose checksum differs");
    }
    *block = input;
    Ok(Part::Found { kind, bytes })
}

/// Whether some first bytes have this checksum.
fn is_whole(bytes: &[u8], checksum: u32) -> bool {
    let mut crc = 0;
    bytes.iter().any(|&byte| {
        crc = crc32c::crc32c_append(crc, &[byte]);
        mask(crc) == checksum
    })
}

fn extend(record: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    record.try_reserve(bytes.len()).map_err(|error| {
        let message = format!("out of memory for a record of a log bytes=`{}`", record.len());
        Error::new(ErrorKind::Full, message).with_source(error)
    })?;
    record.extend_from_slice(bytes);
    Ok(())
}

fn damaged(at: u64, why: &str) -> Error {
    Error::corrupt(format!("LevelDB log {why} offset=`{at}`"))
}

/// Adds a record to a log that so far is `log`.
pub(crate) fn append(log: &mut Vec<u8>, record: &[u8]) {
    let (mut rest, mut begun) = (record, false);
    loop {
        let mut room = BLOCK - log.len() % BLOCK;
        if room < HEADER {
            log.resize(log.len() + room, 0);
            room = BLOCK;
        }
        let (part, after) = rest.split_at_checked(room - HEADER).unwrap_or((rest, &[]));
        let kind = match (begun, after.is_empty()) {
            (false, true) => WHOLE,
            (false, false) => FIRST,
            (true, false) => MIDDLE,
            (true, true) => LAST,
        };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), part);
        log.extend(mask(crc).to_le_bytes());
        // Less than a block, so it fits.
        log.extend((part.len() as u16).to_le_bytes());
        log.push(kind);
        log.extend_from_slice(part);
        if after.is_empty() {
            return;
        }
        (rest, begun) = (after, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &[u8], end: End) -> Result<Vec<Bytes>> {
        let (mut reader, mut records) = (LogReader::new(end), Vec::new());
        for block in log.chunks(BLOCK) {
            reader.read(block, &mut |record| {
                records.push(record);
                Ok(())
            })?;
        }
        reader.finish()?;
        Ok(records)
    }

    fn log(records: &[Vec<u8>]) -> Vec<u8> {
        let mut log = Vec::new();
        records.iter().for_each(|record| append(&mut log, record));
        log
    }

    fn records(lens: &[usize]) -> Vec<Vec<u8>> {
        let bytes =
            |seed: usize, len: usize| (0..len).map(|at| (seed * 3 + at * 7 + at / 255) as u8).collect();
        lens.iter().enumerate().map(|(seed, &len)| bytes(seed + 1, len)).collect()
    }

    /// Offsets around what is special, of a log of several blocks.
    fn places(len: usize) -> impl Iterator<Item = usize> {
        (0..len).filter(|at| *at < 100 || at % BLOCK < 40 || at % BLOCK > BLOCK - 20 || at % 4999 == 0)
    }

    #[test]
    fn a_record_has_these_bytes() {
        // As LevelDB wrote it.
        let manifest = include_bytes!("../fixtures/small.leveldb/MANIFEST-000002");
        let records = read(manifest, End::Clean).unwrap();
        assert_eq!(records[0], &b"\x01\x1aleveldb.BytewiseComparator"[..]);
        let mut again = Vec::new();
        records.iter().for_each(|record| append(&mut again, record));
        assert_eq!(again, manifest);
    }

    #[test]
    fn records_of_every_length_come_back() {
        let edge = BLOCK - HEADER;
        for lens in [
            &[][..],
            &[0],
            &[0, 0, 1, 0],
            &[edge],
            &[edge + 1, 5],
            &[edge - 1, 5],
            // Less than a header is left; exactly a header is left.
            &[edge - HEADER + 1, 9, 100_000, 1],
            &[edge - HEADER, 9, 3 * BLOCK],
            &[10, 200_000, 20],
        ] {
            let expected = records(lens);
            for end in [End::Clean, End::Torn] {
                assert_eq!(read(&log(&expected), end).unwrap(), expected, "{lens:?}");
            }
        }
    }

    #[test]
    fn a_cut_log_ends_before_the_record_that_is_cut() {
        let expected = records(&[20, 0, 31, BLOCK - 100, 70_000, 9, BLOCK, 5]);
        let log = log(&expected);
        let mut found = 0;
        for len in places(log.len()).chain([log.len() - 1]) {
            let cut = read(&log[..len], End::Torn).unwrap();
            assert_eq!(cut, expected[..cut.len()], "{len}");
            assert!(cut.len() >= found);
            found = cut.len();
            // Between two records nothing is missed.
            let clean = read(&log[..len], End::Clean);
            assert!(clean.is_err() || clean.unwrap() == cut, "{len}");
        }
        assert_eq!(found, expected.len() - 1);
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let expected = records(&[20, 0, 31, BLOCK - 120, 70_000, 9, 60, 5]);
        let log = log(&expected);
        for at in places(log.len()) {
            for bit in 0..8 {
                let mut damaged = log.clone();
                damaged[at] ^= 1 << bit;
                for end in [End::Clean, End::Torn] {
                    let error = read(&damaged, end).map(|_| ()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at} bit {bit}: {error}");
                }
            }
        }
    }

    #[test]
    fn room_that_was_made_and_not_used_is_the_end() {
        let expected = records(&[20, 300]);
        for room in [1, 6, 7, 100, BLOCK, 3 * BLOCK] {
            let mut log = log(&expected);
            log.extend(vec![0; room]);
            assert_eq!(read(&log, End::Torn).unwrap(), expected, "{room}");
            assert_eq!(read(&log, End::Clean).unwrap(), expected, "{room}");
            if room >= HEADER {
                // A hole, with more after it.
                log.push(1);
                assert_eq!(read(&log, End::Torn).unwrap_err().kind(), ErrorKind::Corrupt, "{room}");
            }
        }
    }

    #[test]
    fn parts_must_follow_each_other() {
        let part = |kind: u8, bytes: &[u8]| {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), bytes);
            let len = u16::try_from(bytes.len()).unwrap().to_le_bytes();
            [&mask(crc).to_le_bytes()[..], &len, &[kind], bytes].concat()
        };
        let of = |parts: &[(u8, &[u8])]| {
            parts.iter().flat_map(|(kind, bytes)| part(*kind, bytes)).collect::<Vec<_>>()
        };
        assert_eq!(read(&of(&[(2, b"a"), (3, b"b"), (4, b"c")]), End::Clean).unwrap(), ["abc"]);
        // An old LevelDB began a record with nothing at the end of a block, and then began it anew.
        assert_eq!(
            read(&of(&[(2, b""), (1, b"a"), (2, b""), (2, b"b"), (4, b"")]), End::Clean).unwrap(),
            ["a", "b"]
        );
        for parts in [&[(3, &b"a"[..])][..], &[(4, b"a")], &[(2, b"a"), (1, b"b")], &[(2, b"a"), (2, b"b")]] {
            assert_eq!(read(&of(parts), End::Torn).unwrap_err().kind(), ErrorKind::Corrupt, "{parts:?}");
        }
        assert_eq!(read(&of(&[(9, b"a")]), End::Torn).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(read(&of(&[(1, b"a"), (2, b"b")]), End::Clean).is_err());
        assert_eq!(read(&of(&[(1, b"a"), (2, b"b")]), End::Torn).unwrap(), ["a"]);
    }
}
