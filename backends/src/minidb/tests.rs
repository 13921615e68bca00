//! The format, byte for byte, and what happens to damaged files.

use std::fs;
use std::path::Path;

use ckpt_engine::ErrorKind;
use ckpt_engine::db::{Driver, DriverOptions, Limits, Payload, Read, Source, WritePlan};
use tempfile::TempDir;

use super::MiniDriver;

fn driver() -> MiniDriver {
    MiniDriver::from_options(DriverOptions::new()).unwrap()
}

fn source(dir: &TempDir) -> Source {
    Source::new(dir.path().to_str().unwrap(), "n.1")
}

fn write(dir: &TempDir, entries: &[(&str, &[u8])]) -> ckpt_engine::Result<()> {
    let plan = WritePlan { records: 0, bytes: 0, limits: Limits::default() };
    driver().write(&source(dir), &plan, &mut |transaction| {
        entries
            .iter()
            .try_for_each(|(key, value)| transaction.put(key.as_bytes(), Payload::from(value.to_vec())))
    })
}

fn entries(dir: &TempDir) -> ckpt_engine::Result<Vec<(String, Vec<u8>)>> {
    let db = driver().open(&source(dir))?;
    let mut cursor = db.cursor()?;
    let mut entries = Vec::new();
    while let Some(key) = cursor.key() {
        let key = String::from_utf8_lossy(key).into_owned();
        entries.push((key, cursor.value()?.to_vec()));
        cursor.next()?;
    }
    Ok(entries)
}

const ENTRIES: [(&str, &[u8]); 4] = [("w#%0", b"abc"), ("a", b"12"), ("w#%0", b"again"), ("b", b"x")];

#[test]
fn the_bytes_are_those_of_caffe2() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES[..2]).unwrap();
    let file = fs::read(dir.path().join("n.1")).unwrap();
    assert_eq!(file, b"\x04\0\0\0\x03\0\0\0w#%0abc\x01\0\0\0\x02\0\0\0a12");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn order_and_repeats_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES).unwrap();
    let expected: Vec<_> = ENTRIES.iter().map(|(key, value)| ((*key).to_owned(), value.to_vec())).collect();
    assert_eq!(entries(&dir).unwrap(), expected);
    let db = driver().open(&source(&dir)).unwrap();
    assert_eq!(db.get(b"w#%0").unwrap().unwrap().as_ref(), b"abc", "the first of them");
    assert_eq!(db.get(b"zz").unwrap(), None);
    let mut cursor = db.cursor().unwrap();
    cursor.seek(b"b").unwrap();
    assert_eq!(
        (cursor.key(), cursor.value_len().unwrap()),
        (Some(&b"w#%0"[..]), 3),
        "the first not less, as stored"
    );
    let mut part = [0; 2];
    cursor.read_at(1, &mut part).unwrap();
    assert_eq!(&part, b"bc");
    assert_eq!(cursor.read_at(2, &mut part).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn ranges_are_read_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let large = vec![7; 1 << 20];
    write(&dir, &[("a", &large), ("b", b"0123456789"), ("c", &large)]).unwrap();
    let db = driver().open(&source(&dir)).unwrap();
    let opening = db.bytes_read();
    assert!(opening < 70_000, "{opening}");
    let mut into = [0; 4];
    let reads = vec![
        Read { key: b"b", range: 3..7, into: Some(&mut into) },
        Read { key: b"b", range: 8..11, into: None },
        Read { key: b"x", range: 0..1, into: None },
    ];
    let outcomes = std::sync::Mutex::new(Vec::new());
    db.read(reads, &Limits::default(), &|index, outcome| {
        outcomes.lock().unwrap().push((index, outcome.map(<[u8]>::to_vec).map_err(|error| error.kind())));
        Ok(())
    })
    .unwrap();
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_by_key(|(index, _)| *index);
    assert_eq!(outcomes[0], (0, Ok(b"3456".to_vec())));
    assert_eq!(
        outcomes[1..].iter().map(|(_, outcome)| outcome.clone()).collect::<Vec<_>>(),
        [Err(ErrorKind::Corrupt), Err(ErrorKind::Corrupt)]
    );
    assert_eq!(&into, b"3456");
    assert_eq!(db.bytes_read(), opening + 4);
}

#[test]
fn what_caffe2_cannot_read_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES).unwrap();
    let before = fs::read(dir.path().join("n.1")).unwrap();
    for wrong in [("", &b"x"[..]), ("x", b"")] {
        assert_eq!(write(&dir, &[ENTRIES[0], wrong]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(fs::read(dir.path().join("n.1")).unwrap(), before, "the older one is as it was");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
}

#[test]
fn every_cut_is_damage_or_a_shorter_db() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES).unwrap();
    let file = fs::read(dir.path().join("n.1")).unwrap();
    let whole = entries(&dir).unwrap();
    let mut ends = vec![0];
    for (key, value) in ENTRIES {
        ends.push(ends[ends.len() - 1] + 8 + key.len() + value.len());
    }
    for len in 0..file.len() {
        fs::write(dir.path().join("n.1"), &file[..len]).unwrap();
        match ends.iter().position(|&end| end == len) {
            Some(count) => assert_eq!(entries(&dir).unwrap(), whole[..count]),
            None => assert_eq!(entries(&dir).unwrap_err().kind(), ErrorKind::Corrupt, "cut to {len}"),
        }
    }
}

#[test]
fn lengths_are_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES).unwrap();
    let file = fs::read(dir.path().join("n.1")).unwrap();
    let mut at = 0;
    for (key, value) in ENTRIES {
        for field in [at, at + 4] {
            for len in [0, -1, i32::MIN, i32::MAX, i32::MAX - 1] {
                let mut damaged = file.clone();
                damaged[field..field + 4].copy_from_slice(&len.to_le_bytes());
                fs::write(dir.path().join("n.1"), damaged).unwrap();
                let error = entries(&dir).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
        }
        at += 8 + key.len() + value.len();
    }
}

#[test]
fn something_else_in_its_place_is_told() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(driver().open(&source(&dir)).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!driver().exists(&source(&dir)).unwrap());
    fs::create_dir(dir.path().join("n.1")).unwrap();
    assert_eq!(driver().open(&source(&dir)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(driver().exists(&source(&dir)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// Keys in the order of the file, as the list beside the fixtures has them.
#[test]
fn files_of_real_caffe2_open() {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/caffe2/golden"));
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures.join("all_dtypes.minidb"), dir.path().join("n.1")).unwrap();
    let keys: Vec<String> = entries(&dir).unwrap().into_iter().map(|(key, _)| key).collect();
    let expected =
        "f32#%0 f64#%0 f16#%0 i8#%0 u8#%0 i16#%0 u16#%0 i32#%0 i64#%0 b#%0 scalar#%0 empty#%0 strs#%0 str";
    assert_eq!(keys.join(" "), expected);
}
