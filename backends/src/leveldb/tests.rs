//! What is special to LevelDB; the contract is tested for all backends alike elsewhere.

mod damage;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ckpt_engine::db::{Db, Driver, DriverOptions, Limits, Payload, Read, Source, Transaction, WritePlan};
use ckpt_engine::{Error, ErrorKind};

use super::LevelDriver;
use super::config::{MAX_BLOCK_BYTES, MAX_KEY_LEN, MAX_VALUE_LEN};
use crate::store::fs::faults::{Faults, Plan, Step};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

const PLAN: WritePlan = WritePlan { records: 0, bytes: 0, limits: Limits { threads: 2, memory: 1 << 20 } };

/// Databases that LevelDB wrote: see `make.py` there.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/leveldb/fixtures");

/// And Caffe2.
const CAFFE2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/caffe2/leveldb");

fn driver_with(options: &[(&str, &str)]) -> LevelDriver {
    let options =
        options.iter().fold(DriverOptions::new(), |options, (name, value)| options.with(*name, *value));
    LevelDriver::from_options(options).unwrap()
}

fn driver() -> LevelDriver {
    driver_with(&[])
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
    records((0..count).map(|number| [0, 1, 10, 300, 2000, 65_000, 65_536, 40, 200_000, 9000][number % 10]))
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

fn write(driver: &LevelDriver, source: &Source, records: &Records) {
    driver.write(source, &PLAN, &mut |transaction| put_all(transaction, records)).unwrap();
}

/// What the cursor finds, or the first error.
fn read_all(db: &dyn Db) -> ckpt_engine::Result<Records> {
    let mut cursor = db.cursor()?;
    let mut found = Records::new();
    while let Some(key) = cursor.key() {
        let value = cursor.value()?;
        assert_eq!(cursor.value_len()?, value.len() as u64);
        assert_eq!(found.insert(key.to_vec(), value.to_vec()), None, "keys come once");
        cursor.next()?;
    }
    Ok(found)
}

/// What `read` finds of whole values, or the first error.
fn read_many(db: &dyn Db, wanted: &Records) -> ckpt_engine::Result<Records> {
    let keys: Vec<_> = wanted.keys().collect();
    let reads = wanted.iter().map(|(key, value)| Read { key, range: 0..value.len() as u64, into: None });
    let found = Mutex::new(Records::new());
    db.read(reads.collect(), &PLAN.limits, &|index, value| {
        found.lock().unwrap().insert(keys[index].clone(), value?.to_vec());
        Ok(())
    })?;
    Ok(found.into_inner().unwrap())
}

/// Checks every way to read.
fn check(db: &dyn Db, expected: &Records) {
    assert!(read_all(db).unwrap() == *expected);
    assert!(read_many(db, expected).unwrap() == *expected);
    let mut buffers: Vec<_> = expected.values().map(|value| vec![0xEE; value.len().div_ceil(2)]).collect();
    let into = expected.iter().zip(&mut buffers);
    let reads = into.map(|((key, value), into)| Read {
        key,
        range: value.len() as u64 / 2..value.len() as u64,
        into: Some(into),
    });
    db.read(reads.collect(), &PLAN.limits, &|_, found| found.map(drop)).unwrap();
    let halves = expected.values().map(|value| &value[value.len() / 2..]);
    assert!(buffers.iter().map(Vec::as_slice).eq(halves));
    for (key, value) in expected {
        assert_eq!(db.get(key).unwrap().unwrap(), *value);
    }
    for absent in [&b"blob/"[..], b"", b"zzzz"] {
        assert_eq!(db.get(absent).unwrap(), None);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in names(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

/// A copy of one of the databases that LevelDB wrote.
fn fixture(dir: &Path, name: &str) -> PathBuf {
    let to = dir.join("n.1");
    copy(&Path::new(FIXTURES).join(format!("{name}.leveldb")), &to);
    to
}

/// What LevelDB finds in it.
fn expected(name: &str) -> Records {
    let text = fs::read_to_string(Path::new(FIXTURES).join(format!("{name}.txt"))).unwrap();
    let record = |line: &str| {
        let mut words = line.split(' ');
        let [key, text, times] = std::array::from_fn(|_| words.next().unwrap());
        (key.into(), text.repeat(times.parse().unwrap()).into())
    };
    text.lines().map(record).collect()
}

#[test]
fn what_is_written_comes_back() {
    let cases = [
        Records::new(),
        mixed(1),
        mixed(57),
        records([1 << 20, 0, 300_000, 17, (2 << 20) + 1]),
        records(vec![40; 5000]),
        records((0..1000).map(|number| number % 600)),
    ];
    let options = [
        &[][..],
        &[("compression", "snappy")],
        &[("table_bytes", "100000"), ("block_bytes", "4096"), ("compression", "none")],
        &[("block_bytes", "0")],
    ];
    for expected in cases {
        for options in options {
            let dir = tempfile::tempdir().unwrap();
            let source = source(dir.path());
            write(&driver_with(options), &source, &expected);
            assert_eq!(names(dir.path()), ["n.1"]);
            let names = names(&dir.path().join("n.1"));
            let bytes: usize = expected.values().map(Vec::len).sum();
            let many = options.len() == 3 && bytes > 100_000;
            assert!(names.len() == 2 + usize::from(!expected.is_empty()) || many, "{names:?}");
            check(&*driver().open(&source).unwrap(), &expected);
        }
    }
}

/// More than are kept open.
#[test]
fn many_tables_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records((0..700).map(|number| number % 50));
    write(&driver_with(&[("table_bytes", "1")]), &source, &expected);
    assert_eq!(names(&dir.path().join("n.1")).len(), 702);
    check(&*driver().open(&source).unwrap(), &expected);
}

/// Bytes that LevelDB opened, took more records beside, and tidied up.
#[test]
fn a_database_has_these_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = [("a", "one"), ("ab", "two"), ("b", "")];
    write(
        &driver_with(&[("block_bytes", "65536")]),
        &source(dir.path()),
        &pairs.map(|(key, value)| (key.into(), value.into())).into(),
    );
    let table = [
        // The data block: each record's key without what it shares with the one before, then the place of the only full key.
        &b"\x00\x09\x03a\x01\x01\0\0\0\0\0\0one"[..],
        b"\x01\x09\x03b\x01\x02\0\0\0\0\0\0two",
        b"\x00\x09\x00b\x01\x03\0\0\0\0\0\0\0\0\0\0\x01\0\0\0",
        b"\0\x42\xfc\x9e\xd2",
        // The block of names, of which there are none.
        b"\0\0\0\0\x01\0\0\0\0\xc0\xf2\xa1\xb0",
        // The index: the last key of the data block, and where that is.
        b"\x00\x09\x02b\x01\x03\0\0\0\0\0\0\x00\x32\0\0\0\0\x01\0\0\0\0\x62\x06\xa3\x31",
        b"\x37\x08\x44\x16",
        &[0; 36],
        b"\x57\xfb\x80\x8b\x24\x75\x47\xdb",
    ];
    let manifest = [
        &b"\x4f\x5d\xa6\xcc\x3d\0\x01"[..],
        b"\x01\x1aleveldb.BytewiseComparator\x02\x00\x09\x00\x03\x03\x04\x03",
        b"\x07\x06\x02\x8f\x01\x09a\x01\x01\0\0\0\0\0\0\x09b\x01\x03\0\0\0\0\0\0",
    ];
    assert_eq!(names(&dir.path().join("n.1")), ["000002.ldb", "CURRENT", "MANIFEST-000001"]);
    let file = |name: &str| fs::read(dir.path().join("n.1").join(name)).unwrap();
    assert_eq!(file("CURRENT"), b"MANIFEST-000001\n");
    assert_eq!(file("000002.ldb").escape_ascii().to_string(), table.concat().escape_ascii().to_string());
    assert_eq!(
        file("MANIFEST-000001").escape_ascii().to_string(),
        manifest.concat().escape_ascii().to_string()
    );
}

#[test]
fn what_leveldb_wrote_is_read() {
    for name in ["raw", "snappy"] {
        let dir = tempfile::tempdir().unwrap();
        let path = fixture(dir.path(), name);
        let expected = expected(name);
        assert_eq!(expected.len(), 296);
        check(&*driver().open(&source(dir.path())).unwrap(), &expected);
        // The name that tables had until 2013.
        for name in names(&path) {
            if let Some(stem) = name.strip_suffix(".ldb") {
                fs::rename(path.join(&name), path.join(format!("{stem}.sst"))).unwrap();
            }
        }
        let db = driver().open(&source(dir.path())).unwrap();
        check(&*db, &expected);
        for number in 0..=510 {
            for suffix in ["", "\0", "!"] {
                let key = format!("blob/{number:04}{suffix}").into_bytes();
                assert_eq!(db.get(&key).unwrap().as_deref(), expected.get(&key).map(Vec::as_slice));
                let mut cursor = db.cursor().unwrap();
                cursor.seek(&key).unwrap();
                for (key, value) in expected.range(key..).take(3) {
                    assert_eq!((cursor.key(), &cursor.value().unwrap()[..]), (Some(&key[..]), &value[..]));
                    cursor.next().unwrap();
                }
            }
        }
    }
}

#[test]
fn what_caffe2_wrote_is_read() {
    // As LevelDB finds it: how many records, the sum of their lengths, and a checksum of all.
    for (name, records, bytes, crc) in
        [("01_dtypes", 12, 1119, 0x8537_e92a_u32), ("07_chunked", 121, 22822, 0x02c0_fcbe)]
    {
        let db = driver().open(&Source::new(CAFFE2, format!("{name}.leveldb"))).unwrap();
        let found = read_all(&*db).unwrap();
        check(&*db, &found);
        assert_eq!((found.len(), found.values().map(Vec::len).sum()), (records, bytes));
        let mut hasher = crc32fast::Hasher::new();
        found
            .iter()
            .for_each(|(key, value)| [key, value].map(|bytes| hasher.update(bytes)).into_iter().collect());
        assert_eq!(hasher.finalize(), crc);
        // What it says of itself: these are its blobs, and a large one is in parts.
        let json = fs::read_to_string(Path::new(CAFFE2).join(format!("{name}.leveldb.json"))).unwrap();
        let names =
            json.lines().filter_map(|line| line.trim().strip_prefix("\"name\": \"")?.strip_suffix("\","));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        let blobs = found.keys().map(|key| String::from_utf8(key.clone()).unwrap());
        let mut blobs: Vec<_> = blobs.map(|key| key.split("#%").next().unwrap().to_owned()).collect();
        blobs.dedup();
        names.sort();
        blobs.sort();
        assert_eq!(blobs, names);
    }
}

#[test]
fn reading_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = fixture(dir.path(), "raw");
    // Another process has it open.
    fs::write(path.join("LOCK"), "").unwrap();
    let lock = fs::File::open(path.join("LOCK")).unwrap();
    lock.lock().unwrap();
    let state = || {
        let state = |name: String| {
            let found = fs::metadata(path.join(&name)).unwrap();
            (name, found.len(), found.modified().unwrap())
        };
        (
            names(&path).into_iter().map(state).collect::<Vec<_>>(),
            fs::metadata(&path).unwrap().modified().unwrap(),
        )
    };
    let before = state();
    let (a, b) = (driver().open(&source(dir.path())).unwrap(), driver().open(&source(dir.path())).unwrap());
    check(&*a, &expected("raw"));
    check(&*b, &expected("raw"));
    assert_eq!(state(), before);
    drop((a, b));
    assert!(driver().exists(&source(dir.path())).unwrap());
    assert_eq!(driver().list(dir.path().to_str().unwrap()).unwrap(), ["n.1"]);
    assert_eq!(state(), before);
}

#[test]
fn what_is_too_large_or_out_of_order_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let piece = bytes::Bytes::from(vec![0; 1 << 20]);
    let mut huge = Payload::new();
    (0..=MAX_VALUE_LEN >> 20).for_each(|_| huge.push(piece.clone()));
    let cases = [
        (vec![b'k'; MAX_KEY_LEN + 1], Payload::new(), ErrorKind::InvalidInput),
        (b"k".to_vec(), huge, ErrorKind::InvalidInput),
        (b"a".to_vec(), Payload::new(), ErrorKind::Internal),
        (Vec::new(), Payload::new(), ErrorKind::Internal),
    ];
    for (key, value, expected) in cases {
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
    let longest =
        Records::from([(vec![b'k'; MAX_KEY_LEN], b"v".to_vec()), (vec![b'k'; MAX_KEY_LEN - 1], Vec::new())]);
    write(&driver(), &source, &longest);
    check(&*driver().open(&source).unwrap(), &longest);
}

#[test]
fn a_body_that_fails_or_panics_leaves_nothing_and_the_older_db() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let fail = || {
        let failed = driver().write(&source, &PLAN, &mut |transaction| {
            put_all(transaction, &mixed(20))?;
            Err(Error::unsupported("no"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            driver().write(&source, &PLAN, &mut |transaction| {
                put_all(transaction, &mixed(20))?;
                panic!("in the body")
            })
        }));
        assert!(panicked.is_err());
    };
    fail();
    assert!(names(dir.path()).is_empty());
    write(&driver(), &source, &mixed(30));
    fail();
    assert_eq!(names(dir.path()), ["n.1"]);
    check(&*driver().open(&source).unwrap(), &mixed(30));
}

/// A full disk at any write: nothing is published or left.
#[test]
fn a_write_that_fails_fails_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let put =
        || driver_with(&[("table_bytes", "300000")]).write(&source, &PLAN, &mut |t| put_all(t, &mixed(10)));
    put().unwrap();
    let counting = Faults::under(dir.path(), Plan::Count);
    put().unwrap();
    let steps = counting.steps();
    drop(counting);
    let written = steps.iter().enumerate().filter(|(_, step)| matches!(step, Step::Write | Step::CreateFile));
    assert!(written.clone().count() > 8);
    for (number, _) in written {
        let faults = Faults::under(dir.path(), Plan::FailOnce(number, 28));
        assert_eq!(put().unwrap_err().kind(), ErrorKind::Full, "{number}");
        drop(faults);
        assert_eq!(names(dir.path()), ["n.1"]);
        check(&*driver().open(&source).unwrap(), &mixed(10));
    }
}

#[test]
fn a_reader_keeps_the_db_that_it_opened() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let (older, newer) = (mixed(50), records(vec![70_000; 7]));
    write(&driver_with(&[("table_bytes", "300000")]), &source, &older);
    let open = driver().open(&source).unwrap();
    write(&driver(), &source, &newer);
    check(&*open, &older);
    check(&*driver().open(&source).unwrap(), &newer);
    driver().destroy(&source).unwrap();
    driver().destroy(&source).unwrap();
    check(&*open, &older);
    assert!(names(dir.path()).is_empty());
}

/// The older database is gone as soon as the newer one has its name: an opening that is under way must go on with the newer one.
#[test]
fn opening_while_it_is_replaced_finds_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let version = |number: usize| Records::from([(b"k".to_vec(), value(number, 3000))]);
    write(&driver(), &source, &version(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..100).for_each(|number| write(&driver(), &source, &version(number))));
        while !writer.is_finished() {
            let found = driver().open(&source).unwrap().get(b"k").unwrap().unwrap();
            assert!((0..100).any(|number| found == value(number, 3000)));
        }
    });
}

#[test]
fn blocks_are_read_once_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records((0..200).map(|number| if number == 100 { 300_000 } else { 1000 }));
    write(&driver_with(&[("block_bytes", "65536")]), &source, &expected);
    let db = driver().open(&source).unwrap();
    assert!(db.bytes_read() < 1000, "opened for {}", db.bytes_read());
    let before = db.bytes_read();
    read_many(&*db, &expected).unwrap();
    let read = db.bytes_read() - before;
    assert!((499_000..520_000).contains(&read), "all records for {read}");
    let before = db.bytes_read();
    let key = b"blob/000100";
    let reads = [0..10, 1000..2000].map(|range| Read { key, range, into: None });
    db.read(reads.into(), &PLAN.limits, &|_, found| found.map(drop)).unwrap();
    let read = db.bytes_read() - before;
    assert!((300_000..301_000).contains(&read), "two ranges of a record for {read}");
}

#[test]
fn a_cursor_reads_parts() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    write(&driver(), &source, &mixed(20));
    let db = driver().open(&source).unwrap();
    let mut cursor = db.cursor().unwrap();
    cursor.seek(b"blob/000008").unwrap();
    let (mut part, expected) = ([0; 50], value(8, 200_000));
    cursor.read_at(199_950, &mut part).unwrap();
    assert_eq!(part, expected[199_950..]);
    assert_eq!(cursor.read_at(199_951, &mut part).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(cursor.value_len().unwrap(), 200_000);
    cursor.seek(b"c").unwrap();
    assert_eq!((cursor.key(), cursor.value().unwrap_err().kind()), (None, ErrorKind::InvalidInput));
    cursor.next().unwrap();
    cursor.seek(b"blob/00001").unwrap();
    assert_eq!(cursor.key(), Some(&b"blob/000010"[..]));
}

#[test]
fn settings_are_checked() {
    let refused = |name: &str, value: &str| {
        let options = DriverOptions::new().with(name, value);
        LevelDriver::from_options(options).unwrap_err().to_string()
    };
    assert!(refused("cache", "1").contains("block_bytes, table_bytes, compression"));
    assert!(refused("compression", "zstd").contains("`zstd`"));
    assert!(refused("block_bytes", &(MAX_BLOCK_BYTES + 1).to_string()).contains("too large"));
}
