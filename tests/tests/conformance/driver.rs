//! The contract of `engine::db`: every guarantee that it states is a case here.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use bytes::Bytes;
use ckpt_engine::db::{DriverOptions, Limits, Locality, Payload, PutMode, Read, Source, Values};
use ckpt_engine::{Effect, Error, ErrorKind};
use ckpt_tests::data::noise;
use ckpt_tests::stores::Store;

use crate::support::{assert_holds, contents, entries, key, on_threads, open, outcomes, plan, write};
use crate::{Case, cases};

pub const CASES: &[Case] = cases! {
    a_driver_says_what_it_is;
    an_unknown_option_is_an_error_that_names_it;
    what_is_written_is_read;
    a_db_of_no_records_is_a_db;
    an_absent_db_is_not_found_and_asking_makes_nothing;
    a_place_that_is_not_there_has_no_dbs;
    exists_list_and_destroy_agree;
    names_of_every_kind_work;
    names_that_would_leave_the_place_are_refused but not on "memory": "its names are keys of a map";
    a_body_that_fails_leaves_nothing;
    a_body_that_panics_leaves_nothing;
    a_body_that_fails_keeps_the_older_db;
    what_is_being_written_is_not_visible;
    a_write_replaces_and_an_open_reader_never_sees_a_mix;
    readers_see_one_version_while_it_is_replaced;
    writers_of_different_dbs_do_not_meet;
    of_two_writers_of_one_db_one_is_whole;
    keys_must_ascend but not on "minidb": "it keeps what is put, in that order";
    keys_are_as_long_as_the_driver_says;
    values_of_every_length_and_of_many_pieces;
    a_large_value;
    many_keys;
    ranges_into_buffers_and_lent;
    a_range_that_does_not_fit_its_buffer_is_refused;
    what_is_missing_is_told_as_corrupt_and_stops_nothing;
    an_error_of_the_sink_ends_the_call;
    reads_of_nothing;
    a_cursor_walks_and_seeks;
    a_mapped_value_outlives_its_db;
    bytes_read_are_counted;
    many_threads_read_one_db;
    opening_and_reading_change_nothing but not on "memory": "it keeps no files";
    db_types_share_a_place but not on "memory" | "s3": "nothing else can be in its place",
        "files" | "minidb": "both are any file: nothing but its contents tells whose it is";
    something_else_in_its_place_is_an_error but not on "memory" | "s3": "nothing else can be in its place";
    records_are_put_replaced_listed_and_deleted;
    record_names_are_checked but not on "memory": "its names are keys of a map";
    of_concurrent_creators_one_wins;
    a_record_is_replaced_at_once;
    records_and_dbs_do_not_see_each_other;
    a_call_from_an_async_runtime_is_answered;
};

fn a_driver_says_what_it_is(store: &Store) {
    let driver = store.driver();
    assert_eq!(driver.db_type(), store.db_type());
    let upper = store.registry().driver(&store.db_type().to_uppercase(), DriverOptions::new()).unwrap();
    assert_eq!(upper.db_type(), store.db_type());
    let capabilities = driver.capabilities();
    assert!(capabilities.max_key_len >= 5, "keys of records have five bytes");
    assert!(capabilities.max_value_len >= 256 << 20, "chunks have up to 256 MiB");
    let locality = match store.db_type() {
        "memory" => Locality::Process,
        "s3" => Locality::Remote,
        _ => Locality::Local,
    };
    assert_eq!(capabilities.locality, locality);
}

fn an_unknown_option_is_an_error_that_names_it(store: &Store) {
    let options = DriverOptions::new().with("no-such-option", "1");
    let error = store.registry().driver(store.db_type(), options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("no-such-option"), "{error}");
    assert!(error.to_string().contains(store.db_type()), "{error}");
}

/// The shortest value that a store holds: Caffe2 cannot read empty ones from a minidb file, so they are refused there.
fn least(store: &Store) -> &'static [u8] {
    if store.db_type() == "minidb" { b"\0" } else { b"" }
}

fn what_is_written_is_read(store: &Store) {
    let source = store.source("n.1");
    let put = entries([b"one", least(store), b"three", &[0; 5000]]);
    write(&*store.driver(), &source, &put).unwrap();
    // A new driver: what it sees is in the store.
    let db = open(&store.driver(), &source);
    assert_holds(&*db, &put);
    for (key, value) in &put {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
    for missing in [&b"k"[..], b"k0001\0", b"l", b"\xff\xff\xff"] {
        assert_eq!(db.get(missing).unwrap(), None);
    }
    assert_eq!(store.leftovers(), [""; 0]);
}

fn a_db_of_no_records_is_a_db(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    write(&*driver, &source, &entries([""; 0])).unwrap();
    assert!(driver.exists(&source).unwrap());
    let db = open(&driver, &source);
    assert_eq!(contents(&*db).unwrap(), entries([""; 0]));
    assert_eq!(db.get(b"k").unwrap(), None);
    let mut cursor = db.cursor().unwrap();
    cursor.next().unwrap();
    cursor.seek(b"k").unwrap();
    assert_eq!(cursor.key(), None);
}

fn an_absent_db_is_not_found_and_asking_makes_nothing(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    for _ in 0..2 {
        assert!(!driver.exists(&source).unwrap());
        let error = driver.open(&source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        driver.destroy(&source).unwrap();
        let records = driver.records(source.prefix()).unwrap();
        assert_eq!(records.get("epoch.1").unwrap(), None);
        assert_eq!(records.list().unwrap(), [""; 0]);
        records.delete("epoch.1").unwrap();
        if let Some(folder) = store.folder() {
            assert!(!folder.exists(), "asking made {}", folder.display());
        }
        // The second time around another db is there.
        write(&*driver, &store.source("other.1"), &entries(["x"])).unwrap();
        driver.destroy(&store.source("other.1")).unwrap();
        if let Some(folder) = store.folder().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}

fn a_place_that_is_not_there_has_no_dbs(store: &Store) {
    let driver = store.driver();
    let listed = driver.list(&store.prefix());
    match driver.capabilities().locality {
        Locality::Local => assert_eq!(listed.unwrap_err().kind(), ErrorKind::NotFound),
        Locality::Process => assert_eq!(listed.unwrap(), [""; 0]),
        Locality::Remote => {
            // A prefix is no object, so it cannot be told from an empty one; a bucket can.
            assert_eq!(listed.unwrap(), [""; 0]);
            let error = driver.list("no-such-bucket/run").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        }
    }
}

fn exists_list_and_destroy_agree(store: &Store) {
    let driver = store.driver();
    let names = ["a.1", "a.10", "a.2", "b.1"];
    for name in names {
        write(&*driver, &store.source(name), &entries([name])).unwrap();
    }
    let below = Source::new(format!("{}/below", store.prefix()), "c.1");
    write(&*driver, &below, &entries(["below"])).unwrap();
    let listed = |prefix: &str| {
        let mut names = store.driver().list(prefix).unwrap();
        names.sort_unstable();
        names
    };
    assert_eq!(listed(&store.prefix()), names, "only what is directly below the prefix");
    assert_eq!(listed(below.prefix()), ["c.1"]);
    assert!(!driver.exists(&store.source("a")).unwrap(), "a part of a name is no name");
    assert!(!driver.exists(&store.source("a.100")).unwrap());
    for _ in 0..2 {
        driver.destroy(&store.source("a.1")).unwrap();
        assert!(!store.driver().exists(&store.source("a.1")).unwrap());
        assert_eq!(store.driver().open(&store.source("a.1")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(listed(&store.prefix()), ["a.10", "a.2", "b.1"]);
    }
    for name in ["a.10", "a.2", "b.1"] {
        assert!(driver.exists(&store.source(name)).unwrap());
        driver.destroy(&store.source(name)).unwrap();
    }
    assert_eq!(listed(&store.prefix()), [""; 0]);
    assert_holds(&*open(&driver, &below), &entries(["below"]));
    assert_eq!(store.leftovers(), [""; 0]);
}

fn names_of_every_kind_work(store: &Store) {
    let driver = store.driver();
    let mut names = vec![
        "trainer:0.1",
        "a b.2",
        " a.3",
        "Größe.4",
        "日本語.5",
        "100%.6",
        "per%20cent.7",
        "per%2Fcent.8",
        "a#b.9",
        "a+b.10",
        "q?x=1&y=2.11",
        "a*b[c]{d}.12",
        "~tilde^`.13",
        "quote\"'.14",
        "a=b;c,d.15",
        "<a>|b.16",
        "$HOME.17",
        "-flag.18",
        "a..b.19",
        "UPPER.20",
        "e\u{301}.21",
        "😀.22",
    ];
    for name in &names {
        let source = store.source(name);
        assert!(!driver.exists(&source).unwrap(), "{name}");
        write(&*driver, &source, &entries([*name])).unwrap();
        assert!(driver.exists(&source).unwrap(), "{name}");
    }
    let mut listed = driver.list(&store.prefix()).unwrap();
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(listed, names);
    for name in &names {
        let source = store.source(name);
        assert_holds(&*open(&driver, &source), &entries([*name]));
        driver.destroy(&source).unwrap();
        assert!(!driver.exists(&source).unwrap(), "{name}");
    }
    assert_eq!(driver.list(&store.prefix()).unwrap(), [""; 0]);
}

fn names_that_would_leave_the_place_are_refused(store: &Store) {
    let driver = store.driver();
    for name in ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a\0b"] {
        let source = store.source(name);
        let refused = [
            write(&*driver, &source, &entries(["x"])).unwrap_err(),
            driver.open(&source).unwrap_err(),
            driver.exists(&source).unwrap_err(),
            driver.destroy(&source).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}: {error:?}");
        }
    }
}

/// Writes enough that a backend has begun to store it, then fails.
fn failing_write(store: &Store, name: &str) -> Error {
    let put = entries([noise(9 << 20, 1), noise(100, 2), noise(9 << 20, 3)]);
    let outcome = store.driver().write(&store.source(name), &plan(&put), &mut |transaction| {
        for (key, value) in &put {
            transaction.put(key, Payload::from(value.clone()))?;
        }
        Err(Error::new(ErrorKind::Full, "no space, on purpose"))
    });
    outcome.unwrap_err()
}

fn assert_absent(store: &Store, name: &str) {
    let (driver, source) = (store.driver(), store.source(name));
    assert!(!driver.exists(&source).unwrap());
    assert_eq!(driver.open(&source).unwrap_err().kind(), ErrorKind::NotFound);
    let listed = driver.list(&store.prefix()).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(Vec::new()),
        _ => Err(error),
    });
    assert!(!listed.unwrap().contains(&name.to_owned()));
    assert_eq!(store.leftovers(), [""; 0]);
}

fn a_body_that_fails_leaves_nothing(store: &Store) {
    let error = failing_write(store, "n.1");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Full, Effect::None), "{error:?}");
    assert!(error.to_string().contains("on purpose"), "{error}");
    assert_absent(store, "n.1");
    write(&*store.driver(), &store.source("n.1"), &entries(["x"])).unwrap();
    assert_holds(&*open(&store.driver(), &store.source("n.1")), &entries(["x"]));
}

fn a_body_that_panics_leaves_nothing(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries([noise(9 << 20, 1)]);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        driver.write(&source, &plan(&put), &mut |transaction| {
            transaction.put(&key(0), Payload::from(noise(9 << 20, 1)))?;
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    }));
    assert!(!matches!(outcome, Ok(Ok(()))), "a panic is no success");
    assert_absent(store, "n.1");
    write(&*driver, &source, &entries(["x"])).unwrap();
    assert_holds(&*open(&driver, &source), &entries(["x"]));
}

fn a_body_that_fails_keeps_the_older_db(store: &Store) {
    let source = store.source("n.1");
    let older = entries(["older", "db"]);
    write(&*store.driver(), &source, &older).unwrap();
    let reader = open(&store.driver(), &source);
    failing_write(store, "n.1");
    assert_holds(&*open(&store.driver(), &source), &older);
    assert_holds(&*reader, &older);
    assert_eq!(store.driver().list(&store.prefix()).unwrap(), ["n.1"]);
    assert_eq!(store.leftovers(), [""; 0]);
}

fn what_is_being_written_is_not_visible(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    write(&*driver, &store.source("other.1"), &entries(["other"])).unwrap();
    let put = entries([noise(9 << 20, 1), noise(10, 2)]);
    let written = driver.write(&source, &plan(&put), &mut |transaction| {
        for (key, value) in &put {
            transaction.put(key, Payload::from(value.clone()))?;
            assert!(!store.driver().exists(&source)?);
            assert_eq!(store.driver().open(&source).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(store.driver().list(&store.prefix())?, ["other.1"]);
        }
        Ok(())
    });
    written.unwrap();
    assert_holds(&*open(&store.driver(), &source), &put);
}

fn a_write_replaces_and_an_open_reader_never_sees_a_mix(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let older = entries([noise(5000, 1), noise(2 << 20, 2), noise(10, 3)]);
    let newer = entries([noise(4000, 4), noise(10, 5)]);
    write(&*driver, &source, &older).unwrap();
    let reader = open(&driver, &source);
    let cursor = reader.cursor().unwrap();
    write(&*driver, &source, &newer).unwrap();
    assert_holds(&*open(&store.driver(), &source), &newer);
    drop(cursor);
    let range = |index: usize| (key(index), 0..older[&key(index)].len() as u64);
    let told = outcomes(&*reader, &[range(0), range(1), range(2)]);
    let remote = driver.capabilities().locality == Locality::Remote;
    for (index, outcome) in told.into_iter().enumerate() {
        match outcome {
            Ok(value) => assert!(value == older[&key(index)], "value {index} is of neither"),
            // An object has no older version to go on with: the reader is told that it is another one now.
            Err(kind) => assert!(remote && kind == ErrorKind::Conflict, "value {index}: {kind}"),
        }
    }
    match reader.get(&key(1)) {
        Ok(value) => {
            assert!(value.as_deref() == Some(older[&key(1)].as_slice()) && !remote, "it was fetched anew")
        }
        Err(error) => assert!(remote && error.kind() == ErrorKind::Conflict, "{error:?}"),
    }
    assert_eq!(driver.list(&store.prefix()).unwrap(), ["n.1"]);
    assert_eq!(store.leftovers(), [""; 0]);
}

fn readers_see_one_version_while_it_is_replaced(store: &Store) {
    let source = store.source("n.1");
    let version = |number: u8| entries([vec![number; 10], vec![number; 5000], vec![number; 70_000]]);
    write(&*store.driver(), &source, &version(0)).unwrap();
    let (done, seen, written) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU8::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let driver = store.driver();
            // At least so often, and until the readers have got through; not for ever.
            for number in 1..=250 {
                if number > 20 && seen.load(Ordering::Relaxed) >= 10 {
                    break;
                }
                write(&*driver, &source, &version(number)).unwrap();
                written.store(number, Ordering::Release);
            }
        });
        let reader = || {
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let db = match store.driver().open(&source) {
                    Ok(db) => db,
                    // The object was replaced between two requests of one opening.
                    Err(error) if error.kind() == ErrorKind::Conflict && store.db_type() == "s3" => continue,
                    Err(error) => panic!("{error:?}"),
                };
                let found = match contents(&*db) {
                    Ok(found) => found,
                    Err(error) if error.kind() == ErrorKind::Conflict && store.db_type() == "s3" => continue,
                    Err(error) => panic!("{error:?}"),
                };
                let number = found[&key(0)][0];
                assert!(found == version(number), "a mix of versions");
                assert!(number >= last, "version {last}, then {number}");
                last = number;
                seen.fetch_add(1, Ordering::Relaxed);
            }
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        // If the writer fails, the readers must not go on for ever.
        let outcome = writer.join();
        done.store(true, Ordering::Release);
        for reader in readers {
            reader.join().unwrap();
        }
        outcome.unwrap();
    });
    assert!(seen.load(Ordering::Relaxed) > 0, "no reader ever got through");
    assert_holds(&*open(&store.driver(), &source), &version(written.into_inner()));
    assert_eq!(store.leftovers(), [""; 0]);
}

fn writers_of_different_dbs_do_not_meet(store: &Store) {
    let driver = store.driver();
    let value = |node: u64| entries([noise(3 << 20, node), noise(10, node)]);
    on_threads((0..4).collect(), |node| {
        write(&*driver, &store.source(&format!("n{node}.1")), &value(node)).unwrap();
    });
    for node in 0..4 {
        assert_holds(&*open(&driver, &store.source(&format!("n{node}.1"))), &value(node));
    }
    assert_eq!(store.leftovers(), [""; 0]);
}

fn of_two_writers_of_one_db_one_is_whole(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let value = |writer: u64| entries([noise(300_000, writer), noise(10, writer)]);
    for _ in 0..3 {
        let outcomes = on_threads(vec![1, 2], |writer| write(&*driver, &source, &value(writer)));
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(won > 0, "{outcomes:?}");
        for error in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
        }
        let found = contents(&*open(&driver, &source)).unwrap();
        assert!(found == value(1) || found == value(2));
        assert_eq!(driver.list(&store.prefix()).unwrap(), ["n.1"]);
        assert_eq!(store.leftovers(), [""; 0]);
    }
}

fn keys_must_ascend(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let orders: [&[&[u8]]; 5] = [&[b"b", b"a"], &[b"a", b"a"], &[b""], &[b"a", b""], &[b"ab", b"a"]];
    for keys in orders {
        let written = driver.write(&source, &plan(&entries(["x", "y"])), &mut |transaction| {
            keys.iter().try_for_each(|key| transaction.put(key, Payload::from(vec![1])))
        });
        assert!(written.is_err(), "{keys:?}");
        assert_absent(store, "n.1");
    }
    // Bytewise, as unsigned numbers, and a key before the longer ones that begin with it.
    let ascending: [&[u8]; 6] = [b"\0", b"\0\0", b"a", b"a\0", b"\x7f", b"\x80"];
    let put = ascending.map(|key| (key.to_vec(), key.to_vec())).into_iter().collect();
    write(&*driver, &source, &put).unwrap();
    assert_holds(&*open(&driver, &source), &put);
}

fn keys_are_as_long_as_the_driver_says(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let most = driver.capabilities().max_key_len.min(64 << 10);
    let put = [(vec![b'a'; most], vec![1]), (vec![b'b'; most], vec![2])].into_iter().collect();
    write(&*driver, &source, &put).unwrap();
    assert_holds(&*open(&driver, &source), &put);
    if let Some(too_long) = driver.capabilities().max_key_len.checked_add(1) {
        let put = [(vec![b'a'; too_long], vec![1])].into_iter().collect();
        assert!(write(&*driver, &store.source("n.2"), &put).is_err());
        assert_absent(store, "n.2");
    }
}

fn values_of_every_length_and_of_many_pieces(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let lens =
        [0, 1, 2, 63, 64, 65, 511, 512, 513, 4031, 4032, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20];
    let put = entries(lens.map(|len| noise(len.max(least(store).len()), len as u64)));
    for piece in [1, 7, 1000, 4096, 100_000] {
        let written = driver.write(&source, &plan(&put), &mut |transaction| {
            for (key, value) in &put {
                let mut payload = Payload::new();
                // Pieces of a value of a megabyte: not a million of them.
                let piece = piece.max(value.len() / 3000);
                value.chunks(piece).for_each(|piece| payload.push(Bytes::copy_from_slice(piece)));
                transaction.put(key, payload)?;
            }
            Ok(())
        });
        written.unwrap();
        let db = open(&driver, &source);
        for (key, value) in &put {
            assert!(db.get(key).unwrap().as_deref() == Some(value.as_slice()), "{} bytes", value.len());
        }
        assert_holds(&*db, &put);
    }
}

fn a_large_value(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries([noise(20 << 20, 1), noise(3, 2), noise((5 << 20) + 1, 3)]);
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    assert_holds(&*db, &put);
    let large = &put[&key(0)];
    let ranges = [0..20 << 20, (10 << 20) - 5..(10 << 20) + 5, (20 << 20) - 1..20 << 20];
    let reads: Vec<_> = ranges.iter().map(|range| (key(0), range.clone())).collect();
    for (found, range) in outcomes(&*db, &reads).into_iter().zip(ranges) {
        assert!(found.unwrap() == large[range.start as usize..range.end as usize]);
    }
}

fn many_keys(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries((0..5000).map(|index| noise((index % 97).max(least(store).len()), index as u64)));
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    assert_holds(&*db, &put);
    let reads: Vec<_> = put.iter().map(|(key, value)| (key.clone(), 0..value.len() as u64)).collect();
    let found: Vec<Vec<u8>> = outcomes(&*db, &reads).into_iter().map(Result::unwrap).collect();
    assert!(entries(found) == put);
    let mut cursor = db.cursor().unwrap();
    for index in [4999, 0, 2500, 1] {
        cursor.seek(&key(index)).unwrap();
        assert_eq!(cursor.key(), Some(key(index).as_slice()));
        assert_eq!(cursor.value().unwrap(), put[&key(index)]);
    }
}

fn ranges_into_buffers_and_lent(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put =
        entries([noise(100_000, 1), noise(4096, 2), noise(5, 3), least(store).to_vec(), noise(3 << 20, 4)]);
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    // Out of order, over each other, empty, unaligned, the same twice, across the whole value.
    let wanted = [
        (4, 0..3 << 20),
        (0, 0..100_000),
        (2, 1..3),
        (0, 99_999..100_000),
        (3, 0..0),
        (0, 50_000..50_000),
        (1, 0..4096),
        (1, 1..4095),
        (0, 4095..4097),
        (2, 0..5),
        (2, 0..5),
        (4, (1 << 20) + 1..(2 << 20) - 1),
        (2, 5..5),
    ];
    let expected: Vec<&[u8]> =
        wanted.iter().map(|(index, range)| &put[&key(*index)][range.clone()]).collect();
    for threads in [1, 4] {
        // Every other one goes into a buffer of the caller's.
        let mut buffers: Vec<Vec<u8>> = expected.iter().map(|bytes| vec![0xee; bytes.len()]).collect();
        let keys: Vec<_> = wanted.iter().map(|(index, _)| key(*index)).collect();
        let reads =
            wanted.iter().zip(&keys).zip(&mut buffers).enumerate().map(|(at, ((wanted, key), buffer))| {
                Read {
                    key,
                    range: wanted.1.start as u64..wanted.1.end as u64,
                    into: (at % 2 == 0).then_some(buffer.as_mut_slice()),
                }
            });
        let told = Mutex::new(vec![0; wanted.len()]);
        let limits = Limits { threads, memory: 1 << 20 };
        db.read(reads.collect(), &limits, &|index, found| {
            assert!(found? == expected[index], "read {index}");
            told.lock().unwrap()[index] += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(told.into_inner().unwrap(), vec![1; wanted.len()]);
        for (at, (buffer, expected)) in buffers.iter().zip(&expected).enumerate().step_by(2) {
            assert!(buffer == expected, "buffer {at}");
        }
    }
}

fn a_range_that_does_not_fit_its_buffer_is_refused(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    write(&*driver, &source, &entries(["0123456789"])).unwrap();
    let db = open(&driver, &source);
    let key = key(0);
    #[allow(clippy::reversed_empty_ranges)]
    for (range, len) in [(0..5, 4), (0..5, 6), (5..2, 0)] {
        let mut buffer = vec![0xee; len];
        let read = Read { key: &key, range, into: Some(&mut buffer) };
        let told = Mutex::new(None);
        let outcome = db.read(vec![read], &Limits::default(), &|_, outcome| {
            *told.lock().unwrap() = outcome.err().map(|error| error.kind());
            Ok(())
        });
        // Told to the sink or to the caller.
        let kind = outcome.err().map(|error| error.kind()).or(told.into_inner().unwrap());
        assert_eq!(kind, Some(ErrorKind::InvalidInput));
    }
}

fn what_is_missing_is_told_as_corrupt_and_stops_nothing(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries([noise(10, 1), noise(100_000, 2)]);
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    let missing = b"missing".to_vec();
    let reads = [
        (key(0), 0..10),
        (missing.clone(), 0..10),
        (key(1), 0..100_000),
        (key(0), 0..11),
        (key(0), 10..11),
        (key(0), 1000..1001),
        (key(1), 99_999..100_001),
        (missing, 0..0),
        (key(0), 0..u64::MAX),
        (key(1), u64::MAX - 1..u64::MAX),
        (key(0), 2..8),
    ];
    let told = outcomes(&*db, &reads);
    for (index, outcome) in told.iter().enumerate() {
        match index {
            0 => assert_eq!(outcome.as_ref().unwrap(), &put[&key(0)]),
            2 => assert_eq!(outcome.as_ref().unwrap(), &put[&key(1)]),
            10 => assert_eq!(outcome.as_ref().unwrap(), &put[&key(0)][2..8]),
            _ => assert_eq!(outcome, &Err(ErrorKind::Corrupt), "read {index}"),
        }
    }
    // The same into a buffer of the caller's.
    let mut buffer = [0xee; 4];
    let key = key(0);
    let read = Read { key: &key, range: 8..12, into: Some(&mut buffer) };
    let told = Mutex::new(None);
    db.read(vec![read], &Limits::default(), &|_, outcome| {
        *told.lock().unwrap() = Some(outcome.unwrap_err().kind());
        Ok(())
    })
    .unwrap();
    assert_eq!(told.into_inner().unwrap(), Some(ErrorKind::Corrupt));
}

fn an_error_of_the_sink_ends_the_call(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    write(&*driver, &source, &entries((0..100).map(|index| noise(5000, index)))).unwrap();
    let db = open(&driver, &source);
    let keys: Vec<_> = (0..100).map(key).collect();
    let reads = keys.iter().map(|key| Read { key, range: 0..5000, into: None });
    let error = db
        .read(reads.collect(), &Limits::default(), &|index, outcome| {
            outcome?;
            if index == 50 { Err(Error::new(ErrorKind::Closed, "on purpose")) } else { Ok(()) }
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}");
    assert!(error.to_string().contains("on purpose"), "{error}");
    assert_eq!(db.get(&key(0)).unwrap().unwrap(), noise(5000, 0), "the db can still be read");
}

fn reads_of_nothing(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    write(&*driver, &source, &entries(["x"])).unwrap();
    let db = open(&driver, &source);
    db.read(Vec::new(), &Limits::default(), &|_, _| panic!("nothing was asked for")).unwrap();
}

fn a_cursor_walks_and_seeks(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = ["b", "d", "dd", "f"].map(|key| (key.as_bytes().to_vec(), key.repeat(3).into_bytes()));
    write(&*driver, &source, &put.clone().into_iter().collect()).unwrap();
    let db = open(&driver, &source);
    let mut cursor = db.cursor().unwrap();
    for (key, value) in &put {
        assert_eq!(cursor.key(), Some(key.as_slice()));
        assert_eq!(cursor.value().unwrap(), value);
        assert_eq!(cursor.value().unwrap(), value, "asking does not move");
        cursor.next().unwrap();
    }
    for _ in 0..3 {
        assert_eq!(cursor.key(), None);
        assert_eq!(cursor.value().unwrap_err().kind(), ErrorKind::InvalidInput);
        cursor.next().unwrap();
    }
    let seeks: [(&str, Option<&str>); 9] = [
        ("d", Some("d")),
        ("a", Some("b")),
        ("c", Some("d")),
        ("g", None),
        ("", Some("b")),
        ("da", Some("dd")),
        ("ddd", Some("f")),
        ("f", Some("f")),
        ("f\0", None),
    ];
    for (to, found) in seeks {
        cursor.seek(to.as_bytes()).unwrap();
        assert_eq!(cursor.key(), found.map(str::as_bytes), "seek to {to:?}");
        if found.is_none() {
            cursor.next().unwrap();
            assert_eq!(cursor.key(), None, "past the end it stays");
        }
    }
    cursor.seek(b"d").unwrap();
    let other = db.cursor().unwrap();
    cursor.next().unwrap();
    assert_eq!(
        (cursor.key(), other.key()),
        (Some(&b"dd"[..]), Some(&b"b"[..])),
        "cursors do not move each other"
    );
}

fn a_mapped_value_outlives_its_db(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries([noise(100, 1), noise(1 << 20, 2), least(store).to_vec()]);
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    assert_eq!(db.map(b"missing", b"missing").unwrap(), None);
    let mapped: Vec<Option<Bytes>> = put.keys().map(|key| db.map(key, key).unwrap()).collect();
    match driver.capabilities().values {
        Values::Copied => assert!(mapped.iter().all(Option::is_none)),
        Values::Mapped | Values::MappedSingly => {
            drop(db);
            write(&*driver, &source, &entries([vec![0xee; 2 << 20]])).unwrap();
            driver.destroy(&source).unwrap();
            let mapped = mapped.into_iter().map(|value| value.expect("it says that it maps").to_vec());
            assert!(entries(mapped) == put);
        }
    }
}

fn bytes_read_are_counted(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries([noise(3 << 20, 1), noise(100_000, 2)]);
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    let opened = db.bytes_read();
    assert!(opened < 1 << 20, "opening read {opened} bytes");
    db.get(&key(1)).unwrap().unwrap();
    // Opening may have brought it along.
    let small = db.bytes_read();
    assert!(
        small >= 100_000 && small - opened < 1 << 20,
        "reading 100,000 bytes after {opened} made it {small}"
    );
    outcomes(&*db, &[(key(0), 0..3 << 20)]);
    let large = db.bytes_read();
    assert!(
        large >= (3 << 20) + 100_000 && large - small < 4 << 20,
        "reading 3 MiB after {small} made it {large}"
    );
}

fn many_threads_read_one_db(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries((0..50).map(|index| noise(10_000, index)));
    write(&*driver, &source, &put).unwrap();
    let db = open(&driver, &source);
    on_threads((0..8).collect(), |thread| {
        for round in 0..10 {
            let index = (thread * 7 + round * 13) % 50;
            assert_eq!(db.get(&key(index)).unwrap().unwrap(), put[&key(index)]);
            let part = outcomes(&*db, &[(key(index), 100..200)]).swap_remove(0).unwrap();
            assert_eq!(part, put[&key(index)][100..200]);
        }
        assert_holds(&*db, &put);
    });
}

fn opening_and_reading_change_nothing(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let put = entries([noise(100, 1), noise(1 << 20, 2)]);
    write(&*driver, &source, &put).unwrap();
    let state = || {
        let files = store.files("n.1").into_iter();
        let state = |path: std::path::PathBuf| {
            let file = fs::metadata(&path).unwrap();
            (path, file.len(), file.modified().unwrap())
        };
        files.map(state).collect::<Vec<_>>()
    };
    let before = state();
    assert!(!before.is_empty());
    let (one, two) = (open(&driver, &source), open(&store.driver(), &source));
    assert_holds(&*one, &put);
    assert_holds(&*two, &put);
    assert_eq!(state(), before, "while it is open");
    drop((one, two));
    assert_eq!(state(), before, "after it was closed");
}

fn db_types_share_a_place(store: &Store) {
    let local = ["files", "rocksdb", "lmdb", "leveldb"];
    let driver = |db_type| store.registry().driver(db_type, DriverOptions::new()).unwrap();
    for db_type in local {
        write(&*driver(db_type), &store.source(&format!("{db_type}.1")), &entries([db_type])).unwrap();
    }
    fs::create_dir_all(store.folder().unwrap().join("a folder")).unwrap();
    let own = format!("{}.1", store.db_type());
    assert_eq!(store.driver().list(&store.prefix()).unwrap(), [own.as_str()]);
    for db_type in local {
        let db = open(&driver(db_type), &store.source(&format!("{db_type}.1")));
        assert_holds(&*db, &entries([db_type]));
    }
}

fn something_else_in_its_place_is_an_error(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    let path = store.folder().unwrap().join("n.1");
    if ["files", "minidb"].contains(&store.db_type()) {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("precious"), "x").unwrap();
    } else {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "precious").unwrap();
    }
    let kinds = [
        driver.exists(&source).unwrap_err().kind(),
        driver.open(&source).unwrap_err().kind(),
        write(&*driver, &source, &entries(["x"])).unwrap_err().kind(),
        driver.destroy(&source).unwrap_err().kind(),
    ];
    assert!(!kinds.contains(&ErrorKind::NotFound), "{kinds:?}");
    assert!(path.exists(), "it was not ours to remove");
    assert_eq!(driver.list(&store.prefix()).unwrap(), [""; 0]);
    assert_eq!(store.leftovers(), [""; 0]);
}

fn records_are_put_replaced_listed_and_deleted(store: &Store) {
    let prefix = store.prefix();
    let records = || store.driver().records(&prefix).unwrap();
    let put = |name: &str, value: &[u8], mode| records().put(name, Bytes::copy_from_slice(value), mode);
    put("epoch.1", b"one", PutMode::Replace).unwrap();
    put("epoch.1", b"two", PutMode::Replace).unwrap();
    assert_eq!(records().get("epoch.1").unwrap().unwrap(), "two");
    put("pin.1", b"", PutMode::Create).unwrap();
    let error = put("pin.1", b"other", PutMode::Create).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    assert_eq!(records().get("pin.1").unwrap().unwrap(), "");
    let large = noise(100_000, 1);
    put("A-b_c.9", &large, PutMode::Replace).unwrap();
    assert_eq!(records().get("A-b_c.9").unwrap().unwrap(), large);
    let listed = || {
        let mut names = records().list().unwrap();
        names.sort_unstable();
        names
    };
    assert_eq!(listed(), ["A-b_c.9", "epoch.1", "pin.1"]);
    for _ in 0..2 {
        records().delete("epoch.1").unwrap();
        assert_eq!(records().get("epoch.1").unwrap(), None);
        assert_eq!(listed(), ["A-b_c.9", "pin.1"]);
    }
    put("epoch.1", b"three", PutMode::Create).unwrap();
    assert_eq!(records().get("epoch.1").unwrap().unwrap(), "three");
    let elsewhere = store.driver().records(&format!("{prefix}2")).unwrap();
    assert_eq!((elsewhere.list().unwrap(), elsewhere.get("pin.1").unwrap()), (Vec::new(), None));
    assert_eq!(store.leftovers(), [""; 0]);
}

fn record_names_are_checked(store: &Store) {
    let records = store.driver().records(&store.prefix()).unwrap();
    for name in ["", ".", "..", ".hidden", "a/b", "a b", "a:b", "ä"] {
        let refused = [
            records.put(name, Bytes::new(), PutMode::Replace).unwrap_err(),
            records.get(name).unwrap_err(),
            records.delete(name).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}: {error:?}");
        }
    }
}

fn of_concurrent_creators_one_wins(store: &Store) {
    let prefix = store.prefix();
    for round in 0..3 {
        let name = format!("lease.{round}");
        let outcomes = on_threads((0..8u8).collect(), |creator| {
            let records = store.driver().records(&prefix).unwrap();
            records.put(&name, Bytes::from(vec![creator; 100]), PutMode::Create)
        });
        let won: Vec<usize> = (0..8).filter(|&creator| outcomes[creator].is_ok()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
        }
        let value = store.driver().records(&prefix).unwrap().get(&name).unwrap().unwrap();
        assert_eq!(value, vec![u8::try_from(won[0]).unwrap(); 100]);
    }
    assert_eq!(store.leftovers(), [""; 0]);
}

fn a_record_is_replaced_at_once(store: &Store) {
    let prefix = store.prefix();
    let records = store.driver().records(&prefix).unwrap();
    let value = |version: u8| Bytes::from(vec![version; 20_000]);
    records.put("epoch.1", value(0), PutMode::Replace).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 1..=30 {
                records.put("epoch.1", value(version), PutMode::Replace).unwrap();
            }
        });
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let found = records.get("epoch.1").unwrap().expect("it is never away");
                assert_eq!(found, value(found[0]));
            }
        });
        let written = writer.join();
        done.store(true, Ordering::Release);
        reader.join().unwrap();
        written.unwrap();
    });
    assert_eq!(records.get("epoch.1").unwrap().unwrap(), value(30));
}

fn records_and_dbs_do_not_see_each_other(store: &Store) {
    let driver = store.driver();
    let records = driver.records(&store.prefix()).unwrap();
    records.put("epoch.1", Bytes::from_static(b"record"), PutMode::Replace).unwrap();
    assert_eq!(driver.list(&store.prefix()).unwrap(), [""; 0]);
    assert!(!driver.exists(&store.source("epoch.1")).unwrap());
    write(&*driver, &store.source("epoch.1"), &entries(["db"])).unwrap();
    driver.destroy(&store.source("epoch.1")).unwrap();
    assert_eq!(records.get("epoch.1").unwrap().unwrap(), "record");
    write(&*driver, &store.source("epoch.1"), &entries(["db"])).unwrap();
    records.delete("epoch.1").unwrap();
    assert_holds(&*open(&driver, &store.source("epoch.1")), &entries(["db"]));
    assert_eq!(records.list().unwrap(), [""; 0]);
}

fn a_call_from_an_async_runtime_is_answered(store: &Store) {
    let (driver, source) = (store.driver(), store.source("n.1"));
    write(&*driver, &source, &entries(["x"])).unwrap();
    let flavours =
        [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()];
    for mut builder in flavours {
        let runtime = builder.enable_all().build().unwrap();
        let (exists, opened, listed, written) = runtime.block_on(async {
            (
                store.driver().exists(&source),
                driver.open(&source).map(drop),
                driver.list(&store.prefix()).map(drop),
                write(&*driver, &store.source("n.2"), &entries(["x"])),
            )
        });
        match driver.capabilities().locality {
            Locality::Process | Locality::Local => {
                assert!(exists.unwrap());
                opened.and(listed).and(written).unwrap();
            }
            Locality::Remote => {
                for error in
                    [exists.unwrap_err(), opened.unwrap_err(), listed.unwrap_err(), written.unwrap_err()]
                {
                    assert_ne!(error.kind(), ErrorKind::NotFound);
                    assert!(error.to_string().contains("spawn_blocking"), "{error}");
                }
                // What it says to do works.
                let (driver, source) = (driver.clone(), source.clone());
                let blocking = runtime.spawn_blocking(move || driver.exists(&source));
                assert!(runtime.block_on(blocking).unwrap().unwrap());
            }
        }
    }
}
