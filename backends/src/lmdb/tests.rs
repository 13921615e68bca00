//! What is special to LMDB; the contract is tested for all backends alike elsewhere.

#![expect(clippy::disallowed_methods, reason = "liblmdb writes numbers in the order of the machine")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ::lmdb::{Cursor as _, DatabaseFlags, Environment, EnvironmentFlags, Transaction as _, WriteFlags};
use ckpt_engine::db::{Db, Driver, DriverOptions, Limits, Payload, Read, Source, Transaction, WritePlan};
use ckpt_engine::{Error, ErrorKind};

use super::LmdbDriver;
use super::config::{MAX_KEY_LEN, MAX_VALUE_LEN};

// liblmdb writes all pages of a value in one call.
const _: () = assert!(MAX_VALUE_LEN + (1 << 16) <= (1 << 31) - (1 << 16));

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

const PLAN: WritePlan = WritePlan { records: 0, bytes: 0, limits: Limits { threads: 2, memory: 1 << 20 } };

fn driver() -> LmdbDriver {
    LmdbDriver::from_options(DriverOptions::new()).unwrap()
}

fn source(dir: &Path) -> Source {
    Source::new(dir.to_str().unwrap(), "n.1")
}

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed * 31 + at * 7 + at / 251) as u8).collect()
}

fn records(lens: impl IntoIterator<Item = usize>) -> Records {
    let lens = lens.into_iter().enumerate();
    lens.map(|(number, len)| (format!("blob/{number:06}").into_bytes(), value(number, len))).collect()
}

fn mixed(count: usize) -> Records {
    records((0..count).map(|number| [0, 1, 10, 300, 2000, 2021, 2022, 4080, 4081, 9000][number % 10]))
}

fn put_all(transaction: &mut dyn Transaction, records: &Records) -> ckpt_engine::Result<()> {
    for (key, value) in records {
        let mut payload = Payload::new();
        for piece in value.chunks(value.len() / 2 + 1) {
            payload.push(piece.to_vec().into());
        }
        transaction.put(key, payload)?;
    }
    Ok(())
}

fn write(driver: &LmdbDriver, source: &Source, records: &Records) {
    driver.write(source, &PLAN, &mut |transaction| put_all(transaction, records)).unwrap();
}

/// What the cursor finds, or the first error.
fn read_all(db: &dyn Db) -> ckpt_engine::Result<Records> {
    let mut cursor = db.cursor()?;
    let mut found = Records::new();
    while let Some(key) = cursor.key() {
        found.insert(key.to_vec(), cursor.value()?.to_vec());
        cursor.next()?;
    }
    Ok(found)
}

/// Checks every way to read.
fn check(db: &dyn Db, expected: &Records) {
    assert!(read_all(db).unwrap() == *expected);
    let keys: Vec<_> = expected.keys().collect();
    let mut buffers: Vec<_> = expected.values().map(|value| vec![0xEE; value.len()]).collect();
    let into = expected.iter().zip(&mut buffers);
    let reads = into.map(|((key, value), into)| Read { key, range: 0..value.len() as u64, into: Some(into) });
    let seen = Mutex::new(0);
    db.read(reads.collect(), &PLAN.limits, &|index, found| {
        assert_eq!(found.unwrap(), expected[keys[index]]);
        *seen.lock().unwrap() += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(seen.into_inner().unwrap(), expected.len());
    assert!(buffers.iter().eq(expected.values()));
    for (key, value) in expected {
        assert_eq!(db.map(key, key).unwrap().unwrap(), *value);
        assert_eq!(db.get(key).unwrap().unwrap(), *value);
    }
    assert_eq!(db.get(b"blob/").unwrap(), None);
    assert_eq!(db.map(b"zzz", b"zzz").unwrap(), None);
}

/// What liblmdb reads.
fn read_by_liblmdb(path: &Path) -> Records {
    let flags = EnvironmentFlags::READ_ONLY | EnvironmentFlags::NO_LOCK;
    let environment = Environment::new().set_flags(flags).open(path).unwrap();
    let database = environment.open_db(None).unwrap();
    let transaction = environment.begin_ro_txn().unwrap();
    let mut cursor = transaction.open_ro_cursor(database).unwrap();
    cursor.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

#[test]
fn what_is_written_any_lmdb_reads() {
    let cases = [
        Records::new(),
        mixed(1),
        mixed(100),
        records([5 << 20, 0, 3 << 20, 17, (9 << 20) + 1]),
        records(vec![40; 20_000]),
        records((0..3000).map(|number| number % 600)),
    ];
    for (number, expected) in cases.iter().enumerate() {
        // In the ordinary way, and past the page cache.
        for bytes in [0, 64 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let source = source(dir.path());
            let limits = Limits { threads: 2, memory: 64 << 20 };
            let plan = WritePlan { records: expected.len() as u64, bytes, limits };
            driver().write(&source, &plan, &mut |transaction| put_all(transaction, expected)).unwrap();
            assert_eq!(names(dir.path()), ["n.1"]);
            assert_eq!(names(&dir.path().join("n.1")), ["data.mdb"]);
            check(&*driver().open(&source).unwrap(), expected);
            assert!(read_by_liblmdb(&dir.path().join("n.1")) == *expected, "case {number}");
        }
    }
}

/// Keys of every length make branch pages as deep as they get, and every number of children is there for some page.
#[test]
fn branches_of_any_shape_are_read_and_changed_by_any_lmdb() {
    for count in [8, 15, 29, 50, 51, 52, 53, 54, 55, 56, 57, 58, 400, 6000] {
        any_lmdb_reads_and_changes(count);
    }
}

fn any_lmdb_reads_and_changes(count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut expected = Records::new();
    for number in 0..count {
        let mut key = format!("{number:06}").into_bytes();
        key.resize(6 + number * 37 % (MAX_KEY_LEN - 5), b'k');
        expected.insert(key, value(number, number * 101 % 5000));
    }
    write(&driver(), &source, &expected);
    assert!(read_all(&*driver().open(&source).unwrap()).unwrap() == expected, "{count}");
    let path = dir.path().join("n.1");
    assert!(read_by_liblmdb(&path) == expected, "{count}");
    // It puts, deletes, merges pages and takes up again those that it freed.
    let environment = Environment::new().set_map_size(1 << 28).open(&path).unwrap();
    let database = environment.open_db(None).unwrap();
    assert_eq!(environment.stat().unwrap().entries(), count);
    for round in 0..3 {
        let mut transaction = environment.begin_rw_txn().unwrap();
        for (key, _) in expected.clone().iter().skip(round).step_by(3) {
            transaction.del(database, key, None).unwrap();
            expected.remove(key);
        }
        let (key, value) = (format!("000003 {round}").into_bytes(), value(round, 10_000));
        transaction.put(database, &key, &value, WriteFlags::empty()).unwrap();
        expected.insert(key, value);
        transaction.commit().unwrap();
    }
    drop(environment);
    assert!(read_by_liblmdb(&path) == expected, "{count}");
    assert!(read_all(&*driver().open(&source).unwrap()).unwrap() == expected, "{count}");
}

#[test]
fn what_is_too_large_or_out_of_order_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let huge = |pieces: usize| {
        let mut payload = Payload::new();
        let piece = bytes::Bytes::from(vec![0; 1 << 20]);
        (0..pieces).for_each(|_| payload.push(piece.clone()));
        payload
    };
    type Put = (Vec<u8>, Payload);
    let cases: [(Put, ErrorKind); 4] = [
        ((vec![b'k'; MAX_KEY_LEN + 1], Payload::new()), ErrorKind::InvalidInput),
        ((b"k".to_vec(), huge(2048)), ErrorKind::InvalidInput),
        ((b"a".to_vec(), Payload::new()), ErrorKind::Internal),
        ((Vec::new(), Payload::new()), ErrorKind::Internal),
    ];
    for ((key, value), expected) in cases {
        // An error that the body does not pass on still ends the write.
        for swallowed in [false, true] {
            let error = driver()
                .write(&source, &PLAN, &mut |transaction| {
                    transaction.put(b"b", Payload::new())?;
                    let put = transaction.put(&key, value.clone());
                    if swallowed { Ok(()) } else { put }
                })
                .unwrap_err();
            assert_eq!(error.kind(), if swallowed { ErrorKind::Closed } else { expected });
            assert!(names(dir.path()).is_empty());
        }
    }
}

#[test]
fn a_body_that_fails_or_panics_leaves_nothing_and_the_older_db() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let fail = || {
        let failed = driver().write(&source, &PLAN, &mut |transaction| {
            put_all(transaction, &mixed(200))?;
            Err(Error::unsupported("no"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            driver().write(&source, &PLAN, &mut |transaction| {
                put_all(transaction, &mixed(200))?;
                panic!("in the body")
            })
        }));
        assert!(panicked.is_err());
    };
    fail();
    assert!(names(dir.path()).is_empty());
    assert!(!driver().exists(&source).unwrap());
    write(&driver(), &source, &mixed(30));
    fail();
    assert_eq!(names(dir.path()), ["n.1"]);
    check(&*driver().open(&source).unwrap(), &mixed(30));
}

#[test]
fn a_reader_keeps_the_db_that_it_opened() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let (older, newer) = (mixed(50), records(vec![70_000; 7]));
    write(&driver(), &source, &older);
    let (open, mapped) = (driver().open(&source).unwrap(), driver().open(&source).unwrap());
    let key = &b"blob/000009"[..];
    let map = mapped.map(key, key).unwrap().unwrap();
    drop(mapped);
    driver()
        .write(&source, &PLAN, &mut |transaction| {
            put_all(transaction, &newer)?;
            check(&*driver().open(&source)?, &older);
            Ok(())
        })
        .unwrap();
    check(&*open, &older);
    check(&*driver().open(&source).unwrap(), &newer);
    driver().destroy(&source).unwrap();
    driver().destroy(&source).unwrap();
    check(&*open, &older);
    assert_eq!(map, older[key]);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn ranges_and_bytes_read() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records(vec![300_000; 64]);
    write(&driver(), &source, &expected);
    let db = driver().open(&source).unwrap();
    let opened = db.bytes_read();
    assert!(opened < 20_000, "{opened}");
    let key = &b"blob/000007"[..];
    let reads = [0..10, 1000..2000, 300_000..300_000, 299_999..300_001, Range { start: 2, end: 1 }];
    let reads = reads.map(|range| Read { key, range, into: None });
    let [a, b, empty, past, reversed] = reads;
    let error = db.read(vec![reversed], &PLAN.limits, &|_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let missing = Read { key: b"x", range: 0..0, into: None };
    db.read(vec![a, b, empty, past, missing], &PLAN.limits, &|index, found| {
        match index {
            0 => assert_eq!(found?, &expected[key][..10]),
            1 => assert_eq!(found?, &expected[key][1000..2000]),
            2 => assert_eq!(found?, b""),
            _ => assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt),
        }
        Ok(())
    })
    .unwrap();
    // The two that lie close together are read at once, with what is between them; and the header of the record once.
    assert_eq!(db.bytes_read() - opened, 2000 + 16);
    let mut cursor = db.cursor().unwrap();
    cursor.seek(b"blob/000062x").unwrap();
    assert_eq!(cursor.key(), Some(&b"blob/000063"[..]));
    cursor.next().unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.key(), None);
    assert_eq!(cursor.value().unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_is_no_environment_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (source(dir.path()), dir.path().join("n.1"));
    let list = || driver().list(dir.path().to_str().unwrap()).unwrap();
    assert!(!driver().exists(&source).unwrap());
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(&path).unwrap();
    assert_eq!(driver().exists(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(list().is_empty());
    for contents in [&b""[..], b"garbage", &[0; 10_000]] {
        fs::write(path.join("data.mdb"), contents).unwrap();
        assert!(driver().exists(&source).unwrap());
        assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(list(), ["n.1"]);
    }
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "a file").unwrap();
    assert_eq!(driver().exists(&source).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::InvalidInput);
    let error = driver().write(&source, &PLAN, &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let nowhere = dir.path().join("nowhere");
    assert_eq!(driver().list(nowhere.to_str().unwrap()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn unknown_settings_are_refused() {
    let error = LmdbDriver::from_options(DriverOptions::new().with("sync", "1")).unwrap_err();
    assert!(error.to_string().contains("it has none"), "{error}");
}

/// Two meta pages of an empty environment: liblmdb takes the page size from them.
fn empty_environment(path: &Path, page_size: usize) {
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("data.mdb"), meta_pages(page_size)).unwrap();
}

fn set(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

fn meta_pages(page_size: usize) -> Vec<u8> {
    let mut pages = vec![0; 2 * page_size];
    for (number, page) in pages.chunks_mut(page_size).enumerate() {
        page[0] = number as u8;
        set(page, 10, &8_u16.to_ne_bytes());
        set(page, 16, &0xBEEF_C0DE_u32.to_ne_bytes());
        set(page, 20, &1_u32.to_ne_bytes());
        set(page, 32, &(1_u64 << 30).to_ne_bytes());
        set(page, 40, &(page_size as u32).to_ne_bytes());
        set(page, 44, &8_u16.to_ne_bytes());
        set(page, 80, &u64::MAX.to_ne_bytes());
        set(page, 128, &u64::MAX.to_ne_bytes());
        set(page, 136, &1_u64.to_ne_bytes());
    }
    pages
}

/// liblmdb puts, replaces and deletes at random in an environment of any page size; after each transaction we read the same.
#[test]
fn what_any_lmdb_writes_is_read() {
    for page_size in [512, 1024, 2048, 4096, 16384, 32768] {
        let dir = tempfile::tempdir().unwrap();
        let (source, path) = (source(dir.path()), dir.path().join("n.1"));
        empty_environment(&path, page_size);
        check(&*driver().open(&source).unwrap(), &Records::new());
        let environment = Environment::new().set_map_size(1 << 30).open(&path).unwrap();
        let database = environment.open_db(None).unwrap();
        let mut expected = Records::new();
        let mut random = page_size as u64;
        let mut next = |bound: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % bound
        };
        let mut deepest = 0;
        for round in 0..30 {
            let mut transaction = environment.begin_rw_txn().unwrap();
            // It grows, then shrinks to nothing.
            let deletes = if round < 18 { 1 } else { 4 };
            for _ in 0..300 {
                let mut key = format!("{:03}", next(600)).into_bytes();
                key.resize(3 + key[2] as usize * 7 % 90, b'k');
                if next(5) < deletes {
                    let deleted = transaction.del(database, &key, None).is_ok();
                    assert_eq!(deleted, expected.remove(&key).is_some());
                } else {
                    let most = [20, 200, 3 * page_size][next(3)];
                    let value = value(round, next(most));
                    transaction.put(database, &key, &value, WriteFlags::empty()).unwrap();
                    expected.insert(key, value);
                }
            }
            if round == 29 {
                expected.keys().for_each(|key| transaction.del(database, key, None).unwrap());
                expected.clear();
            }
            transaction.commit().unwrap();
            deepest = deepest.max(environment.stat().unwrap().depth());
            let db = driver().open(&source).unwrap();
            if round % 5 == 0 { check(&*db, &expected) } else { assert!(read_all(&*db).unwrap() == expected) }
        }
        assert!(deepest >= if page_size <= 2048 { 3 } else { 2 }, "{page_size}: {deepest}");
    }
}

/// No liblmdb of this version makes pages of 64 KiB, but nothing in the layout forbids them.
#[test]
fn the_largest_pages_are_read() {
    let page_size = 65536;
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (source(dir.path()), dir.path().join("n.1"));
    empty_environment(&path, page_size);
    let mut file = meta_pages(page_size);
    let meta = &mut file[page_size..];
    set(meta, 94, &1_u16.to_ne_bytes());
    set(meta, 120, &1_u64.to_ne_bytes());
    set(meta, 128, &2_u64.to_ne_bytes());
    set(meta, 136, &2_u64.to_ne_bytes());
    set(meta, 144, &1_u64.to_ne_bytes());
    let mut leaf = vec![0; page_size];
    let start = page_size as u16 as usize + page_size - 16;
    leaf[0] = 2;
    set(&mut leaf, 10, &2_u16.to_ne_bytes());
    set(&mut leaf, 12, &18_u16.to_ne_bytes());
    set(&mut leaf, 14, &(start as u16).to_ne_bytes());
    set(&mut leaf, 16, &(start as u16).to_ne_bytes());
    set(&mut leaf, start, &5_u32.to_ne_bytes());
    set(&mut leaf, start + 6, &3_u16.to_ne_bytes());
    set(&mut leaf, start + 8, b"keyvalue");
    file.extend(leaf);
    fs::write(path.join("data.mdb"), file).unwrap();
    check(&*driver().open(&source).unwrap(), &Records::from([(b"key".to_vec(), b"value".to_vec())]));
}

#[test]
fn other_kinds_of_database_are_unsupported() {
    let flags = [DatabaseFlags::DUP_SORT, DatabaseFlags::REVERSE_KEY, DatabaseFlags::INTEGER_KEY];
    for (name, flags) in
        flags.map(|flags| (None, flags)).into_iter().chain([(Some("x"), DatabaseFlags::empty())])
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.1");
        fs::create_dir(&path).unwrap();
        let environment = Environment::new().set_max_dbs(1).open(&path).unwrap();
        let database = environment.create_db(name, flags).unwrap();
        let mut transaction = environment.begin_rw_txn().unwrap();
        transaction.put(database, &7_u64.to_ne_bytes(), b"value", WriteFlags::empty()).unwrap();
        transaction.commit().unwrap();
        let error = driver().open(&source(dir.path())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name:?} {flags:?} {error}");
    }
}

/// Two environments of about 30 records: ours, and one with a deep tree of small pages.
fn environments(dir: &Path) -> Vec<(PathBuf, Source, Records)> {
    let expected = records((0..30).map(|number| [0, 1, 10, 60, 200, 2100][number % 6]));
    let place = |name: &str| dir.join(name);
    let ours = Source::new(place("ours").to_str().unwrap(), "n.1");
    write(&driver(), &ours, &expected);
    let path = place("deep").join("n.1");
    empty_environment(&path, 512);
    let environment = Environment::new().set_map_size(1 << 24).open(&path).unwrap();
    let database = environment.open_db(None).unwrap();
    let lens = [0, 3, 60, 150, 200, 496, 497, 1200];
    let deep: Records = (0..32)
        .map(|number| {
            (
                format!("{number:03}{}", "k".repeat(60 + number * 5 % 100)).into(),
                value(number, lens[number % 8]),
            )
        })
        .collect();
    for part in [0, 1] {
        let mut transaction = environment.begin_rw_txn().unwrap();
        for (key, value) in deep.iter().skip(part).step_by(2) {
            transaction.put(database, key, value, WriteFlags::empty()).unwrap();
        }
        transaction.commit().unwrap();
    }
    assert!(environment.stat().unwrap().depth() >= 3);
    let source = Source::new(place("deep").to_str().unwrap(), "n.1");
    let data = |name| place(name).join("n.1/data.mdb");
    vec![(data("ours"), ours, expected), (data("deep"), source, deep)]
}

/// What became of the records of a damaged file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    right: usize,
    other_bytes: usize,
    errors: usize,
}

/// Reads in every way. Only the bytes of a value may be other ones.
fn look(source: &Source, expected: &Records) -> Outcome {
    let outcome = Mutex::new(Outcome::default());
    let db = match driver().open(source) {
        Ok(db) => db,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{error:?}");
            return Outcome { errors: expected.len(), ..Outcome::default() };
        }
    };
    let _ = read_all(&*db);
    let keys: Vec<_> = expected.keys().collect();
    let reads = expected.iter().map(|(key, value)| Read { key, range: 0..value.len() as u64, into: None });
    db.read(reads.collect(), &Limits { threads: 1, ..PLAN.limits }, &|index, found| {
        let (key, mut outcome) = (keys[index], outcome.lock().unwrap());
        let mapped = db.map(key, key).map(|value| value.unwrap_or_default());
        match found {
            Ok(found) => {
                // The value may have become longer by what fills its page; the manifest knows better.
                assert!(mapped.unwrap().starts_with(found));
                if found == expected[key] { outcome.right += 1 } else { outcome.other_bytes += 1 }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                outcome.errors += 1;
            }
        }
        Ok(())
    })
    .unwrap();
    outcome.into_inner().unwrap()
}

/// Every byte is flipped. Where it is not one of a value, what is read is right, or an error.
#[test]
fn a_flipped_byte_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    for (path, source, expected) in environments(dir.path()) {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let db = super::reader::LmdbDb::open(&path).unwrap();
        let extents: Vec<_> = expected.keys().map(|key| db.index().find(key).unwrap()).collect();
        let is_of_a_value = |at: usize| {
            let at = at as u64;
            extents.iter().any(|value| (value.offset..value.offset + value.len).contains(&at))
        };
        let (mut errors, mut other, mut harmless) = (0, 0, 0);
        for (at, byte) in bytes.iter().enumerate() {
            let mask = if at % 2 == 0 { 1 << (at / 2 % 8) } else { 0xFF };
            file.write_all_at(&[byte ^ mask], at as u64).unwrap();
            let outcome = look(&source, &expected);
            file.write_all_at(&[*byte], at as u64).unwrap();
            if outcome.other_bytes > 0 {
                assert!(is_of_a_value(at), "{} byte {at}: {outcome:?}", path.display());
                assert_eq!(outcome.other_bytes, 1);
                other += 1;
            } else if outcome.errors > 0 {
                errors += 1;
            } else {
                harmless += 1;
            }
        }
        let values: usize = expected.values().map(Vec::len).sum();
        assert_eq!(other, values);
        // No byte of a key or of a node's header goes unnoticed.
        let noticed: usize = expected.keys().map(|key| key.len() + 8).sum();
        assert!(errors > noticed, "{errors} errors, {harmless} harmless");
        assert_eq!(look(&source, &expected).right, expected.len());
    }
}

/// Several fields at once get numbers that are likely to do harm.
#[test]
fn no_damage_does_more_than_that() {
    let dir = tempfile::tempdir().unwrap();
    for (path, source, expected) in environments(dir.path()) {
        let file = File::options().write(true).open(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let page_size = u32::from_ne_bytes(*bytes[40..].first_chunk().unwrap()) as usize;
        let mut random = 1_u64;
        let mut next = |bound: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % bound
        };
        let mut opened = 0;
        for _ in 0..6000 {
            for _ in 0..=next(3) {
                let page = next(bytes.len() / page_size) * page_size;
                let at = page + [next(160), next(32), 12 + 2 * next(10), next(page_size - 8)][next(4)];
                let number = [0, 1, 2, 16, 511, 4096, 65535, u64::MAX, 1 << 32, next(64) as u64][next(10)];
                let width = [1, 2, 4, 8][next(4)];
                file.write_all_at(&number.to_le_bytes()[..width], at as u64).unwrap();
            }
            opened += usize::from(look(&source, &expected).errors < expected.len());
            file.write_all_at(&bytes, 0).unwrap();
        }
        assert!((100..5000).contains(&opened), "{opened}");
    }
}

#[test]
fn a_file_that_was_cut_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (path, source, expected) in environments(dir.path()) {
        let bytes = fs::read(&path).unwrap();
        let db = driver().open(&source).unwrap();
        for len in (0..bytes.len()).step_by(97).chain(bytes.len() - 20..bytes.len()) {
            fs::write(&path, &bytes[..len]).unwrap();
            let outcome = look(&source, &expected);
            assert_eq!(outcome.other_bytes, 0, "{len}");
            assert!(outcome.errors > 0 || len > bytes.len() - 512, "{len} {outcome:?}");
        }
        // Cut while it is open: reads of the file tell.
        fs::write(&path, &bytes[..1000]).unwrap();
        let last = expected.keys().next_back().unwrap();
        assert_eq!(db.get(last).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(db.map(last, last).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn reading_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    write(&driver(), &source, &mixed(30));
    let path = dir.path().join("n.1");
    let before = fs::read(path.join("data.mdb")).unwrap();
    let (a, b) = (driver().open(&source).unwrap(), driver().open(&source).unwrap());
    check(&*a, &mixed(30));
    check(&*b, &mixed(30));
    assert_eq!(names(&path), ["data.mdb"]);
    assert!(fs::read(path.join("data.mdb")).unwrap() == before);
}
