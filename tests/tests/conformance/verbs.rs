//! The verbs over every store: save, load, verify, copy, diff, list. Each case ends in `verify`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ckpt_engine::blob::{Blob, Buffer, DType, Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::{Change, Compression, CopyOutcome};
use ckpt_engine::db::Limits;
use ckpt_engine::manager::{EpochRecord, NodeRecord};
use ckpt_engine::observer::Observer;
use ckpt_engine::{Checkpoints, ErrorKind, Options};
use ckpt_tests::data::{blobs, noise, noise_tensor, one_of_everything, zeros};
use ckpt_tests::stores::{DB_TYPES, Store};

use crate::support::{on_threads, round_trip, verify};
use crate::{Case, cases};

pub const CASES: &[Case] = cases! {
    everything_comes_back_bit_for_bit;
    a_workspace_of_no_blobs_is_a_checkpoint;
    tied_weights_are_stored_once_and_come_back_shared;
    blobs_are_loaded_by_name_and_by_glob;
    rows_are_those_of_the_tensor;
    a_partial_load_reads_little_more_than_it_wants;
    a_small_blob_among_many_is_read_alone;
    saving_again_replaces;
    a_refused_save_leaves_nothing;
    nodes_save_at_the_same_time;
    training_goes_on_while_a_save_runs;
    compression_pays_or_is_left_out;
    twenty_thousand_small_blobs;
    the_least_of_memory_and_threads_is_enough;
    progress_adds_up;
    a_report_says_what_was_written;
    metadata_is_kept;
    differences_are_found;
    an_epoch_is_complete_when_all_agree;
    a_copy_to_every_other_store_is_the_same_save;
    a_copy_that_is_damaged_is_made_again but not on "memory": "it keeps no files to damage";
};

fn with(place: &Checkpoints, compression: Compression) -> Checkpoints {
    place.clone().with_options(Options { compression, ..place.options().clone() })
}

fn everything_comes_back_bit_for_bit(store: &Store) {
    let saved = one_of_everything();
    for (epoch, compression) in [(1, Compression::None), (2, Compression::Zstd(3))] {
        round_trip(&with(&store.checkpoints(), compression), &saved, "trainer:0", epoch);
        // A reader that knows nothing of how it was saved.
        assert_eq!(store.checkpoints().load("trainer:0", epoch).unwrap(), saved);
        assert!(store.checkpoints().exists("trainer:0", epoch).unwrap());
        assert!(!store.checkpoints().exists("trainer:0", epoch + 10).unwrap());
        assert!(!store.checkpoints().exists("trainer:1", epoch).unwrap());
    }
    let names: Vec<_> =
        store.checkpoints().list().unwrap().into_iter().map(|db| (db.node, db.epoch)).collect();
    assert_eq!(names, [("trainer:0".to_owned(), 1), ("trainer:0".to_owned(), 2)]);
    assert_eq!(store.leftovers(), [""; 0]);
}

fn a_workspace_of_no_blobs_is_a_checkpoint(store: &Store) {
    round_trip(&store.checkpoints(), &Workspace::new(), "n", 0);
    round_trip(&store.checkpoints(), &Workspace::new(), "n", u64::MAX);
}

fn tied_weights_are_stored_once_and_come_back_shared(store: &Store) {
    let place = store.checkpoints();
    let (tensor, small) = (noise_tensor(5 << 20, 1), noise_tensor(48, 2));
    let mut saved = Workspace::new();
    for name in ["decoder", "encoder"] {
        saved.insert(name, tensor.clone());
        saved.insert(format!("{name}.bias"), small.clone());
    }
    saved.insert("reshaped", Tensor::new(DType::F32, [4, 3], small.data().clone()).unwrap());
    let report = place.save(&saved, "n", 1).unwrap();
    assert_eq!(report.bytes, (5 << 20) + 48);
    let mut loaded = place.load("n", 1).unwrap();
    assert_eq!(loaded, saved);
    let shares = |workspace: &Workspace, a: &str, b: &str| {
        workspace.tensor(a).unwrap().data().shares(workspace.tensor(b).unwrap().data())
    };
    assert!(shares(&loaded, "encoder", "decoder"));
    assert!(shares(&loaded, "encoder.bias", "reshaped"));
    assert!(!shares(&loaded, "encoder", "encoder.bias"));
    // Who writes to one of them gets its own.
    let Some(Blob::Tensor(encoder)) = loaded.get_mut("encoder") else { panic!("it is a tensor") };
    encoder.data_mut().unwrap().fill(0);
    assert_eq!(loaded.tensor("decoder").unwrap(), &tensor);
    verify(&place, "n", 1);
}

fn blobs_are_loaded_by_name_and_by_glob(store: &Store) {
    let place = store.checkpoints();
    let mut saved = Workspace::new();
    for (seed, name) in (0..).zip(["a", "layer.0/w", "layer.0/b", "layer.1/w", "layer.10/w", "x[0]"]) {
        saved.insert(name, noise_tensor(100_000, seed));
    }
    place.save(&saved, "n", 1).unwrap();
    let loaded = |selection: Selection| {
        let loaded = place.load_blobs("n", 1, &selection).unwrap();
        for (name, blob) in loaded.iter() {
            assert_eq!(Some(blob), saved.get(name));
        }
        loaded.names().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(loaded(Selection::names(["layer.1/w", "a", "a"])), ["a", "layer.1/w"]);
    assert_eq!(loaded(Selection::globs(["layer.?/w", "x[0]"])), ["layer.0/w", "layer.1/w", "x[0]"]);
    assert_eq!(loaded(Selection::globs(["*/w"])).len(), 3);
    assert_eq!(loaded(Selection::names([""; 0])), [""; 0]);
    for missing in [Selection::names(["a", "b"]), Selection::globs(["a", "b*"])] {
        let error = place.load_blobs("n", 1, &missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        assert!(error.to_string().contains("`b"), "{error}");
    }
    verify(&place, "n", 1);
}

fn rows_are_those_of_the_tensor(store: &Store) {
    let rows = 9000_u64;
    let mut saved = Workspace::new();
    let data = Buffer::from_vec(noise(9000 * 1000, 1));
    saved.insert("w", Tensor::new(DType::U16, [rows, 10, 50], data).unwrap());
    saved.insert("small", Tensor::new(DType::F64, [3, 2], Buffer::from_vec(noise(48, 2))).unwrap());
    saved.insert("strings", Tensor::from_strings([3], &["a", "bc", ""]).unwrap());
    saved.insert("scalar", Tensor::scalar(1u8));
    for (epoch, compression) in [(1, Compression::None), (2, Compression::Zstd(1))] {
        let place = with(&store.checkpoints(), compression);
        place.save(&saved, "n", epoch).unwrap();
        let same = |name: &str, range: Range<u64>| {
            let loaded = place.load_rows("n", epoch, name, range.clone()).unwrap();
            assert_eq!(loaded, saved.tensor(name).unwrap().rows(range).unwrap());
        };
        // Across the borders of chunks, which lie at multiples of 4 MiB.
        for range in [0..1, 0..rows, rows - 1..rows, 4190..4200, 4194..8389, 7..7, rows..rows] {
            same("w", range);
        }
        same("small", 1..3);
        same("strings", 1..3);
        let kind = |name: &str, range| place.load_rows("n", epoch, name, range).unwrap_err().kind();
        assert_eq!(kind("w", 0..rows + 1), ErrorKind::InvalidInput);
        assert_eq!(kind("w", u64::MAX - 1..u64::MAX), ErrorKind::InvalidInput);
        assert_eq!(kind("scalar", 0..1), ErrorKind::InvalidInput);
        assert_eq!(kind("none", 0..1), ErrorKind::NotFound);
        verify(&place, "n", epoch);
    }
}

fn a_partial_load_reads_little_more_than_it_wants(store: &Store) {
    let place = store.checkpoints();
    let saved = blobs(64, 1 << 20, 1);
    place.save(&saved, "n", 1).unwrap();
    let checkpoint = place.open("n", 1).unwrap();
    let loaded = checkpoint.load(&Selection::names(["w37"])).unwrap();
    assert_eq!(loaded.get("w37"), saved.get("w37"));
    let read = checkpoint.db().bytes_read();
    assert!((1 << 20..=2 << 20).contains(&read), "wanted 1 MiB, read {read} bytes, opening included");
    let checkpoint = place.open("n", 1).unwrap();
    let row = checkpoint.load_rows("w05", 1000..2000).unwrap();
    assert_eq!(row, saved.tensor("w05").unwrap().rows(1000..2000).unwrap());
    let read = checkpoint.db().bytes_read();
    assert!(read <= 2 << 20, "wanted a part of 1 MiB, read {read} bytes, opening included");
    verify(&place, "n", 1);
}

fn a_small_blob_among_many_is_read_alone(store: &Store) {
    let place = store.checkpoints();
    let saved = (0..4096).map(|index| (format!("w{index}"), noise_tensor(4096, index).into()));
    let saved: Workspace = saved.collect();
    place.save(&saved, "n", 1).unwrap();
    let checkpoint = place.open("n", 1).unwrap();
    let opened = checkpoint.db().bytes_read();
    let loaded = checkpoint.load(&Selection::names(["w2048"])).unwrap();
    assert_eq!(loaded.get("w2048"), saved.get("w2048"));
    let read = checkpoint.db().bytes_read() - opened;
    assert!(read <= 1 << 20, "wanted 4 KiB, read {read} bytes");
    verify(&place, "n", 1);
}

fn saving_again_replaces(store: &Store) {
    let place = store.checkpoints();
    let (one, two) = (blobs(3, 3 << 20, 1), blobs(3, 3 << 20, 2));
    place.save(&one, "n", 1).unwrap();
    let older = place.open("n", 1).unwrap();
    place.save(&two, "n", 1).unwrap();
    assert_eq!(place.load("n", 1).unwrap(), two);
    assert_ne!(older.id(), place.open("n", 1).unwrap().id(), "another save has another id");
    match older.load(&Selection::All) {
        Ok(loaded) => assert_eq!(loaded, one),
        Err(error) => assert_eq!((error.kind(), store.db_type()), (ErrorKind::Conflict, "s3"), "{error:?}"),
    }
    assert_eq!(place.list().unwrap().len(), 1);
    assert_eq!(store.leftovers(), [""; 0]);
    verify(&place, "n", 1);
}

fn a_refused_save_leaves_nothing(store: &Store) {
    let place = store.checkpoints();
    let mut wrong = blobs(1, 100, 1);
    wrong.insert("n".repeat((64 << 10) + 1), noise_tensor(1, 1));
    assert_eq!(place.save(&wrong, "n", 1).unwrap_err().kind(), ErrorKind::InvalidInput);
    let saved = blobs(1, 100, 1);
    for node in ["", "a/b", "../a", ".a", "a\nb", &"n".repeat(191)] {
        assert_eq!(place.save(&saved, node, 1).unwrap_err().kind(), ErrorKind::InvalidInput, "{node:?}");
    }
    assert!(!place.exists("n", 1).unwrap());
    assert_eq!(store.leftovers(), [""; 0]);
    round_trip(&place, &saved, "n", 1);
}

fn nodes_save_at_the_same_time(store: &Store) {
    let place = store.checkpoints();
    let nodes: Vec<u64> = (0..4).collect();
    on_threads(nodes.clone(), |node| {
        for epoch in 1..=2 {
            place.save(&blobs(3, 1 << 20, node * 10 + epoch), &format!("trainer:{node}"), epoch).unwrap();
        }
    });
    assert_eq!(place.list().unwrap().len(), 8);
    for node in nodes {
        for epoch in 1..=2 {
            let name = format!("trainer:{node}");
            assert_eq!(place.load(&name, epoch).unwrap(), blobs(3, 1 << 20, node * 10 + epoch));
            verify(&place, &name, epoch);
        }
    }
    assert_eq!(store.leftovers(), [""; 0]);
}

fn training_goes_on_while_a_save_runs(store: &Store) {
    let place = store.checkpoints();
    let mut live = blobs(8, 2 << 20, 1);
    let (snapshot, expected) = (live.clone(), blobs(8, 2 << 20, 1));
    std::thread::scope(|scope| {
        let save = scope.spawn(|| place.save(&snapshot, "n", 1));
        let mut step = 0u8;
        while !save.is_finished() || step < 3 {
            step = step.wrapping_add(1);
            for index in 0..8 {
                let Some(Blob::Tensor(tensor)) = live.get_mut(&format!("w{index:02}")) else { panic!() };
                tensor.data_mut().unwrap().fill(step);
            }
        }
        save.join().unwrap().unwrap();
    });
    assert_eq!(place.load("n", 1).unwrap(), expected, "one moment of the workspace");
    verify(&place, "n", 1);
}

fn compression_pays_or_is_left_out(store: &Store) {
    let mut saved = Workspace::new();
    saved.insert("noise", noise_tensor(5 << 20, 1));
    saved.insert("small noise", noise_tensor(1000, 2));
    saved.insert("zeros", zeros(9 << 20));
    saved.insert("small zeros", zeros(5000));
    let raw = store.checkpoints().save(&saved, "n", 1).unwrap();
    assert_eq!(raw.stored_bytes, raw.bytes);
    let place = with(&store.checkpoints(), Compression::Zstd(3));
    let report = place.save(&saved, "n", 2).unwrap();
    let noise = (5 << 20) + 1000;
    assert!((noise..noise + 10_000).contains(&report.stored_bytes), "{report:?}");
    assert_eq!(store.checkpoints().load("n", 2).unwrap(), saved);
    let mixed = store.checkpoints().open("n", 1).unwrap();
    assert!(mixed.diff(&store.checkpoints().open("n", 2).unwrap()).unwrap().is_equal());
    verify(&place, "n", 1);
    verify(&place, "n", 2);
}

fn twenty_thousand_small_blobs(store: &Store) {
    let blob = |index: usize| {
        let tensor = Tensor::from_vec([10], vec![index as f32; 10]).unwrap();
        (format!("table.{index}/w"), tensor.into())
    };
    let saved: Workspace = (0..20_000).map(blob).collect();
    for compression in [Compression::None, Compression::Zstd(3)] {
        round_trip(&with(&store.checkpoints(), compression), &saved, "n", 1);
    }
    let some = store.checkpoints().load_blobs("n", 1, &Selection::globs(["table.1999?/w"])).unwrap();
    assert_eq!(some.len(), 10);
}

fn the_least_of_memory_and_threads_is_enough(store: &Store) {
    let saved = one_of_everything();
    for (epoch, limits) in
        [Limits { threads: 1, memory: 0 }, Limits { threads: 9, memory: 1 }].into_iter().enumerate()
    {
        for compression in [Compression::None, Compression::Zstd(1)] {
            let options = Options { compression, limits, ..store.checkpoints().options().clone() };
            round_trip(&store.checkpoints().with_options(options), &saved, "n", epoch as u64);
        }
    }
}

#[derive(Default)]
struct Tally {
    announced: Mutex<Vec<u64>>,
    advanced: AtomicU64,
    finished: AtomicUsize,
}

impl Observer for Tally {
    fn started(&self, what: &str, bytes: u64) {
        assert!(what.contains("n.1"), "{what}");
        self.announced.lock().unwrap().push(bytes);
    }

    fn advanced(&self, bytes: u64) {
        self.advanced.fetch_add(bytes, Ordering::Relaxed);
    }

    fn finished(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

fn progress_adds_up(store: &Store) {
    let saved = blobs(5, 3 << 20, 1);
    let bytes = 5 * (3 << 20);
    let observed = |verb: &dyn Fn(&Checkpoints)| {
        let tally = Arc::new(Tally::default());
        let options =
            Options { observer: Arc::<Tally>::clone(&tally), ..store.checkpoints().options().clone() };
        verb(&store.checkpoints().with_options(options));
        assert_eq!(*tally.announced.lock().unwrap(), [bytes]);
        assert_eq!(tally.advanced.load(Ordering::Relaxed), bytes);
        assert_eq!(tally.finished.load(Ordering::Relaxed), 1);
    };
    observed(&|place| drop(place.save(&saved, "n", 1).unwrap()));
    observed(&|place| drop(place.load("n", 1).unwrap()));
    observed(&|place| assert!(place.verify("n", 1).unwrap().is_ok()));
}

fn a_report_says_what_was_written(store: &Store) {
    let place = store.checkpoints();
    let report = place.save(&blobs(3, 1000, 1), "n", 1).unwrap();
    assert_eq!((report.blobs, report.bytes, report.stored_bytes), (3, 3000, 3000));
    assert!((3000..10_000).contains(&report.bytes_written), "{report:?}");
    assert_eq!(report.db, format!("{}:{}/n.1", store.db_type(), store.prefix()));
    let checkpoint = place.open("n", 1).unwrap();
    assert_eq!(*checkpoint.id(), report.id);
    assert_eq!((checkpoint.about().node.as_str(), checkpoint.about().epoch), ("n", 1));
    let infos = checkpoint.blobs().unwrap();
    let infos: Vec<_> =
        infos.iter().map(|info| (info.name, info.bytes, info.stored_bytes, info.chunks)).collect();
    assert_eq!(infos, [("w00", 1000, 1000, 1), ("w01", 1000, 1000, 1), ("w02", 1000, 1000, 1)]);
    verify(&place, "n", 1);
}

fn metadata_is_kept(store: &Store) {
    let metadata: BTreeMap<String, String> = [("commit", "0123abcd"), ("", ""), ("größe", "\n\0")]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    let options = Options { metadata: metadata.clone(), ..store.checkpoints().options().clone() };
    store.checkpoints().with_options(options).save(&blobs(1, 10, 1), "n", 1).unwrap();
    assert_eq!(store.checkpoints().open("n", 1).unwrap().about().metadata, metadata);
    verify(&store.checkpoints(), "n", 1);
}

fn differences_are_found(store: &Store) {
    let place = store.checkpoints();
    let a = blobs(4, 5 << 20, 1);
    let mut b = a.clone();
    let mut last_byte = a.tensor("w01").unwrap().clone();
    last_byte.data_mut().unwrap()[(5 << 20) - 1] ^= 1;
    b.insert("w01", last_byte);
    let data = a.tensor("w02").unwrap().data().clone();
    b.insert("w02", Tensor::new(DType::U8, [5, 1 << 20], data).unwrap());
    b.remove("w03");
    b.insert("w04", noise_tensor(1, 1));
    place.save(&a, "n", 1).unwrap();
    place.save(&b, "n", 2).unwrap();
    // The same values, saved by another store with compression: no difference.
    let other = Store::fresh("memory");
    with(&other.checkpoints(), Compression::Zstd(1)).save(&a, "m", 7).unwrap();
    let (a, b) = (place.open("n", 1).unwrap(), place.open("n", 2).unwrap());
    assert!(a.diff(&other.checkpoints().open("m", 7).unwrap()).unwrap().is_equal());
    let diff = a.diff(&b).unwrap();
    assert_eq!((diff.added, diff.removed), (vec!["w04".to_owned()], vec!["w03".to_owned()]));
    let changed: Vec<_> = diff.changed.into_iter().map(|changed| (changed.name, changed.change)).collect();
    let shape = Change::Shape { a: vec![5 << 20], b: vec![5, 1 << 20] };
    let first = (5 << 20) - 1;
    assert_eq!(changed, [("w01".to_owned(), Change::Bytes { first }), ("w02".to_owned(), shape)]);
    verify(&place, "n", 1);
    verify(&place, "n", 2);
}

fn an_epoch_is_complete_when_all_agree(store: &Store) {
    let place = store.checkpoints();
    assert_eq!(place.latest_complete().unwrap(), None);
    let save =
        |node: &str, epoch| NodeRecord::new(node, &place.save(&blobs(1, 10, epoch), node, epoch).unwrap());
    for epoch in 1..=4 {
        let nodes = vec![save("a", epoch), save("b", epoch)];
        place.records().unwrap().put(&EpochRecord::new(epoch, nodes)).unwrap();
    }
    save("a", 5);
    assert_eq!(place.latest_complete().unwrap(), Some(4), "5 has no record");
    save("a", 4);
    assert_eq!(place.latest_complete().unwrap(), Some(3), "4 is of two attempts");
    place.destroy("b", 3).unwrap();
    assert_eq!(place.latest_complete().unwrap(), Some(2), "3 lacks a node");
    let states = store.checkpoints().epochs().unwrap();
    let states: Vec<_> =
        states.iter().map(|state| (state.epoch, state.is_complete(), state.nodes.len())).collect();
    assert_eq!(states, [(1, true, 2), (2, true, 2), (3, false, 1), (4, false, 2), (5, false, 1)]);
    verify(&place, "a", 2);
}

fn a_copy_to_every_other_store_is_the_same_save(store: &Store) {
    let from = with(&store.checkpoints(), Compression::Zstd(1));
    let saved = one_of_everything();
    from.save(&saved, "trainer:0", 3).unwrap();
    let manifest = from.open("trainer:0", 3).unwrap().manifest().unwrap().clone();
    let byte_identical = ["files", "s3"];
    for db_type in DB_TYPES {
        let there = Store::fresh(db_type);
        let to = there.checkpoints();
        let report = from.copy_to("trainer:0", 3, &to).unwrap();
        assert_eq!((report.outcome, report.blobs), (CopyOutcome::Copied, saved.len() as u64), "to {db_type}");
        assert_eq!(to.open("trainer:0", 3).unwrap().manifest().unwrap(), &manifest, "to {db_type}");
        assert_eq!(to.load("trainer:0", 3).unwrap(), saved, "to {db_type}");
        verify(&to, "trainer:0", 3);
        assert!(
            from.open("trainer:0", 3).unwrap().diff(&to.open("trainer:0", 3).unwrap()).unwrap().is_equal()
        );
        let again = from.copy_to("trainer:0", 3, &to).unwrap();
        assert_eq!((again.outcome, again.bytes_written), (CopyOutcome::Present, 0), "to {db_type}");
        if byte_identical.contains(&store.db_type()) && byte_identical.contains(&db_type) {
            let bytes = |store: &Store| match store.files("trainer:0.3").as_slice() {
                [file] => std::fs::read(file).unwrap(),
                files => panic!("a pack is one file: {files:?}"),
            };
            assert!(bytes(store) == bytes(&there), "{} to {db_type}", store.db_type());
        }
        assert_eq!(there.leftovers(), [""; 0]);
    }
    verify(&from, "trainer:0", 3);
}

fn a_copy_that_is_damaged_is_made_again(store: &Store) {
    let (place, other) = (store.checkpoints(), Store::fresh("memory"));
    let saved = blobs(2, 100_000, 1);
    other.checkpoints().save(&saved, "n", 1).unwrap();
    let copy = || other.checkpoints().copy_to("n", 1, &place).unwrap().outcome;
    assert_eq!(copy(), CopyOutcome::Copied);
    crate::damage::damage_blob(store, "n.1", &noise(100_000, 1), 50_000);
    assert!(!place.verify("n", 1).unwrap().is_ok());
    let error = place.copy_to("n", 1, &Store::fresh("memory").checkpoints()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "damage is not copied on: {error:?}");
    assert_eq!(copy(), CopyOutcome::Copied);
    assert_eq!(place.load("n", 1).unwrap(), saved);
    verify(&place, "n", 1);
}
