//! Staging, publishing and what is left after a stop at any step.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use ckpt_engine::db::{Limits, PutMode, Records};
use ckpt_engine::{Effect, ErrorKind, Result};

use super::faults::{Faults, Plan, Step};
use super::*;
use crate::store::Segment;

fn write_file(path: &Path, contents: &str) -> Result<()> {
    let mut staged = StagedFile::create(path)?;
    staged.write(&[Bytes::copy_from_slice(contents.as_bytes())])?;
    staged.publish()
}

fn write_dir(path: &Path, contents: &str) -> Result<()> {
    let staged = StagedDir::create(path)?;
    fs::write(staged.path().join("data"), contents).unwrap();
    staged.publish()
}

fn read(path: &Path) -> Option<String> {
    let path = if path.is_dir() { path.join("data") } else { path.to_owned() };
    fs::read_to_string(path).ok()
}

/// Everything in a directory, hidden or not.
fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

type Verb = fn(&Path, &str) -> Result<()>;
const VERBS: [Verb; 2] = [write_file, write_dir];

#[test]
fn publishing_makes_parents_and_replaces() {
    for write in VERBS {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/trainer:0.1");
        write(&path, "old").unwrap();
        assert_eq!(read(&path).as_deref(), Some("old"));
        write(&path, "new").unwrap();
        assert_eq!(read(&path).as_deref(), Some("new"));
        assert_eq!(entries(path.parent().unwrap()), ["trainer:0.1"]);
    }
}

#[test]
fn dropped_it_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("x.1");
    let mut file = StagedFile::create(&path).unwrap();
    file.write(&[Bytes::from_static(b"bytes")]).unwrap();
    let dir = StagedDir::create(&root.path().join("y.1")).unwrap();
    fs::write(dir.path().join("data"), "bytes").unwrap();
    assert_eq!(entries(root.path()).len(), 2);
    assert_eq!(list_files(root.path()).unwrap(), Vec::<String>::new());
    assert_eq!(list_dirs(root.path()).unwrap(), Vec::<String>::new());
    drop((file, dir));
    assert_eq!(entries(root.path()), Vec::<String>::new());
}

/// Stops before every step in turn, as a crash would, and looks at what is there: the old one or the new one, whole.
#[test]
fn a_stop_at_any_step_leaves_the_old_or_the_new() {
    for write in VERBS {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("p/x.1");
        let counting = Faults::under(root.path(), Plan::Count);
        write(&path, "first").unwrap();
        write(&path, "old").unwrap();
        let all = counting.steps().len();
        drop(counting);
        for stop in 0..all {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("p/x.1");
            let faults = Faults::under(root.path(), Plan::StopBefore(stop));
            let first = write(&path, "first").map_err(|error| error.effect());
            let seen = read(&path);
            match first {
                Ok(()) => assert_eq!(seen.as_deref(), Some("first"), "{stop}"),
                Err(Effect::None) => assert_eq!(seen, None, "{stop}"),
                Err(Effect::MayHaveHappened) => {
                    assert!(matches!(seen.as_deref(), None | Some("first")), "{stop}")
                }
            }
            if first.is_ok() {
                let second = write(&path, "old").map_err(|error| error.effect());
                let seen = read(&path);
                match second {
                    Ok(()) => assert_eq!(seen.as_deref(), Some("old"), "{stop}"),
                    Err(Effect::None) => assert_eq!(seen.as_deref(), Some("first"), "{stop}"),
                    Err(Effect::MayHaveHappened) => {
                        assert!(matches!(seen.as_deref(), Some("first" | "old")), "{stop}");
                    }
                }
            }
            drop(faults);
            // The next process is not hindered by what was left.
            write(&path, "next").unwrap();
            assert_eq!(read(&path).as_deref(), Some("next"), "{stop}");
        }
    }
}

/// Fails every step once with a full disk and goes on: an error, the old one as it was, nothing left over.
#[test]
fn an_error_at_any_step_leaves_the_old_and_no_litter() {
    for write in VERBS {
        for number in 0.. {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("x.1");
            write(&path, "old").unwrap();
            let faults = Faults::under(root.path(), Plan::FailOnce(number, 28));
            let outcome = write(&path, "new");
            let Some((step, after)) = faults.steps().get(number..).and_then(<[_]>::split_first).map(owned)
            else {
                break;
            };
            if step == Step::Remove {
                // It was published; what could not be removed is only litter.
                outcome.unwrap();
                assert_eq!(read(&path).as_deref(), Some("new"));
                continue;
            }
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{number} {step:?}: {error}");
            // What failed to be synced is not tried again, and nothing is published after it.
            assert!(after.iter().all(|step| *step == Step::Remove), "{number} {step:?}: {after:?}");
            if error.effect() == Effect::MayHaveHappened {
                assert_eq!(step, Step::SyncDir);
                continue;
            }
            assert_eq!(read(&path).as_deref(), Some("old"), "{number} {step:?}");
            assert_eq!(entries(root.path()), ["x.1"], "{number} {step:?}");
        }
    }
}

fn owned((step, after): (&Step, &[Step])) -> (Step, Vec<Step>) {
    (*step, after.to_vec())
}

/// What a power cut leaves is decided by the order: bytes are durable before a name shows them, names before success is told.
#[test]
fn bytes_are_durable_before_their_name() {
    use Step::{CreateDir, CreateFile, Exchange, Link, Remove, Rename, SyncDir, SyncFile, Write};
    let root = tempfile::tempdir().unwrap();
    let steps_of = |work: &dyn Fn()| {
        let faults = Faults::under(root.path(), Plan::Count);
        work();
        faults.steps()
    };
    let (file, dir) = (root.path().join("a/b/file.1"), root.path().join("dir.1"));
    let make_parents = [CreateDir, SyncDir, CreateDir, SyncDir];
    let publish_file = [CreateFile, Write, SyncFile, Rename, SyncDir];
    assert_eq!(steps_of(&|| write_file(&file, "x").unwrap()), [&make_parents[..], &publish_file].concat());
    assert_eq!(steps_of(&|| write_file(&file, "x").unwrap()), publish_file);
    // The file in the directory is written by someone else.
    assert_eq!(steps_of(&|| write_dir(&dir, "x").unwrap()), [CreateDir, SyncFile, SyncDir, Rename, SyncDir]);
    let try_exchange = [CreateDir, CreateDir, Exchange, Remove];
    // The rename finds the old one in its place; that is removed after the exchange is durable.
    let replace = [SyncFile, SyncDir, Rename, Exchange, SyncDir, Remove];
    assert_eq!(steps_of(&|| write_dir(&dir, "x").unwrap()), [&try_exchange[..], &replace].concat());
    assert_eq!(steps_of(&|| destroy_dir(&dir).unwrap()), [Rename, SyncDir, Remove]);
    assert_eq!(steps_of(&|| destroy_file(&file).unwrap()), [Remove, SyncDir]);
    let records = FsRecords::new(root.path().to_str().unwrap());
    let create = || records.put("a", Bytes::from_static(b"x"), PutMode::Create).unwrap();
    let create_steps = [CreateDir, SyncDir, CreateFile, Write, SyncFile, Link, SyncDir, Remove];
    assert_eq!(steps_of(&create), create_steps);
}

#[test]
fn a_file_system_that_cannot_exchange_leaves_the_old() {
    for exchange in 0..2 {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.1");
        write_dir(&path, "old").unwrap();
        let counting = Faults::under(root.path(), Plan::Count);
        write_dir(&path, "old").unwrap();
        let steps = counting.steps();
        drop(counting);
        let exchanges = steps.iter().enumerate().filter(|(_, step)| **step == Step::Exchange);
        let number = exchanges.map(|(number, _)| number).nth(exchange).unwrap();
        let _faults = Faults::under(root.path(), Plan::FailOnce(number, 22));
        let error = write_dir(&path, "new").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("x.1`"), "{error}");
        assert_eq!(read(&path).as_deref(), Some("old"));
        assert_eq!(entries(root.path()), ["x.1"]);
    }
}

#[test]
fn the_wrong_type_is_said() {
    let root = tempfile::tempdir().unwrap();
    let (file, dir) = (root.path().join("file.1"), root.path().join("dir.1"));
    write_file(&file, "x").unwrap();
    write_dir(&dir, "x").unwrap();
    let below = file.join("x.1");
    let failures = [
        file_exists(&dir).unwrap_err(),
        dir_exists(&file).unwrap_err(),
        file_exists(&below).unwrap_err(),
        write_file(&dir, "new").unwrap_err(),
        write_dir(&file, "new").unwrap_err(),
        write_file(&below, "new").unwrap_err(),
        destroy_file(&dir).unwrap_err(),
        destroy_dir(&file).unwrap_err(),
        list_files(&file).unwrap_err(),
    ];
    for error in failures {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(".1"), "{error}");
    }
    assert!(write_file(&dir, "new").unwrap_err().to_string().contains("`rocksdb`, `lmdb` or `leveldb`"));
    assert_eq!((read(&file).as_deref(), read(&dir).as_deref()), (Some("x"), Some("x")));
}

#[test]
fn absent_is_not_an_error_where_it_is_the_answer() {
    let root = tempfile::tempdir().unwrap();
    let path: PathBuf = root.path().join("none/x.1");
    assert!(!file_exists(&path).unwrap() && !dir_exists(&path).unwrap());
    destroy_file(&path).unwrap();
    destroy_dir(&path).unwrap();
    assert_eq!(list_files(path.parent().unwrap()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn leftovers_of_a_killed_save_are_found() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("x.1");
    let faults = Faults::under(root.path(), Plan::StopBefore(1));
    write_file(&path, "x").unwrap_err();
    drop(faults);
    fs::write(root.path().join(".hidden"), "").unwrap();
    let found = leftovers(root.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].to_str().unwrap().contains("/.x.1."), "{found:?}");
    assert_eq!(leftovers(&root.path().join("none")).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn destroying_removes_all() {
    let root = tempfile::tempdir().unwrap();
    let (file, dir) = (root.path().join("file.1"), root.path().join("dir.1"));
    write_file(&file, "x").unwrap();
    write_dir(&dir, "x").unwrap();
    assert_eq!(list_files(root.path()).unwrap(), ["file.1"]);
    assert_eq!(list_dirs(root.path()).unwrap(), ["dir.1"]);
    destroy_file(&file).unwrap();
    destroy_dir(&dir).unwrap();
    assert_eq!(entries(root.path()), Vec::<String>::new());
}

#[test]
fn records_come_back() {
    let root = tempfile::tempdir().unwrap();
    let prefix = root.path().join("run");
    let records = FsRecords::new(prefix.to_str().unwrap());
    assert_eq!(records.list().unwrap(), Vec::<String>::new());
    assert_eq!(records.get("epoch.1").unwrap(), None);
    records.delete("epoch.1").unwrap();
    assert!(!prefix.exists());
    records.put("epoch.1", Bytes::from_static(b"a"), PutMode::Create).unwrap();
    let again = records.put("epoch.1", Bytes::from_static(b"b"), PutMode::Create).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(records.get("epoch.1").unwrap().unwrap(), "a");
    records.put("epoch.1", Bytes::from_static(b"b"), PutMode::Replace).unwrap();
    assert_eq!(records.get("epoch.1").unwrap().unwrap(), "b");
    assert_eq!(records.list().unwrap(), ["epoch.1"]);
    assert_eq!(entries(&prefix.join(".ckpt")), ["epoch.1"]);
    assert_eq!(list_dirs(&prefix).unwrap(), Vec::<String>::new());
    records.delete("epoch.1").unwrap();
    assert_eq!(entries(&prefix.join(".ckpt")), Vec::<String>::new());
    for name in ["", ".a", "a/b", "../a"] {
        assert!(records.get(name).is_err() && records.delete(name).is_err(), "{name}");
        assert!(records.put(name, Bytes::new(), PutMode::Replace).is_err(), "{name}");
    }
}

#[test]
fn of_many_creators_one_wins() {
    let root = tempfile::tempdir().unwrap();
    let records = FsRecords::new(root.path().to_str().unwrap());
    let created = |value: u8| {
        let value = Bytes::copy_from_slice(&[value]);
        records.put("lease", value, PutMode::Create).map_err(|error| error.kind())
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|value| scope.spawn(move || created(value))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let winner = outcomes.iter().position(Result::is_ok).unwrap();
    let lost = outcomes.iter().filter(|outcome| **outcome == Err(ErrorKind::AlreadyExists)).count();
    assert_eq!(lost, 7, "{outcomes:?}");
    assert_eq!(records.get("lease").unwrap().unwrap()[..], [u8::try_from(winner).unwrap()]);
}

/// Where there are no hard links, a rename that does not replace does the same.
#[test]
fn creating_works_without_hard_links() {
    let root = tempfile::tempdir().unwrap();
    let records = FsRecords::new(root.path().to_str().unwrap());
    let count = Faults::under(root.path(), Plan::Count);
    records.put("a", Bytes::new(), PutMode::Create).unwrap();
    let link = count.steps().iter().position(|step| *step == Step::Link).unwrap();
    drop(count);
    records.delete("a").unwrap();
    // The folder is there now, so its making and syncing are not among the steps.
    for (round, expected) in [Ok(()), Err(ErrorKind::AlreadyExists)].into_iter().enumerate() {
        let faults = Faults::under(root.path(), Plan::FailOnce(link - 2, 1));
        let outcome = records.put("a", Bytes::new(), PutMode::Create);
        assert_eq!(faults.steps()[link - 2], Step::Link, "{round}");
        assert_eq!(outcome.map_err(|error| error.kind()), expected);
    }
    assert_eq!(entries(&root.path().join(".ckpt")), ["a"]);
}

/// Alone, a long range is read by several threads.
#[test]
fn a_long_range_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let reader = reading::FileReader::new(fs::File::open(&path).unwrap(), path);
    for threads in [1, 3, 8] {
        for range in [0..9_000_001, 16..9_000_000, 4096..4096 + (8 << 20), 5..5 + (3 << 20)] {
            for is_lent in [false, true] {
                let (len, mut into) = (range.end - range.start, vec![0; range.end - range.start]);
                let bounds = range.start as u64..range.end as u64;
                let into = (!is_lent).then_some(&mut into[..]);
                let segment = Segment { index: 7, range: bounds, len, into };
                let limits = Limits { threads, memory: 64 << 20 };
                let reads = AtomicUsize::new(0);
                let is_right = |index: usize, found: ckpt_engine::Result<&[u8]>| {
                    assert!(index == 7 && found.unwrap() == &bytes[range.clone()], "{range:?}");
                    reads.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                reader.read(vec![segment], &limits, &is_right).unwrap();
                assert_eq!(reads.into_inner(), 1);
            }
        }
    }
    let mut into = vec![0; 6 << 20];
    let range = 5 << 20..11 << 20;
    let segment = Segment { index: 0, range, len: 6 << 20, into: Some(&mut into) };
    let told = Mutex::new(None);
    let limits = Limits { threads: 2, memory: 64 << 20 };
    reader
        .read(vec![segment], &limits, &|_, found| {
            *told.lock().unwrap() = found.err();
            Ok(())
        })
        .unwrap();
    assert!(told.into_inner().unwrap().unwrap().to_string().contains("cut short"));
}
