//! The verbs over the `memory` store. Other stores pass the suite of the tests crate.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::blob::{Blob, Buffer, DType};
use crate::db::{MemoryDriver, Payload, WritePlan};
use crate::error::{Error, ErrorKind};
use crate::format::{keys, layout};
use crate::manager::{EpochRecord, NodeRecord};

fn place() -> Checkpoints {
    Checkpoints::new(Arc::new(MemoryDriver::new()), "run")
}

fn zstd(place: Checkpoints) -> Checkpoints {
    place.with_options(Options { compression: Compression::Zstd(1), ..Options::default() })
}

/// A tensor of `len` bytes that do not compress.
fn noise(len: usize, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut data = Buffer::zeroed(len).unwrap();
    for byte in data.as_mut().unwrap() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = state.to_be_bytes()[0];
    }
    Tensor::new(DType::U8, [len as u64], data).unwrap()
}

fn workspace() -> Workspace {
    let mut workspace = Workspace::new();
    for &dtype in DType::ALL {
        if let Some(size) = dtype.size() {
            let data = noise(6 * size, size as u64).data().clone();
            workspace.insert(format!("{dtype}/2x3"), Tensor::new(dtype, [2, 3], data).unwrap());
            workspace.insert(
                format!("{dtype}/0d"),
                Tensor::new(dtype, [], Buffer::zeroed(size).unwrap()).unwrap(),
            );
            workspace.insert(
                format!("{dtype}/empty"),
                Tensor::new(dtype, [3, 0], Buffer::zeroed(0).unwrap()).unwrap(),
            );
        }
    }
    workspace.insert("strings", Tensor::from_strings([2, 1], &[&b"\0"[..], b""]).unwrap());
    workspace.insert(
        "nan",
        Tensor::from_slice([2], &[f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)]).unwrap(),
    );
    workspace.insert("", Tensor::scalar(1u8));
    workspace.insert("x".repeat(64 << 10), Tensor::scalar(2i64));
    workspace.insert("opaque", Blob::bytes("std::string", Bytes::from_static(b"a\0b")));
    workspace.insert("large", noise(layout::CHUNK_BYTES * 2 + 12_345, 9));
    workspace.insert("zeros", Tensor::new(DType::F32, [3 << 19], Buffer::zeroed(6 << 20).unwrap()).unwrap());
    workspace
}

/// Writes the db anew with one record changed.
fn tamper(place: &Checkpoints, node: &str, epoch: u64, mut change: impl FnMut(&[u8], &mut Vec<u8>)) {
    let source = place.source(node, epoch).unwrap();
    let db = place.driver().open(&source).unwrap();
    let plan = WritePlan { records: 0, bytes: 0, limits: Limits::default() };
    let write = place.driver().write(&source, &plan, &mut |transaction| {
        let mut cursor = db.cursor()?;
        while let Some(key) = cursor.key().map(<[u8]>::to_vec) {
            let mut value = cursor.value()?.to_vec();
            change(&key, &mut value);
            transaction.put(&key, Payload::from(value))?;
            cursor.next()?;
        }
        Ok(())
    });
    write.unwrap();
}

#[test]
fn everything_comes_back_bit_for_bit() {
    for place in [place(), zstd(place())] {
        let saved = workspace();
        let report = place.save(&saved, "n", 3).unwrap();
        assert_eq!(report.blobs, saved.len() as u64);
        assert_eq!(place.load("n", 3).unwrap(), saved);
        assert!(place.verify("n", 3).unwrap().is_ok());
        let zeros = place.open("n", 3).unwrap().manifest().unwrap().clone();
        let zeros = zeros.storage(zeros.blob("zeros").unwrap()).unwrap().clone();
        assert_eq!(zeros.stored_bytes() < 10_000, place.options().compression != Compression::None);
    }
}

#[test]
fn tied_weights_are_stored_once_and_come_back_shared() {
    let place = place();
    let tensor = noise(100_000, 1);
    let mut saved = Workspace::new();
    saved.insert("a", tensor.clone());
    saved.insert("b", tensor);
    let report = place.save(&saved, "n", 0).unwrap();
    assert_eq!(report.stored_bytes, 100_000);
    let loaded = place.load("n", 0).unwrap();
    assert!(loaded.tensor("a").unwrap().data().shares(loaded.tensor("b").unwrap().data()));
}

#[test]
fn a_partial_load_reads_only_its_chunks() {
    let place = place();
    let saved = (0..64).map(|index| (format!("w{index}"), noise(1 << 20, index).into())).collect();
    place.save(&saved, "n", 0).unwrap();
    let checkpoint = place.open("n", 0).unwrap();
    let before = checkpoint.db().bytes_read();
    let loaded = checkpoint.load(&Selection::names(["w7"])).unwrap();
    assert_eq!(loaded.get("w7"), saved.get("w7"));
    assert_eq!(checkpoint.db().bytes_read() - before, 1 << 20);
}

#[test]
fn rows_are_those_of_the_tensor() {
    for place in [place(), zstd(place())] {
        let rows = 3 * layout::CHUNK_BYTES as u64 / 1000;
        let mut saved = Workspace::new();
        let data = noise(usize::try_from(rows).unwrap() * 1000, 5).data().clone();
        saved.insert("w", Tensor::new(DType::U16, [rows, 10, 50], data).unwrap());
        saved.insert("s", Tensor::from_strings([3], &["a", "bc", ""]).unwrap());
        place.save(&saved, "n", 0).unwrap();
        for range in [0..1, 0..rows, rows - 1..rows, rows / 3 - 20..rows / 3 + 5000, 7..7] {
            let loaded = place.load_rows("n", 0, "w", range.clone()).unwrap();
            assert_eq!(loaded, saved.tensor("w").unwrap().rows(range).unwrap());
        }
        assert_eq!(place.load_rows("n", 0, "s", 1..3).unwrap().strings().unwrap(), [&b"bc"[..], b""]);
        let kind = |name, range| place.load_rows("n", 0, name, range).unwrap_err().kind();
        assert_eq!(kind("w", 0..rows + 1), ErrorKind::InvalidInput);
        assert_eq!(kind("v", 0..1), ErrorKind::NotFound);
    }
}

#[test]
fn a_flipped_byte_is_found_by_verify_and_by_the_load_that_reads_it() {
    for place in [place(), zstd(place())] {
        let mut saved = Workspace::new();
        saved.insert("a", noise(100, 1));
        saved.insert("b", Tensor::from_slice([300], &[7i64; 300]).unwrap());
        saved.insert("c", noise(70_000, 3));
        place.save(&saved, "n", 0).unwrap();
        let checkpoint = place.open("n", 0).unwrap();
        let manifest = checkpoint.manifest().unwrap().clone();
        for blob in &manifest.blobs {
            let located = manifest.storages[blob.storage].located().next().unwrap();
            for at in [located.stored.start, located.stored.end - 1] {
                let flip = |key: &[u8], value: &mut Vec<u8>| {
                    if keys::parse_record_key(key) == Some(located.record) {
                        value[usize::try_from(at).unwrap()] ^= 0x10;
                    }
                };
                tamper(&place, "n", 0, flip);
                let report = place.verify("n", 0).unwrap();
                let named: Vec<_> = report.damage.iter().map(|damage| damage.blob.as_deref()).collect();
                assert_eq!(named, [Some(blob.name.as_str())]);
                let error = place.load("n", 0).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.to_string().contains(&format!("blob `{}`", blob.name)), "{error}");
                let others = manifest.blobs.iter().filter(|other| other.name != blob.name);
                let others = Selection::names(others.map(|other| &other.name));
                assert_eq!(place.load_blobs("n", 0, &others).unwrap().len(), 2);
                tamper(&place, "n", 0, flip);
            }
        }
        assert!(place.verify("n", 0).unwrap().is_ok());
    }
}

#[test]
fn a_damaged_manifest_is_an_error_at_every_byte() {
    let place = place();
    let mut saved = Workspace::new();
    saved.insert("a", noise(100, 1));
    place.save(&saved, "n", 0).unwrap();
    let len = place.open("n", 0).unwrap().db().get(keys::MANIFEST).unwrap().unwrap().len();
    for at in 0..len {
        let flip = |key: &[u8], value: &mut Vec<u8>| {
            if key == keys::MANIFEST {
                value[at] ^= 0x01;
            }
        };
        tamper(&place, "n", 0, flip);
        assert!(place.open("n", 0).is_err(), "byte {at}");
        assert!(!place.verify("n", 0).unwrap().is_ok(), "byte {at}");
        tamper(&place, "n", 0, flip);
    }
    tamper(&place, "n", 0, |key, value| {
        if key == keys::MANIFEST {
            value.truncate(value.len() / 2);
        }
    });
    assert_eq!(place.open("n", 0).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_failed_save_leaves_the_old_one() {
    #[derive(Debug)]
    struct Failing(MemoryDriver);
    struct FailingTransaction<'a>(&'a mut dyn crate::db::Transaction, u32);
    impl crate::db::Transaction for FailingTransaction<'_> {
        fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
            self.1 += 1;
            if self.1 == 3 { Err(Error::new(ErrorKind::Full, "no space")) } else { self.0.put(key, value) }
        }
    }
    impl Driver for Failing {
        fn db_type(&self) -> &'static str {
            self.0.db_type()
        }
        fn capabilities(&self) -> crate::db::Capabilities {
            self.0.capabilities()
        }
        fn write(
            &self,
            source: &Source,
            plan: &WritePlan,
            body: &mut crate::db::WriteBody<'_>,
        ) -> Result<()> {
            self.0.write(source, plan, &mut |transaction| body(&mut FailingTransaction(transaction, 0)))
        }
        fn open(&self, source: &Source) -> Result<Arc<dyn crate::db::Db>> {
            self.0.open(source)
        }
        fn exists(&self, source: &Source) -> Result<bool> {
            self.0.exists(source)
        }
        fn list(&self, prefix: &str) -> Result<Vec<String>> {
            self.0.list(prefix)
        }
        fn destroy(&self, source: &Source) -> Result<()> {
            self.0.destroy(source)
        }
        fn records(&self, prefix: &str) -> Result<Arc<dyn crate::db::Records>> {
            self.0.records(prefix)
        }
    }
    let memory = MemoryDriver::new();
    let place = Checkpoints::new(Arc::new(memory.clone()), "run");
    let failing = Checkpoints::new(Arc::new(Failing(memory)), "run");
    let mut saved = Workspace::new();
    saved.insert("a", noise(9 << 20, 1));
    place.save(&saved, "n", 1).unwrap();
    let mut other = Workspace::new();
    other.insert("a", noise(9 << 20, 2));
    for epoch in [1, 2] {
        let error = failing.save(&other, "n", epoch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.to_string().contains(&format!("run/n.{epoch}")), "{error}");
    }
    assert_eq!(place.load("n", 1).unwrap(), saved);
    assert!(!place.exists("n", 2).unwrap());
}

#[test]
fn a_copy_is_the_same_save_and_is_made_once() {
    let (from, to) = (zstd(place()), place());
    from.save(&workspace(), "n", 4).unwrap();
    assert_eq!(from.copy_to("n", 4, &to).unwrap().outcome, CopyOutcome::Copied);
    assert_eq!(from.copy_to("n", 4, &to).unwrap().outcome, CopyOutcome::Present);
    assert_eq!(to.load("n", 4).unwrap(), workspace());
    assert_eq!(from.open("n", 4).unwrap().manifest().unwrap(), to.open("n", 4).unwrap().manifest().unwrap());
    tamper(&to, "n", 4, |key, value| {
        if keys::parse_record_key(key) == Some(1) {
            value[0] ^= 1;
        }
    });
    assert_eq!(
        from.copy_to("n", 4, &to).unwrap().outcome,
        CopyOutcome::Copied,
        "a damaged copy is made again"
    );
    tamper(&from, "n", 4, |key, value| {
        if keys::parse_record_key(key) == Some(1) {
            value[0] ^= 1;
        }
    });
    let fresh = place();
    assert_eq!(from.copy_to("n", 4, &fresh).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!fresh.exists("n", 4).unwrap(), "damage is not copied");
}

#[test]
fn diff_tells_what_differs() {
    let place = place();
    let mut a = Workspace::new();
    a.insert("same", noise(100, 1));
    a.insert("gone", noise(1, 1));
    a.insert("bytes", noise(5 << 20, 1));
    a.insert("shape", noise(6, 1));
    a.insert("dtype", noise(6, 1));
    a.insert("kind", Tensor::scalar(1u8));
    place.save(&a, "n", 1).unwrap();
    let mut b = a.clone();
    b.remove("gone");
    b.insert("new", noise(1, 1));
    let mut changed = noise(5 << 20, 1).data().clone();
    changed.as_mut().unwrap()[(5 << 20) - 1] ^= 1;
    b.insert("bytes", Tensor::new(DType::U8, [5 << 20], changed).unwrap());
    b.insert("shape", Tensor::new(DType::U8, [2, 3], noise(6, 1).data().clone()).unwrap());
    b.insert("dtype", Tensor::new(DType::I8, [6], noise(6, 1).data().clone()).unwrap());
    b.insert("kind", Blob::bytes("u8", Bytes::from_static(&[1])));
    place.save(&b, "n", 2).unwrap();
    let (open_a, open_b) = (place.open("n", 1).unwrap(), place.open("n", 2).unwrap());
    assert!(open_a.diff(&open_a).unwrap().is_equal());
    let diff = open_a.diff(&open_b).unwrap();
    assert_eq!((diff.added, diff.removed), (vec!["new".to_owned()], vec!["gone".to_owned()]));
    let changed: Vec<_> = diff.changed.into_iter().map(|changed| (changed.name, changed.change)).collect();
    let dtype = |a: &str, b: &str| Change::DType { a: a.to_owned(), b: b.to_owned() };
    assert_eq!(changed[0], ("bytes".to_owned(), Change::Bytes { first: (5 << 20) - 1 }));
    assert_eq!(changed[1], ("dtype".to_owned(), dtype("u8", "i8")));
    assert_eq!(changed[2], ("kind".to_owned(), dtype("u8", "bytes `u8`")));
    assert_eq!(changed[3], ("shape".to_owned(), Change::Shape { a: vec![6], b: vec![2, 3] }));
}

#[test]
fn an_epoch_is_complete_when_its_record_and_all_its_dbs_agree() {
    let place = place();
    let save = |node: &str, epoch| {
        let mut workspace = Workspace::new();
        workspace.insert("w", Tensor::scalar(1u8));
        NodeRecord::new(node, &place.save(&workspace, node, epoch).unwrap())
    };
    let records = place.records().unwrap();
    for epoch in 1..=3 {
        let nodes = vec![save("a", epoch), save("b", epoch)];
        records.put(&EpochRecord::new(epoch, nodes)).unwrap();
    }
    save("a", 4);
    assert_eq!(place.latest_complete().unwrap(), Some(3));
    save("a", 3);
    assert_eq!(place.latest_complete().unwrap(), Some(2), "a db of another attempt");
    place.destroy("b", 2).unwrap();
    assert_eq!(place.latest_complete().unwrap(), Some(1), "a db is missing");
    let complete: Vec<_> =
        place.epochs().unwrap().iter().map(|state| (state.epoch, state.is_complete())).collect();
    assert_eq!(complete, [(1, true), (2, false), (3, false), (4, false)]);
}
