//! Whatever a workspace holds, it survives every store; whatever part of it is asked for, it is that part.
//!
//! A failure is shrunk, printed, and noted in `properties.regressions`, from where it is tried first the next time.

use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::blob::{Blob, Buffer, DType, Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::Compression;
use ckpt_engine::db::{Layout, Limits};
use ckpt_engine::{Checkpoints, Options};
use ckpt_tests::data::{noise, zeros};
use ckpt_tests::stores::{self, DB_TYPES, Store};
use libtest_mimic::{Arguments, Trial};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/properties.regressions");

fn main() {
    stores::init();
    let properties: [(&str, fn()); 2] = [
        ("a_workspace_survives_every_store", a_workspace_survives_every_store),
        ("a_part_is_the_part_of_the_whole", a_part_is_the_part_of_the_whole),
    ];
    let trial = |(name, property): (&str, fn())| {
        Trial::test(name, move || {
            property();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), properties.map(trial).into()).exit();
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 300,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(32))]

    fn a_workspace_survives_every_store(
        specs in specs(),
        from in select(&DB_TYPES),
        to in select(&DB_TYPES),
        options in options(),
    ) {
        let saved = build(&specs);
        let (from, to) = (Store::fresh(from), Store::fresh(to));
        let place = from.checkpoints().with_options(options);
        place.save(&saved, "n", 1).unwrap();
        assert_same(&place, &saved);
        place.copy_to("n", 1, &to.checkpoints()).unwrap();
        assert_same(&to.checkpoints(), &saved);
        let manifest = |store: &Store| store.checkpoints().open("n", 1).unwrap().manifest().unwrap().clone();
        prop_assert_eq!(manifest(&from), manifest(&to));
    }
}

proptest! {
    #![proptest_config(config(48))]

    fn a_part_is_the_part_of_the_whole(
        specs in specs(),
        db_type in select(&DB_TYPES),
        options in options(),
        picks in vec(any::<Index>(), 1..6),
        rows in vec((any::<Index>(), any::<Index>(), any::<Index>()), 1..6),
    ) {
        let saved = build(&specs);
        let store = Store::fresh(db_type);
        let place = store.checkpoints().with_options(options);
        place.save(&saved, "n", 1).unwrap();
        let names: Vec<&str> = saved.names().collect();
        if names.is_empty() {
            return Ok(());
        }
        let picked: Vec<&str> = picks.iter().map(|pick| *pick.get(&names)).collect();
        let wanted: Workspace = (picked.iter())
            .map(|name| ((*name).to_owned(), saved.get(name).unwrap().clone()))
            .collect();
        prop_assert_eq!(place.load_blobs("n", 1, &Selection::names(picked)).unwrap(), wanted);
        for (pick, start, end) in rows {
            let name = *pick.get(&names);
            let Ok(tensor) = saved.tensor(name) else { continue };
            let Some(range) = row_range(tensor, start, end) else { continue };
            let part = place.load_rows("n", 1, name, range.clone()).unwrap();
            prop_assert_eq!(part, tensor.rows(range).unwrap());
        }
        prop_assert!(place.verify("n", 1).unwrap().is_ok());
    }
}

fn row_range(tensor: &Tensor, start: Index, end: Index) -> Option<Range<u64>> {
    let rows = usize::try_from(*tensor.shape().first()?).unwrap();
    let (a, b) = (start.index(rows + 1) as u64, end.index(rows + 1) as u64);
    Some(a.min(b)..a.max(b))
}

fn assert_same(place: &Checkpoints, saved: &Workspace) {
    let loaded = place.load("n", 1).unwrap();
    assert!(loaded == *saved, "other values came back");
    let shared = |workspace: &Workspace| {
        let blobs: Vec<_> = workspace.iter().map(|(_, blob)| blob.data().clone()).collect();
        let pairs = (0..blobs.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        pairs.filter(|&(a, b)| blobs[a].shares(&blobs[b])).collect::<Vec<_>>()
    };
    assert_eq!(shared(&loaded), shared(saved), "what is shared must come back shared, and nothing else");
    let report = place.verify("n", 1).unwrap();
    assert!(report.is_ok(), "{:?}", report.damage);
}

/// How to make one blob.
#[derive(Clone, Debug)]
enum Spec {
    Tensor {
        dtype: DType,
        shape: Vec<u64>,
        seed: u64,
    },
    Strings {
        strings: Vec<Vec<u8>>,
        matrix: bool,
    },
    Bytes {
        type_name: String,
        bytes: Vec<u8>,
    },
    /// Of one or more chunks.
    Large {
        len: usize,
        compressible: bool,
    },
    /// The same memory as an earlier blob's.
    Shared {
        with: Index,
    },
    /// A part of an earlier blob's memory.
    Part {
        of: Index,
        start: Index,
        end: Index,
    },
}

fn specs() -> impl Strategy<Value = Vec<(String, Spec)>> {
    let fixed: Vec<DType> = DType::ALL.iter().copied().filter(|dtype| dtype.size().is_some()).collect();
    let shape = vec(prop_oneof![4 => 0..6u64, 1 => 6..200u64], 0..4);
    let tensor = (select(fixed), shape, any::<u64>()).prop_map(|(dtype, shape, seed)| Spec::Tensor {
        dtype,
        shape,
        seed,
    });
    let strings = (vec(vec(any::<u8>(), 0..20), 0..12), any::<bool>())
        .prop_map(|(strings, matrix)| Spec::Strings { strings, matrix });
    let bytes = (".{0,20}", vec(any::<u8>(), 0..3000))
        .prop_map(|(type_name, bytes)| Spec::Bytes { type_name, bytes });
    // Around the borders of what is gathered (64 KiB) and of chunks (4 MiB).
    let len = prop_oneof![65_000..66_000usize, 4_190_000..4_200_000usize, 1..9_000_000usize];
    let large = (len, any::<bool>()).prop_map(|(len, compressible)| Spec::Large { len, compressible });
    let shared = any::<Index>().prop_map(|with| Spec::Shared { with });
    let part = (any::<Index>(), any::<Index>(), any::<Index>()).prop_map(|(of, start, end)| Spec::Part {
        of,
        start,
        end,
    });
    let spec = prop_oneof![8 => tensor, 2 => strings, 2 => bytes, 1 => large, 2 => shared, 2 => part];
    vec((name(), spec), 0..24)
}

fn name() -> impl Strategy<Value = String> {
    let long = vec(any::<char>(), 0..2000).prop_map(|chars| chars.into_iter().collect());
    prop_oneof![6 => "[a-z0-9_./:\\[\\]*?]{0,12}", 3 => vec(any::<char>(), 0..8).prop_map(String::from_iter), 1 => long]
}

fn options() -> impl Strategy<Value = Options> {
    let compression = prop_oneof![Just(Compression::None), (1..4i32).prop_map(Compression::Zstd)];
    let memory = prop_oneof![Just(0), 1..9_000_000usize, Just(Limits::DEFAULT_MEMORY)];
    let limits = (1..5usize, memory).prop_map(|(threads, memory)| Limits { threads, memory });
    (compression, limits).prop_map(|(compression, limits)| Options {
        compression,
        limits,
        layout: Some(Layout::Native),
        ..Options::default()
    })
}

fn build(specs: &[(String, Spec)]) -> Workspace {
    let mut workspace = Workspace::new();
    let mut earlier: Vec<Buffer> = Vec::new();
    for (name, spec) in specs {
        let blob = build_blob(spec, &earlier);
        earlier.push(blob.data().clone());
        workspace.insert(name.clone(), blob);
    }
    workspace
}

fn build_blob(spec: &Spec, earlier: &[Buffer]) -> Blob {
    let nothing = Blob::bytes("nothing", Bytes::new());
    match spec {
        Spec::Tensor { dtype, shape, seed } => {
            let count: u64 = shape.iter().product();
            let len = usize::try_from(count).unwrap() * dtype.size().unwrap();
            // A workspace has no more than fits a test.
            let shape = if len > 4 << 20 { vec![0] } else { shape.clone() };
            let len = if len > 4 << 20 { 0 } else { len };
            Tensor::new(*dtype, shape, Buffer::copy_from(&noise(len, *seed)).unwrap()).unwrap().into()
        }
        Spec::Strings { strings, matrix } => {
            let count = strings.len() as u64;
            let shape = if *matrix { vec![count, 1] } else { vec![count] };
            Tensor::from_strings(shape, strings).unwrap().into()
        }
        Spec::Bytes { type_name, bytes } => Blob::bytes(type_name.clone(), Bytes::from(bytes.clone())),
        Spec::Large { len, compressible: true } => zeros(*len).into(),
        Spec::Large { len, compressible: false } => ckpt_tests::data::noise_tensor(*len, *len as u64).into(),
        Spec::Shared { .. } | Spec::Part { .. } if earlier.is_empty() => nothing,
        Spec::Shared { with } => Blob::bytes("shared", with.get(earlier).clone()),
        Spec::Part { of, start, end } => {
            let buffer = of.get(earlier);
            let (a, b) = (start.index(buffer.len() + 1), end.index(buffer.len() + 1));
            Blob::bytes("part", buffer.slice(a.min(b)..a.max(b)).unwrap())
        }
    }
}
