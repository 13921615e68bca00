//! Ways to load: mapped and copied, from the disk and from the page cache, give the same bytes; and damage is found in each that checks.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ckpt_engine::blob::{DType, Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::{Compression, Loading};
use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::{Checkpoints, ErrorKind, Options};

const NODE: &str = "trainer:0";
const MAPPED: [&str; 2] = ["files", "lmdb"];

fn place(db_type: &str, prefix: &Path, options: Options) -> Checkpoints {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    let driver = registry.driver(db_type, DriverOptions::new()).unwrap();
    Checkpoints::new(driver, prefix.to_str().unwrap()).with_options(options)
}

/// Tensors of lengths around what is gathered, cut into chunks, aligned and read at once.
fn workspace() -> Workspace {
    let mut workspace = Workspace::new();
    let mut state = 1u32;
    for (number, len) in [0usize, 1, 4095, 4096, 65_536, 65_537, (1 << 20) + 1, 4 << 20, (9 << 20) + 4097]
        .into_iter()
        .enumerate()
    {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .take(len)
        .collect();
        workspace.insert(format!("blob {number}"), Tensor::from_vec([len as u64], bytes).unwrap());
    }
    let tied = workspace.tensor("blob 6").unwrap().clone();
    workspace.insert("tied", tied);
    workspace
}

fn loaded(db_type: &str, prefix: &Path, loading: Loading) -> ckpt_engine::Result<Workspace> {
    let options = Options { loading, ..Options::default() };
    place(db_type, prefix, options).open(NODE, 1)?.load(&Selection::All)
}

/// Of every file of a db: nothing stays in the page cache.
fn cool(path: &Path) {
    let entries: Vec<_> = if path.is_dir() {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    } else {
        vec![path.to_owned()]
    };
    for path in entries {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

#[test]
fn every_way_gives_the_same_bytes() {
    for db_type in ["files", "lmdb", "rocksdb", "memory"] {
        for compression in [Compression::None, Compression::Zstd(1)] {
            // Not in memory: the page cache of a disk is what this is about.
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let options = Options { compression, ..Options::default() };
            let here = place(db_type, folder.path(), options);
            let expected = workspace();
            here.save(&expected, NODE, 1).unwrap();
            for loading in [Loading::Copied, Loading::Mapped, Loading::MappedUnchecked] {
                let here = here.clone().with_options(Options { loading, ..Options::default() });
                for is_cold in [true, false] {
                    if is_cold && db_type != "memory" {
                        cool(&folder.path().join(format!("{NODE}.1")));
                    }
                    let found = here.open(NODE, 1).unwrap().load(&Selection::All).unwrap();
                    assert!(found == expected, "{db_type} {compression} {loading:?} cold {is_cold}");
                    let (tied, original) = (found.tensor("tied").unwrap(), found.tensor("blob 6").unwrap());
                    assert!(tied.data().shares(original.data()), "{db_type} {loading:?}");
                }
            }
        }
    }
}

#[test]
fn a_mapped_load_copies_nothing_and_a_change_stays_here() {
    for db_type in MAPPED {
        let folder = tempfile::tempdir().unwrap();
        let here = place(db_type, folder.path(), Options::default());
        let mut expected = Workspace::new();
        expected.insert("w", Tensor::new(DType::F32, [5 << 20], vec_of(20 << 20)).unwrap());
        here.save(&expected, NODE, 1).unwrap();
        let mut mapped = loaded(db_type, folder.path(), Loading::Mapped).unwrap();
        let ckpt_engine::blob::Blob::Tensor(tensor) = mapped.get_mut("w").unwrap() else { panic!() };
        assert!(!tensor.data().clone().is_unique(), "{db_type}: memory of its own");
        assert_eq!(tensor.as_slice::<f32>().unwrap().len(), 5 << 20);
        tensor.data_mut().unwrap().fill(9);
        assert!(mapped != expected);
        assert!(loaded(db_type, folder.path(), Loading::Copied).unwrap() == expected, "{db_type}");
        // What is mapped stays readable when the db is replaced, and when it is gone.
        let mapped = loaded(db_type, folder.path(), Loading::MappedUnchecked).unwrap();
        here.save(&Workspace::new(), NODE, 1).unwrap();
        assert!(mapped == expected, "{db_type}");
    }
}

fn vec_of(len: usize) -> bytes::Bytes {
    (0..len).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn damage_is_found_by_a_mapped_load_unless_it_is_told_not_to_look() {
    for db_type in MAPPED {
        let folder = tempfile::tempdir().unwrap();
        let mut original = Workspace::new();
        original.insert("w", Tensor::new(DType::U8, [4 << 20], vec_of(4 << 20)).unwrap());
        place(db_type, folder.path(), Options::default()).save(&original, NODE, 1).unwrap();
        let path = folder.path().join(format!("{NODE}.1"));
        let path = if path.is_dir() { path.join("data.mdb") } else { path };
        let needle = &vec_of(4 << 20)[1 << 20..(1 << 20) + 300];
        let at = fs::read(&path).unwrap().windows(300).position(|window| window == needle).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[needle[0] ^ 1], at as u64).unwrap();
        for loading in [Loading::Copied, Loading::Mapped] {
            let error = loaded(db_type, folder.path(), loading).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{db_type} {loading:?}: {error}");
            let text = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(": ");
            assert!(text.contains("blob `w`"), "{text}");
        }
        let unchecked = loaded(db_type, folder.path(), Loading::MappedUnchecked).unwrap();
        assert!(unchecked != original, "{db_type}");
    }
}
