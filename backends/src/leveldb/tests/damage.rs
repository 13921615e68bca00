//! Databases that are damaged, cut short, or of something else.

use std::os::unix::fs::FileExt;

use super::super::format::edit::VersionEdit;
use super::super::format::table::{FOOTER, decode_footer, open_block};
use super::super::format::{BYTEWISE, log};
use super::*;
use crate::table::{Block, Index, TRAILER, mask};

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    names(dir).into_iter().map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect()
}

/// What every way to read finds, or the first error.
fn read_every_way(dir: &Path, keys: &Records) -> ckpt_engine::Result<Records> {
    let db = driver().open(&source(dir))?;
    let all = read_all(&*db)?;
    for key in keys.keys() {
        assert_eq!(db.get(key)?.as_deref(), all.get(key).map(Vec::as_slice));
    }
    assert_eq!(read_many(&*db, &all)?, all);
    Ok(all)
}

fn small(log_records: usize) -> Records {
    let mut records = Records::new();
    let mut put = |key: &str, value: &str| drop(records.insert(key.into(), value.into()));
    for (key, value) in [("a", "one"), ("ab", "two"), ("b", ""), ("c", "four")] {
        put(key, value);
    }
    if log_records > 0 {
        put("ab", "TWO");
    }
    if log_records > 1 {
        put("d", "five");
    }
    if log_records > 2 {
        put("e", &"six".repeat(10));
    }
    if log_records > 1 {
        records.remove(&b"b"[..]);
    }
    records
}

/// Flips bits of every `step`th byte of every file: what comes back is right, or the error is `Corrupt`.
fn flip(dir: &Path, path: &Path, expected: &Records, step: usize, bits: &[u8]) {
    let (mut found, mut harmless) = (0, Vec::new());
    for (name, bytes) in files(path) {
        // In place: a file that is truncated and written anew is flushed to the disk each time.
        let file = fs::OpenOptions::new().write(true).open(path.join(&name)).unwrap();
        for at in (0..bytes.len()).step_by(step) {
            for bit in bits {
                file.write_all_at(&[bytes[at] ^ bit], at as u64).unwrap();
                match read_every_way(dir, expected) {
                    Ok(read) => {
                        assert!(read == *expected, "{name} byte {at} ^ {bit}: wrong data");
                        harmless.push((name.clone(), at));
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name} byte {at} ^ {bit}: {error}");
                        found += 1;
                    }
                }
            }
            file.write_all_at(&[bytes[at]], at as u64).unwrap();
        }
    }
    // In a table: the block of names, which are of no use to us, where that is, and the zeros before the number.
    assert!(harmless.iter().all(|(name, _)| name.ends_with(".ldb")), "{harmless:?}");
    assert!(found > 4 * harmless.len() && found > 300, "found {found}, harmless {}", harmless.len());
}

#[test]
fn a_flipped_bit_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let path = fixture(dir.path(), "small");
    assert_eq!(read_every_way(dir.path(), &small(3)).unwrap(), small(3));
    flip(dir.path(), &path, &small(3), 1, &[1, 2, 4, 8, 16, 32, 64, 128, 255]);
}

#[test]
fn a_flipped_bit_of_many_tables_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    flip(dir.path(), &fixture(dir.path(), "snappy"), &expected("snappy"), 37, &[8]);
}

#[test]
fn a_flipped_bit_of_what_we_wrote_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let expected = records((0..12).map(|number| number * 7));
    let options = [("block_bytes", "150"), ("table_bytes", "500")];
    write(&driver_with(&options), &source(dir.path()), &expected);
    flip(dir.path(), &dir.path().join("n.1"), &expected, 1, &[1, 128]);
}

/// Where the parts of a file are that have a checksum: where that is, and what it is of.
fn checked(name: &str, bytes: &[u8]) -> Vec<(usize, std::ops::Range<usize>)> {
    let mut parts = Vec::new();
    if name.ends_with(".ldb") {
        let footer = bytes.len() - FOOTER;
        let index = decode_footer(&bytes[footer..], footer as u64).unwrap();
        let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
        let part = range(index.offset, index.len + TRAILER as u64);
        let index_block = Block::new(open_block(bytes[part].to_vec()).unwrap()).unwrap();
        let blocks = Index::new(index_block, footer as u64).unwrap();
        let data = blocks.handle(&blocks.seek(b"").unwrap().unwrap()).unwrap();
        for block in [index, data] {
            let end = range(block.offset, block.len + 1);
            parts.push((end.end, end));
        }
    } else if name != "CURRENT" {
        let mut at = 0;
        while at < bytes.len() {
            let len = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
            parts.push((at, at + 6..at + 7 + len));
            at += 7 + len;
        }
    }
    parts
}

/// Whoever makes a checksum right can make a database say what they want: it may be read as another one, but no more.
#[test]
fn what_no_checksum_shows_is_no_panic_and_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = fixture(dir.path(), "small");
    let (mut refused, mut read) = (0, 0);
    for (name, bytes) in files(&path) {
        let file = fs::OpenOptions::new().write(true).open(path.join(&name)).unwrap();
        for (checksum, part) in checked(&name, &bytes) {
            for at in part.clone() {
                for bits in [1, 2, 4, 8, 16, 32, 64, 128, 255, bytes[at], !bytes[at]] {
                    let mut changed = bytes.clone();
                    changed[at] ^= bits;
                    let crc = mask(crc32c::crc32c(&changed[part.clone()]));
                    changed[checksum..checksum + 4].copy_from_slice(&crc.to_le_bytes());
                    file.write_all_at(&changed, 0).unwrap();
                    let found = driver().open(&source(dir.path())).and_then(|db| {
                        small(3).keys().for_each(|key| drop(db.get(key)));
                        let _ = read_many(&*db, &small(3));
                        read_all(&*db)
                    });
                    *if found.is_ok() { &mut read } else { &mut refused } += 1;
                }
            }
        }
        file.write_all_at(&bytes, 0).unwrap();
    }
    assert!(refused > 500 && read > 500, "refused {refused}, read {read}");
}

/// Every file is cut at every byte. A log that is cut is that of a LevelDB that died: it ends with the last whole batch. All other
/// files are written once, or as the manifest, must not be cut.
#[test]
fn a_file_that_is_cut_short_is_an_error_or_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = fixture(dir.path(), "small");
    // Where the batches of the log end: the header and these bytes each.
    let ends: Vec<usize> = [7 + 12 + 1 + 3 + 4, 7 + 12 + 3 + 8, 7 + 12 + 1 + 2 + 31]
        .into_iter()
        .scan(0, |end, len| {
            *end += len;
            Some(*end)
        })
        .collect();
    for (name, bytes) in files(&path) {
        for len in (0..bytes.len()).rev() {
            fs::OpenOptions::new().write(true).open(path.join(&name)).unwrap().set_len(len as u64).unwrap();
            let found = read_every_way(dir.path(), &small(3));
            if name.ends_with(".log") {
                let whole = ends.iter().filter(|end| **end <= len).count();
                assert_eq!(found.unwrap(), small(whole), "log of {len} bytes");
            } else {
                assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt, "{name} of {len} bytes");
            }
        }
        if name.ends_with(".log") {
            assert_eq!(ends[2], bytes.len());
        }
        fs::write(path.join(&name), &bytes).unwrap();
    }
}

#[test]
fn a_file_that_is_longer_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let path = fixture(dir.path(), "small");
    for (name, bytes) in files(&path) {
        for more in [&[0][..], &[0; 40_000], b"something else"] {
            fs::write(path.join(&name), [&bytes[..], more].concat()).unwrap();
            match read_every_way(dir.path(), &small(3)) {
                Ok(found) => assert_eq!(found, small(3), "{name}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}"),
            }
        }
        fs::write(path.join(&name), &bytes).unwrap();
    }
}

#[test]
fn a_file_that_is_missing_is_an_error() {
    for name in ["small", "raw"] {
        let dir = tempfile::tempdir().unwrap();
        let path = fixture(dir.path(), name);
        for (name, bytes) in files(&path) {
            fs::remove_file(path.join(&name)).unwrap();
            let error = driver().open(&source(dir.path())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
            fs::create_dir(path.join(&name)).unwrap();
            assert!(driver().open(&source(dir.path())).is_err());
            fs::remove_dir(path.join(&name)).unwrap();
            fs::write(path.join(&name), bytes).unwrap();
        }
        driver().open(&source(dir.path())).unwrap();
    }
}

#[test]
fn damage_stays_within_its_block() {
    let dir = tempfile::tempdir().unwrap();
    let expected = mixed(30);
    write(&driver(), &source(dir.path()), &expected);
    let path = dir.path().join("n.1/000002.ldb");
    let bytes = fs::read(&path).unwrap();
    let damaged = &expected[&b"blob/000018"[..]];
    let at = bytes.windows(damaged.len()).position(|window| window == damaged).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    let db = driver().open(&source(dir.path())).unwrap();
    for (key, value) in &expected {
        match db.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(error) => assert_eq!((error.kind(), &key[..]), (ErrorKind::Corrupt, &b"blob/000018"[..])),
        }
    }
    let reads = expected.keys().map(|key| Read { key, range: 0..0, into: None });
    let failed = Mutex::new(Vec::new());
    db.read(reads.collect(), &PLAN.limits, &|index, found| {
        if let Err(error) = found {
            assert!(
                error.to_string().contains("checksum") && error.to_string().contains("000002.ldb"),
                "{error}"
            );
            failed.lock().unwrap().push(index);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(failed.into_inner().unwrap(), [18]);
}

#[test]
fn what_is_no_database_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (source(dir.path()), dir.path().join("n.1"));
    assert!(!driver().exists(&source).unwrap());
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(&path).unwrap();
    assert_eq!(driver().exists(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    for current in
        ["garbage", "", "\n", "MANIFEST-000001", "MANIFEST-000001\n", "MANIFEST-\n", "../MANIFEST-000001\n"]
    {
        fs::write(path.join("CURRENT"), current).unwrap();
        assert!(driver().exists(&source).unwrap());
        assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt, "{current}");
    }
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "a file").unwrap();
    assert_eq!(driver().exists(&source).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::InvalidInput);
}

fn write_manifest(path: &Path, edits: &[Vec<u8>]) {
    let mut manifest = Vec::new();
    edits.iter().for_each(|edit| log::append(&mut manifest, edit));
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("MANIFEST-000001"), manifest).unwrap();
    fs::write(path.join("CURRENT"), "MANIFEST-000001\n").unwrap();
}

fn first_edit() -> VersionEdit {
    VersionEdit {
        comparator: Some(BYTEWISE.to_vec()),
        log: Some(0),
        next_file: Some(2),
        last_sequence: Some(0),
        ..VersionEdit::default()
    }
}

#[test]
fn another_order_of_keys_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n.1");
    write_manifest(&path, &[first_edit().encode()]);
    assert_eq!(read_every_way(dir.path(), &Records::new()).unwrap(), Records::new());
    let edit = VersionEdit { comparator: Some(b"idb_cmp1".to_vec()), ..first_edit() };
    write_manifest(&path, &[edit.encode()]);
    let error = driver().open(&source(dir.path())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("`idb_cmp1`"), "{error}");
    for edit in [
        VersionEdit { comparator: None, ..first_edit() },
        VersionEdit { log: None, ..first_edit() },
        VersionEdit { next_file: None, ..first_edit() },
        VersionEdit { last_sequence: None, ..first_edit() },
    ] {
        write_manifest(&path, &[edit.encode()]);
        assert_eq!(driver().open(&source(dir.path())).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_rocksdb_database_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (source(dir.path()), dir.path().join("n.1"));
    // The first record of what RocksDB 11 writes: the identity of the database; then the comparator and other fields.
    write_manifest(&path, &[b"\x81\x40\x242f608370-dd09-4acf-8a6b-ac9c97ba313a".to_vec()]);
    let told = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("use db_type `rocksdb`"), "{error}");
    };
    told(driver().open(&source).unwrap_err());
    assert!(driver().exists(&source).unwrap());
    fs::write(path.join("IDENTITY"), "2f608370-dd09-4acf-8a6b-ac9c97ba313a").unwrap();
    told(driver().exists(&source).unwrap_err());
    assert_eq!(driver().list(dir.path().to_str().unwrap()).unwrap(), [""; 0]);
    // A table of RocksDB's own kind.
    let path = fixture(dir.path(), "small");
    let table = path.join("000005.ldb");
    let mut bytes = fs::read(&table).unwrap();
    let at = bytes.len() - 8;
    bytes[at..].copy_from_slice(&0x88e2_41b7_85f4_cff7_u64.to_le_bytes());
    fs::write(table, bytes).unwrap();
    told(driver().open(&source).unwrap_err());
}
