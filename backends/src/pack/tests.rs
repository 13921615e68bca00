//! Packs in memory: golden bytes, damage, order of reads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ckpt_engine::db::{Db, Limits, Payload, Read, ReadSink, Transaction};
use ckpt_engine::{Error, ErrorKind, Result};

use super::reader::PackDb;
use super::writer::PackWriter;
use crate::store::{Opened, Reader, Segment, Writer};

/// Bytes in memory as a store gives them.
#[derive(Debug)]
struct Memory {
    bytes: Bytes,
    read: AtomicU64,
}

impl Memory {
    fn open(bytes: &[u8], tail: usize) -> Result<PackDb> {
        let bytes = Bytes::copy_from_slice(bytes);
        let len = bytes.len() as u64;
        let tail = bytes.slice(bytes.len().saturating_sub(tail)..);
        let read = AtomicU64::new(tail.len() as u64);
        PackDb::open(Opened { reader: Box::new(Self { bytes, read }), len, tail })
    }
}

impl Reader for Memory {
    fn map(&self, _range: Range<u64>) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        self.read.fetch_add(range.end - range.start, Ordering::Relaxed);
        Ok(self.bytes.slice(range.start as usize..range.end as usize))
    }

    fn read(&self, segments: Vec<Segment<'_>>, _limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        for segment in segments {
            let found = self.fetch(segment.range)?;
            match segment.into {
                Some(into) => {
                    into.copy_from_slice(&found);
                    sink(segment.index, Ok(into))?;
                }
                None => sink(segment.index, Ok(&found))?,
            }
        }
        Ok(())
    }

    fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

/// Takes what is written; full from a given length on.
#[derive(Clone, Default)]
struct Collect {
    staged: Vec<u8>,
    full_at: Option<usize>,
    committed: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Writer for Collect {
    fn append(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        pieces.iter().for_each(|piece| self.staged.extend_from_slice(piece));
        match self.full_at {
            Some(full) if self.staged.len() > full => Err(Error::new(ErrorKind::Full, "full")),
            _ => Ok(()),
        }
    }

    fn commit(self: Box<Self>) -> Result<()> {
        *self.committed.lock().unwrap() = Some(self.staged);
        Ok(())
    }
}

fn pack(records: &[(&[u8], &[u8])]) -> Vec<u8> {
    let collect = Collect::default();
    let mut writer = PackWriter::new(Box::new(collect.clone())).unwrap();
    for (key, value) in records {
        writer.put(key, Payload::from(value.to_vec())).unwrap();
    }
    writer.finish().unwrap();
    collect.committed.lock().unwrap().take().unwrap()
}

/// All records by cursor.
fn contents(db: &PackDb) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut cursor = db.cursor()?;
    let mut found = Vec::new();
    while let Some(key) = cursor.key() {
        found.push((key.to_vec(), cursor.value()?.to_vec()));
        cursor.next()?;
    }
    Ok(found)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden() {
    let bytes = pack(&[(b"c", b"hello"), (b"m", b"!")]);
    assert_eq!(hex(&bytes[..16]), "434b50545041434b0100000000000000");
    assert!(bytes[16..4096].iter().all(|&byte| byte == 0));
    let zeros = |count: usize| "00".repeat(count);
    let values = format!("68656c6c6f{}21{}", zeros(59), zeros(63));
    let index = "010063001000000000000005000000000000000100\
                 6d40100000000000000100000000000000";
    let footer_start = "434b5054464f4f5401000000";
    let numbers = "80100000000000002600000000000000020000000000000\
                   0e610000000000000000000000000000000000000";
    let end = hex(&bytes[4096..]);
    assert_eq!(&end[..256], values);
    assert_eq!(&end[256..332], index);
    assert_eq!(&end[332..356], footer_start);
    assert_eq!(&end[364..452], numbers);
    // The two checksums, as `crc32` of zlib gives them for those bytes.
    assert_eq!(&end[356..364], hex(&crc32fast::hash(&bytes[4224..4262]).to_le_bytes()));
    assert_eq!(&end[452..], hex(&crc32fast::hash(&bytes[4262..4322]).to_le_bytes()));
    assert_eq!(bytes.len(), 4326);
}

#[test]
fn values_are_aligned_and_come_back() {
    let large = vec![7; 10_000];
    let records: Vec<(&[u8], &[u8])> =
        vec![(b"a", b"x"), (b"b", &large), (b"c", b""), (b"d", &large[..4096]), (b"e", &large[..4095])];
    let bytes = pack(&records);
    for tail in [64, 100, 1 << 10, bytes.len()] {
        let db = Memory::open(&bytes, tail).unwrap();
        let expected: Vec<_> = records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(contents(&db).unwrap(), expected, "{tail}");
        let offsets: Vec<u64> = (0..5).map(|number| db.index().entry(number).unwrap().1.start).collect();
        assert_eq!(offsets, [4096, 8192, 18240, 20480, 24576], "{tail}");
        assert_eq!(db.get(b"b").unwrap().unwrap(), large);
        assert_eq!(db.get(b"bb").unwrap(), None);
        // This store has no memory to lend.
        assert_eq!(db.map(b"b", b"b").unwrap(), None);
    }
}

#[test]
fn cursor_seeks_and_stays_past_the_end() {
    let bytes = pack(&[(b"a", b"1"), (b"c", b"3")]);
    let db = Memory::open(&bytes, 4096).unwrap();
    let mut cursor = db.cursor().unwrap();
    cursor.seek(b"b").unwrap();
    assert_eq!(cursor.key(), Some(&b"c"[..]));
    cursor.next().unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.key(), None);
    assert_eq!(cursor.value().unwrap_err().kind(), ErrorKind::InvalidInput);
    cursor.seek(b"a").unwrap();
    assert_eq!(&cursor.value().unwrap()[..], b"1");
}

#[test]
fn an_empty_pack_is_a_db() {
    let db = Memory::open(&pack(&[]), 64).unwrap();
    assert_eq!(contents(&db).unwrap(), []);
    assert_eq!(db.get(b"a").unwrap(), None);
}

#[test]
fn reads_tell_of_each_failure_and_go_on() {
    let large = vec![7; 5000];
    let bytes = pack(&[(b"a", b"value"), (b"b", &large)]);
    for tail in [64, 1 << 20] {
        let db = Memory::open(&bytes, tail).unwrap();
        let mut into = [0; 3];
        let reads = vec![
            Read { key: b"a", range: 1..4, into: Some(&mut into) },
            Read { key: b"a", range: 0..6, into: None },
            Read { key: b"x", range: 0..0, into: None },
            Read { key: b"b", range: 4990..5000, into: None },
            Read { key: b"b", range: Range { start: 3, end: 2 }, into: None },
        ];
        let seen = Mutex::new(BTreeMap::new());
        let sink = |index: usize, found: Result<&[u8]>| {
            let found = found.map(<[u8]>::to_vec).map_err(|error| error.kind());
            assert_eq!(seen.lock().unwrap().insert(index, found), None);
            Ok(())
        };
        // A range that ends before it begins is the caller's mistake.
        let error = db.read(reads, &Limits::default(), &sink).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        seen.lock().unwrap().clear();
        let reads = vec![
            Read { key: b"a", range: 1..4, into: Some(&mut into) },
            Read { key: b"a", range: 0..6, into: None },
            Read { key: b"x", range: 0..0, into: None },
            Read { key: b"b", range: 4990..5000, into: None },
        ];
        db.read(reads, &Limits::default(), &sink).unwrap();
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen[&0], Ok(b"alu".to_vec()));
        assert_eq!(seen[&1], Err(ErrorKind::Corrupt));
        assert_eq!(seen[&2], Err(ErrorKind::Corrupt));
        assert_eq!(seen[&3], Ok(vec![7; 10]));
        assert_eq!(&into, b"alu");
    }
}

#[test]
fn a_pack_cut_short_anywhere_is_corrupt() {
    let bytes = pack(&[(b"a", b"value"), (b"b", &[1; 5000])]);
    for len in 0..bytes.len() {
        for tail in [64, 150, usize::MAX] {
            let error = Memory::open(&bytes[..len], tail).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}: {error}");
        }
    }
}

#[test]
fn bytes_after_the_end_are_corrupt() {
    let mut bytes = pack(&[(b"a", b"value")]);
    let footer = bytes[bytes.len() - 64..].to_vec();
    bytes.extend_from_slice(&footer);
    assert_eq!(Memory::open(&bytes, usize::MAX).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(Memory::open(&[0x5a; 10_000], 4096).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A flipped bit is found on opening, or it is in a value (which has its checksum in the manifest), or it is in the header or
/// the padding, which hold nothing.
#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let records: Vec<(&[u8], &[u8])> = vec![(b"a", b"value"), (b"b", &[1; 4100]), (b"m", b"manifest")];
    let bytes = pack(&records);
    let clean = Memory::open(&bytes, usize::MAX).unwrap();
    let values: Vec<Range<u64>> = (0..3).map(|number| clean.index().entry(number).unwrap().1).collect();
    let index = values[2].end.next_multiple_of(64);
    let expected = contents(&clean).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let opened = Memory::open(&damaged, usize::MAX);
        if at as u64 >= index {
            let error = opened.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
            continue;
        }
        let in_value = values.iter().any(|value| value.contains(&(at as u64)));
        assert_eq!(contents(&opened.unwrap()).unwrap() == expected, !in_value, "{at}");
    }
}

/// Wrong contents under right checksums: what a buggy or hostile writer could make.
#[test]
fn an_index_that_lies_is_corrupt() {
    let lies: [&[(&[u8], u64, u64)]; 6] = [
        &[(b"b", 4096, 1), (b"a", 4160, 1)],
        &[(b"a", 4096, 1), (b"a", 4160, 1)],
        &[(b"", 4096, 1)],
        &[(b"a", 0, 10)],
        &[(b"a", 4096, u64::MAX)],
        &[(b"a", 4096, 100), (b"b", 4160, 1)],
    ];
    for lie in lies {
        let mut index = super::format::IndexBuilder::default();
        for &(key, offset, len) in lie {
            index.push(key, offset, len).unwrap();
        }
        let mut bytes = super::format::encode_header().to_vec();
        bytes.resize(8192, 0);
        let (index, footer) = index.finish(8192);
        bytes.extend_from_slice(&index);
        bytes.extend_from_slice(&footer);
        let error = Memory::open(&bytes, usize::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{lie:?}: {error}");
    }
}

#[test]
fn what_failed_is_not_committed() {
    let collect = Collect { full_at: Some(5000), ..Collect::default() };
    let mut writer = PackWriter::new(Box::new(collect.clone())).unwrap();
    writer.put(b"a", Payload::from(vec![0; 100])).unwrap();
    assert_eq!(writer.put(b"b", Payload::from(vec![0; 5000])).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(*collect.committed.lock().unwrap(), None);
}

#[test]
fn keys_out_of_order_are_refused() {
    let mut writer = PackWriter::new(Box::new(Collect::default())).unwrap();
    writer.put(b"b", Payload::new()).unwrap();
    for key in [&b"a"[..], b"b", b"", &[b'z'; 70_000]] {
        assert!(writer.put(key, Payload::new()).is_err());
    }
}
