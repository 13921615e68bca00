//! What is special to RocksDB; the contract is tested for all backends alike elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use ckpt_engine::ErrorKind;
use ckpt_engine::db::{Db, Driver, DriverOptions, Limits, Payload, Read, Source, WritePlan};

use super::RocksDriver;
use super::config::Config;
use super::reader::RocksDb;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

const PLAN: WritePlan = WritePlan { records: 0, bytes: 0, limits: Limits { threads: 2, memory: 1 << 20 } };

fn driver() -> RocksDriver {
    RocksDriver::from_options(DriverOptions::new()).unwrap()
}

fn source(dir: &Path) -> Source {
    Source::new(dir.to_str().unwrap(), "n.1")
}

fn records(count: u32, len: usize) -> Records {
    let value = |number: u32| (0..len).map(|at| (number as usize * 31 + at * 7) as u8).collect();
    (0..count).map(|number| (number.to_be_bytes().to_vec(), value(number))).collect()
}

fn write(driver: &RocksDriver, source: &Source, records: &Records) {
    write_planned(driver, source, &PLAN, records);
}

fn write_planned(driver: &RocksDriver, source: &Source, plan: &WritePlan, records: &Records) {
    let mut body = |transaction: &mut dyn ckpt_engine::db::Transaction| {
        for (key, value) in records {
            let (a, b) = value.split_at(value.len() / 2);
            let mut payload = Payload::new();
            payload.push(a.to_vec().into());
            payload.push(b.to_vec().into());
            transaction.put(key, payload)?;
        }
        Ok(())
    };
    driver.write(source, plan, &mut body).unwrap();
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

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// The only table of a database, to be damaged: the file, its bytes, and where a value is in it.
fn find(path: &Path, value: &[u8]) -> (fs::File, Vec<u8>, usize) {
    let (table, bytes) = files(path).into_iter().find(|(name, _)| name.ends_with(".sst")).unwrap();
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    (fs::OpenOptions::new().write(true).open(path.join(table)).unwrap(), bytes, at)
}

#[test]
fn any_rocksdb_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records(100, 5000);
    let small_tables = DriverOptions::new().with("table_bytes", "60000").with("block_bytes", "4096");
    write(&RocksDriver::from_options(small_tables).unwrap(), &source, &expected);
    assert_eq!(read_all(&*driver().open(&source).unwrap()).unwrap(), expected);
    let path = dir.path().join("n.1");
    assert!(files(&path).keys().filter(|name| name.ends_with(".sst")).count() > 3);
    let db = ::rocksdb::DB::open_default(&path).unwrap();
    let found: Records = db
        .iterator(::rocksdb::IteratorMode::Start)
        .map(|entry| entry.unwrap())
        .map(|(k, v)| (k.into(), v.into()))
        .collect();
    assert_eq!(found, expected);
}

/// Written past the page cache, in several tables, with values that begin on a page.
#[test]
fn large_records_lie_on_pages_and_rocksdb_reads_and_checks_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let mut expected = records(16, 1_000_001);
    expected.extend([(b"small".to_vec(), b"x".to_vec()), (b"empty".to_vec(), Vec::new())]);
    let tables = DriverOptions::new().with("table_bytes", "5000000");
    let bytes = expected.values().map(|value| value.len() as u64).sum();
    let limits = Limits { threads: 2, memory: 16 << 20 };
    let plan = WritePlan { records: expected.len() as u64, bytes, limits };
    write_planned(&RocksDriver::from_options(tables).unwrap(), &source, &plan, &expected);
    let path = dir.path().join("n.1");
    let found: Vec<_> = files(&path).into_iter().filter(|(name, _)| name.ends_with(".sst")).collect();
    assert_eq!(found.len(), 4);
    let mut on_pages = 0;
    for value in expected.values().filter(|value| value.len() > 1) {
        on_pages +=
            found.iter().filter(|(_, bytes)| bytes.chunks(4096).any(|page| page == &value[..4096])).count();
    }
    assert_eq!(on_pages, 16);
    assert_eq!(read_all(&*driver().open(&source).unwrap()).unwrap(), expected);
    let mut db = ::rocksdb::DB::open_default(&path).unwrap();
    let live = db.live_files().unwrap();
    assert_eq!(live.iter().map(|file| file.num_entries).sum::<u64>(), 18);
    assert!(live.iter().all(|file| file.num_deletions == 0));
    // It rewrites all of them, and checks every block and the number of records.
    db.compact_range(None::<&[u8]>, None::<&[u8]>);
    for (key, value) in &expected {
        assert!(db.get(key).unwrap().as_deref() == Some(&value[..]));
    }
    drop(db);
    db = ::rocksdb::DB::open_default(&path).unwrap();
    assert_eq!(db.iterator(::rocksdb::IteratorMode::Start).count(), 18);
}

#[test]
fn reading_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    write(&driver(), &source, &records(10, 100));
    let path = dir.path().join("n.1");
    let before = files(&path);
    let names: Vec<&str> = before.keys().map(String::as_str).collect();
    assert!(
        !names.iter().any(|name| name.starts_with("LOG") || *name == "LOCK" || *name == "tables"),
        "{names:?}"
    );
    let (a, b) = (driver().open(&source).unwrap(), driver().open(&source).unwrap());
    assert_eq!(read_all(&*a).unwrap(), read_all(&*b).unwrap());
    drop((a, b));
    assert_eq!(files(&path), before);
}

#[test]
fn bytes_read_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    write(&driver(), &source, &records(64, 300_000));
    let db = driver().open(&source).unwrap();
    assert!(db.bytes_read() < 200_000, "opened for {}", db.bytes_read());
    let (before, key) = (db.bytes_read(), 7u32.to_be_bytes());
    // Two ranges of one record: it is fetched once.
    let reads = [0..10, 1000..2000].map(|range| Read { key: &key, range, into: None });
    db.read(reads.into(), &PLAN.limits, &|_, found| found.map(drop)).unwrap();
    let read = db.bytes_read() - before;
    assert!((300_000..400_000).contains(&read), "{read}");
}

/// Records once shared a block: one flipped byte made all of them unreadable, the manifest among them, and no blob could be named.
#[test]
fn damage_stays_within_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records(5, 40);
    write(&driver(), &source, &expected);
    let path = dir.path().join("n.1");
    let (damaged, value) = expected.iter().nth(2).unwrap();
    let (file, bytes, at) = find(&path, value);
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    let db = driver().open(&source).unwrap();
    for (key, value) in &expected {
        match db.get(key) {
            Ok(found) => assert_eq!((found.as_deref(), key != damaged), (Some(&value[..]), true)),
            Err(error) => assert_eq!((error.kind(), key), (ErrorKind::Corrupt, damaged)),
        }
    }
}

/// What reading all of these records gives, each into a buffer of its own.
fn load(db: &dyn Db, expected: &Records) -> ckpt_engine::Result<Records> {
    let mut buffers: Vec<Vec<u8>> = expected.values().map(|value| vec![0xaa; value.len()]).collect();
    let reads = expected.keys().zip(&mut buffers);
    let reads = reads.map(|(key, into)| Read { key, range: 0..into.len() as u64, into: Some(into) });
    db.read(reads.collect(), &PLAN.limits, &|_, found| found.map(drop))?;
    Ok(expected.keys().cloned().zip(buffers).collect())
}

#[test]
fn our_tables_are_read_without_rocksdb() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    // Gathered, copied from where it is read to, and read to its place.
    let mut expected = records(3, 300_000);
    expected.extend([(b"empty".to_vec(), Vec::new()), (b"small".to_vec(), b"x".repeat(70_000))]);
    let tables = DriverOptions::new().with("table_bytes", "400000");
    write(&RocksDriver::from_options(tables).unwrap(), &source, &expected);
    let db =
        RocksDb::open(&Config::from_options(DriverOptions::new()).unwrap(), dir.path().join("n.1")).unwrap();
    let before = (db.bytes_read(), db.direct.bytes_read());
    assert_eq!(load(&db, &expected).unwrap(), expected);
    let after = (db.bytes_read(), db.direct.bytes_read());
    let bytes: usize = expected.values().map(Vec::len).sum();
    assert_eq!(after.0 - before.0, after.1 - before.1, "RocksDB has read nothing");
    assert!((bytes..bytes + 10_000).contains(&((after.1 - before.1) as usize)));
    // A key that is not there, and a range that is not within.
    for (key, range) in [(&b"rocks"[..], 0..1), (b"small", 1..70_001), (b"small", 0..70_001)] {
        let told = Mutex::new(None);
        let mut into = vec![0; range.end as usize - range.start as usize];
        let reads = vec![Read { key, range: range.clone(), into: Some(&mut into) }];
        db.read(reads, &PLAN.limits, &|_, found| {
            *told.lock().unwrap() = found.err().map(|error| error.kind());
            Ok(())
        })
        .unwrap();
        assert_eq!(told.into_inner().unwrap(), Some(ErrorKind::Corrupt), "{range:?}");
    }
}

#[test]
fn a_flipped_byte_around_a_large_value_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records(2, 131_072);
    write(&driver(), &source, &expected);
    let path = dir.path().join("n.1");
    let value = expected.values().nth(1).unwrap();
    let (file, bytes, at) = find(&path, value);
    let (header, end) = (at - 17..at, at + value.len()..at + value.len() + 13);
    for at in header.chain([at, at + 4095, at + 100_000]).chain(end) {
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        let error = load(&*driver().open(&source).unwrap(), &expected).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        file.write_all_at(&[bytes[at]], at as u64).unwrap();
    }
    assert_eq!(load(&*driver().open(&source).unwrap(), &expected).unwrap(), expected);
}

/// What is in a log, in another table, or deleted is found as RocksDB finds it.
#[test]
fn what_another_program_changed_counts() {
    type Change = fn(&::rocksdb::DB);
    let large = |byte: u8| vec![byte; 100_000];
    let changes: [(Change, fn(u32) -> Option<u8>); 5] = [
        (
            |db| db.put(2u32.to_be_bytes(), vec![7; 100_000]).unwrap(),
            |key| Some(if key == 2 { 7 } else { 1 }),
        ),
        (
            |db| {
                db.put(2u32.to_be_bytes(), vec![7; 100_000]).unwrap();
                db.flush().unwrap();
            },
            |key| Some(if key == 2 { 7 } else { 1 }),
        ),
        (
            |db| {
                db.delete(2u32.to_be_bytes()).unwrap();
                db.flush().unwrap();
            },
            |key| (key != 2).then_some(1),
        ),
        (
            |db| {
                let family = db.cf_handle("default").unwrap();
                db.delete_range_cf(&family, 1u32.to_be_bytes(), 3u32.to_be_bytes()).unwrap();
                db.flush().unwrap();
            },
            |key| (key != 1 && key != 2).then_some(1),
        ),
        (
            |db| {
                db.put(9u32.to_be_bytes(), vec![7; 100_000]).unwrap();
                db.compact_range(None::<&[u8]>, None::<&[u8]>);
            },
            |key| Some(if key == 9 { 7 } else { 1 }),
        ),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let source = source(dir.path());
        let all = (0..4u32).map(|key| (key.to_be_bytes().to_vec(), large(1))).collect();
        write(&driver(), &source, &all);
        let options = ::rocksdb::Options::default();
        change(&::rocksdb::DB::open_cf(&options, dir.path().join("n.1"), ["default"]).unwrap());
        let db = driver().open(&source).unwrap();
        for key in 0..4u32 {
            let found = load(&*db, &[(key.to_be_bytes().to_vec(), large(0))].into());
            match expected(key) {
                Some(byte) => {
                    assert!(found.unwrap().into_values().eq([large(byte)]), "change {number}, key {key}")
                }
                None => {
                    assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt, "change {number}, key {key}")
                }
            }
        }
    }
}

/// Every byte of a small database is flipped: what comes back is right, or an error.
#[test]
fn a_flipped_byte_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let expected = records(8, 40);
    write(&driver(), &source, &expected);
    let path = dir.path().join("n.1");
    let (mut detected, mut harmless) = (0, 0);
    for (name, bytes) in files(&path) {
        // Nothing of the options file is read back, and it is the largest.
        let step = if name.starts_with("OPTIONS") { 499 } else { 1 };
        for at in (0..bytes.len()).step_by(step) {
            // In place: a file that is truncated and written anew is flushed to the disk each time.
            let file = fs::OpenOptions::new().write(true).open(path.join(&name)).unwrap();
            file.write_all_at(&[bytes[at] ^ (1 << (at % 8))], at as u64).unwrap();
            match driver().open(&source).and_then(|db| {
                let all = read_all(&*db)?;
                let single = Mutex::new(Records::new());
                let keys: Vec<_> = expected.keys().collect();
                let reads = expected.iter().map(|(key, value)| Read {
                    key,
                    range: 0..value.len() as u64,
                    into: None,
                });
                db.read(reads.collect(), &PLAN.limits, &|index, found| {
                    single.lock().unwrap().insert(keys[index].clone(), found?.to_vec());
                    Ok(())
                })?;
                Ok((all, single.into_inner().unwrap()))
            }) {
                Ok(found) => {
                    assert_eq!(found, (expected.clone(), expected.clone()), "{name} byte {at}");
                    harmless += 1;
                }
                Err(_) => detected += 1,
            }
            file.write_all_at(&[bytes[at]], at as u64).unwrap();
        }
    }
    assert!(detected > harmless / 8 && detected > 300, "detected {detected}, harmless {harmless}");
}

#[test]
fn what_is_no_database_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    assert!(!driver().exists(&source).unwrap());
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(dir.path().join("n.1")).unwrap();
    assert_eq!(driver().exists(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(dir.path().join("n.1/CURRENT"), "garbage").unwrap();
    assert!(driver().exists(&source).unwrap());
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(dir.path().join("n.1/CURRENT"), "MANIFEST-000001\n").unwrap();
    assert_eq!(driver().open(&source).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::remove_dir_all(dir.path().join("n.1")).unwrap();
    fs::write(dir.path().join("n.1"), "a file").unwrap();
    assert_eq!(driver().exists(&source).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn unknown_settings_are_refused() {
    let error = RocksDriver::from_options(DriverOptions::new().with("cache", "1")).unwrap_err();
    assert!(error.to_string().contains("block_bytes, table_bytes"), "{error}");
}
