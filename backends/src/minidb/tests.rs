//! The format, byte for byte, and what happens to damaged files.

use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use ckpt_engine::db::{
    Capabilities, Driver, DriverOptions, Layout, Limits, Locality, Order, Payload, Read, Source, Values,
    WritePlan,
};
use ckpt_engine::{Error, ErrorKind};
use tempfile::TempDir;

use super::{MiniDriver, format};

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
    let (keys, error) = fixture("golden/all_dtypes.minidb");
    assert_eq!(error, None);
    let expected =
        "f32#%0 f64#%0 f16#%0 i8#%0 u8#%0 i16#%0 u16#%0 i32#%0 i64#%0 b#%0 scalar#%0 empty#%0 strs#%0 str";
    assert_eq!(keys.join(" "), expected);
    let (keys, error) = fixture("golden/chunk32.minidb");
    assert_eq!((keys.len(), error), (82, None));
    assert_eq!(keys[..5], ["w#%0", "w#%1", "w#%2", "w#%3", "w#%4"]);
    let (keys, error) = fixture("golden/job/trainer_0.3");
    assert_eq!(error, None);
    let expected = [
        "blob_names#%0",
        "dataset:0_cursor",
        "trainer_0/task/GivenTensorInt64Fill:0#%0",
        "val#%0",
        "trainer_0/task:output/ConstantFill:0#%0",
    ];
    assert_eq!(keys, expected);
}

/// Each file with how many entries it has, or what is said of it and at which offset.
#[test]
fn damaged_files_tell_what_and_where() {
    let (cut, stray, length) = ("is cut short", "stray bytes", "is not positive");
    let cases = [
        ("trunc_0_empty_file", Ok(0)),
        ("trunc_2_in_first_key_len", Err((stray, 0))),
        ("trunc_4_after_key_len", Err((stray, 0))),
        ("trunc_8_after_lengths", Err((cut, 0))),
        ("trunc_in_first_value", Err((cut, 0))),
        ("trunc_at_record_boundary_1", Ok(1)),
        ("trunc_in_second_rec_vallen", Err((stray, 72))),
        ("trunc_in_chunked_blob_boundary", Ok(4)),
        ("trunc_mid_last_value", Err((cut, 485))),
        ("keylen_first_high_byte_negative", Err((length, 0))),
        ("keylen_mid_flip_bit0", Err((cut, 141))),
        ("vallen_first_flip_bit0", Err((cut, 73))),
        ("vallen_first_negative", Err((length, 0))),
        ("vallen_zero", Err((length, 0))),
        ("vallen_last_plus1", Err((cut, 485))),
        ("trailing_3_bytes", Err((stray, 552))),
        ("trailing_64_zero", Err((length, 552))),
        ("text_file", Err((cut, 0))),
        ("zero_page_in_middle", Err((length, 140))),
        ("blob_duplicated", Ok(9)),
    ];
    let (base, _) = fixture("damaged/base.minidb");
    for (name, expected) in cases {
        let (keys, error) = fixture(&format!("damaged/{name}.minidb"));
        match (expected, error) {
            (Ok(count), None) => {
                assert_eq!(keys.len(), count, "{name}");
                assert!(keys.iter().zip(&base).all(|(key, of_base)| key == of_base), "{name}");
            }
            (Err((what, offset)), Some(error)) => {
                assert!(error.contains(what) && error.ends_with(&format!(" offset=`{offset}`")), "{error}");
                assert!(error.contains("n.1`"), "it says where the file is: {error}");
            }
            (_, error) => panic!("{name}: {error:?}"),
        }
    }
}

/// The keys of a file that lies under the fixtures, and why it is damaged.
fn fixture(file: &str) -> (Vec<String>, Option<String>) {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/caffe2"));
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures.join(file), dir.path().join("n.1")).unwrap();
    match entries(&dir) {
        Ok(entries) => (entries.into_iter().map(|(key, _)| key).collect(), None),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{file}: {error}");
            (Vec::new(), Some(error.to_string()))
        }
    }
}

#[test]
fn it_says_what_it_can_do() {
    let expected = Capabilities {
        max_key_len: 0x7fff_ffff,
        max_value_len: 0x7fff_ffff,
        locality: Locality::Local,
        values: Values::Copied,
        order: Order::AsPut,
        layout: Layout::Caffe2,
    };
    assert_eq!(driver().capabilities(), expected);
    let options = DriverOptions::new().with("block_bytes", "1");
    assert_eq!(MiniDriver::from_options(options).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn lengths_are_within_those_of_caffe2() {
    let most = 0x7fff_ffff;
    assert_eq!(format::header(most, 1).unwrap(), *b"\xff\xff\xff\x7f\x01\0\0\0");
    assert_eq!(format::header(1, most).unwrap(), *b"\x01\0\0\0\xff\xff\xff\x7f");
    for (key, value) in [(0, 1), (1, 0), (most + 1, 1), (1, most + 1), (1 << 32 | 1, 1), (1, usize::MAX)] {
        assert_eq!(format::header(key, value).unwrap_err().kind(), ErrorKind::InvalidInput, "{key} {value}");
    }
}

/// Large enough for the threads that write behind, in pieces that are nowhere aligned.
#[test]
fn large_values_of_many_pieces_make_the_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Bytes = (0..6_000_001_u32).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    let mut payload = Payload::new();
    let mut rest = bytes.clone();
    for len in [1, 4096, 65_537, 3_000_000] {
        payload.push(rest.split_to(len));
    }
    payload.push(rest);
    let plan = WritePlan { records: 2, bytes: 6_000_002, limits: Limits::default() };
    let mut puts = vec![("last", Payload::from(vec![9])), ("first", payload)];
    driver()
        .write(&source(&dir), &plan, &mut |transaction| {
            while let Some((key, value)) = puts.pop() {
                transaction.put(key.as_bytes(), value)?;
            }
            Ok(())
        })
        .unwrap();
    let file = fs::read(dir.path().join("n.1")).unwrap();
    assert!(file == [entry(b"first", &bytes), entry(b"last", &[9])].concat(), "{} bytes", file.len());
    let db = driver().open(&source(&dir)).unwrap();
    assert!(db.get(b"first").unwrap().unwrap() == bytes);
    assert_eq!(db.map(b"first", b"first").unwrap(), None);
}

/// The body fails, panics, or says that all is well after a put that failed.
#[test]
fn a_write_that_does_not_end_leaves_the_older_one() {
    let dir = tempfile::tempdir().unwrap();
    // The longer one is written by the threads behind.
    for bytes in [0, 8 << 20] {
        write(&dir, &ENTRIES).unwrap();
        let before = fs::read(dir.path().join("n.1")).unwrap();
        let plan = WritePlan { records: 2, bytes, limits: Limits::default() };
        let outcomes = [0, 1, 2].map(|way| {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                driver().write(&source(&dir), &plan, &mut |transaction| {
                    transaction.put(b"new", Payload::from(b"value".to_vec()))?;
                    match way {
                        0 => Err(Error::invalid("the body gave up")),
                        1 => std::panic::resume_unwind(Box::new("the body died")),
                        _ => {
                            assert!(transaction.put(b"empty", Payload::new()).is_err());
                            Ok(())
                        }
                    }
                })
            }));
            outcome.map_err(|_| ()).map(|written| written.map_err(|error| error.kind()))
        });
        let expected = [Ok(Err(ErrorKind::InvalidInput)), Err(()), Ok(Err(ErrorKind::Closed))];
        assert_eq!(outcomes, expected);
        assert_eq!(fs::read(dir.path().join("n.1")).unwrap(), before, "the older one is as it was");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
    }
}

#[test]
fn a_file_that_is_cut_after_it_was_opened_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES).unwrap();
    let db = driver().open(&source(&dir)).unwrap();
    let path = dir.path().join("n.1");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(14).unwrap();
    let check = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("cut short") && error.to_string().contains("n.1`"), "{error}");
    };
    check(db.get(b"a").unwrap_err());
    let cursor = db.cursor().unwrap();
    assert_eq!((cursor.key(), cursor.value_len().unwrap()), (Some(&b"w#%0"[..]), 3));
    check(cursor.value().unwrap_err());
    check(cursor.read_at(0, &mut [0; 3]).unwrap_err());
    let read = || vec![Read { key: b"b", range: 0..1, into: None }];
    check(db.read(read(), &Limits::default(), &|_, outcome| outcome.map(drop)).unwrap_err());
}

#[test]
fn a_file_that_is_replaced_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &ENTRIES).unwrap();
    let old = driver().open(&source(&dir)).unwrap();
    write(&dir, &[("a", b"new")]).unwrap();
    assert_eq!(old.get(b"a").unwrap().unwrap(), "12");
    assert_eq!(driver().open(&source(&dir)).unwrap().get(b"a").unwrap().unwrap(), "new");
    assert_eq!(driver().list(dir.path().to_str().unwrap()).unwrap(), ["n.1"]);
    driver().destroy(&source(&dir)).unwrap();
    driver().destroy(&source(&dir)).unwrap();
    assert!(!driver().exists(&source(&dir)).unwrap());
}

/// An entry, made without the code that is tested.
fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    let [key_len, value_len] = [key, value].map(|bytes| i32::try_from(bytes.len()).unwrap().to_le_bytes());
    [&key_len, &value_len, key, value].concat()
}

/// Keys and places of values, as a walk tells them.
type Walked = Vec<(Vec<u8>, Range<u64>)>;

/// Walks a file of which `read` gives ranges: its entries, and how many reads of how many bytes it took.
fn walk(len: u64, read: impl Fn(Range<usize>) -> Vec<u8>) -> (Walked, u64, u64) {
    let (mut entries, mut reads, mut bytes) = (Vec::new(), 0, 0);
    let mut fetch = |range: Range<u64>| {
        assert!(range.start < range.end && range.end <= len, "{range:?} of {len}");
        (reads, bytes) = (reads + 1, bytes + range.end - range.start);
        Ok(read(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()).into())
    };
    let each = &mut |key: &[u8], value| {
        entries.push((key.to_vec(), value));
        Ok(())
    };
    format::walk(len, &mut fetch, each).unwrap();
    (entries, reads, bytes)
}

/// The window used to shrink whenever it ended within a value: entries of fifty bytes took a read for every fifteen, and those
/// of a few hundred bytes one each.
#[test]
fn many_small_entries_take_few_reads() {
    for value in [32, 600, 3000] {
        let file = entry(b"key0000000", &vec![1; value]).repeat(10_000);
        let (entries, reads, bytes) = walk(file.len() as u64, |range| file[range].to_vec());
        assert_eq!(entries.len(), 10_000);
        let most = file.len() as u64 / 50_000 + 10;
        assert!(
            reads <= most && bytes <= file.len() as u64,
            "values of {value}: {reads} reads of {bytes} bytes"
        );
    }
}

/// A file of a gigabyte, of which there is only the head of an entry, again and again.
#[test]
fn large_values_are_skipped() {
    const VALUE: usize = 4 << 20;
    let head = b"\x0a\0\0\0\0\0\x40\0key0000000";
    let stride = head.len() + VALUE;
    let byte = |at: usize| head.get(at % stride).copied().unwrap_or(1);
    let (entries, reads, bytes) = walk(256 * stride as u64, |range| range.map(byte).collect());
    let places = (0..256).map(|number| (number * stride + head.len()) as u64..((number + 1) * stride) as u64);
    assert!(entries.into_iter().map(|(_, place)| place).eq(places));
    assert!(reads <= 256 && bytes <= 256 * 512, "{reads} reads of {bytes} bytes");
}

/// After many small ones too: what is taken at once shrinks again.
#[test]
fn large_values_after_small_ones_are_skipped() {
    let small = entry(b"key", b"value").repeat(20_000);
    let file = [small.clone(), entry(b"key", &vec![1; 1 << 20]).repeat(20)].concat();
    let (entries, _, bytes) = walk(file.len() as u64, |range| file[range].to_vec());
    assert_eq!(entries.len(), 20_020);
    let most = small.len() as u64 + (64 << 10) + 20 * 512;
    assert!(bytes <= most, "{bytes} bytes read, not more than {most} expected");
}

/// Keys and values that begin and end anywhere in a window, and that are longer than one.
#[test]
fn entries_of_every_length_are_found() {
    let mut random = 1_u64;
    let mut up_to = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(1 + (random >> 33) % most).unwrap()
    };
    for (key_most, value_most) in [(9, 9), (40, 700), (40, 20_000), (3000, 9), (200_000, 100_000)] {
        let (mut file, mut expected) = (Vec::new(), Vec::new());
        for number in 0..200_u8 {
            let (key, value) = (vec![number; up_to(key_most)], vec![0xff; up_to(value_most)]);
            file.extend(entry(&key, &value));
            let end = file.len() as u64;
            expected.push((key, end - value.len() as u64..end));
        }
        let (found, ..) = walk(file.len() as u64, |range| file[range].to_vec());
        assert!(found == expected, "keys to {key_most}, values to {value_most}");
    }
}
