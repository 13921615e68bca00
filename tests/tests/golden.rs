//! Files that an earlier build wrote must load for ever, and the writer must make the same bytes of the same records.
//!
//! They are never written anew: a new version of the format adds its own, by the test that is ignored.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ckpt_engine::blob::{Blob, DType, Tensor, Workspace};
use ckpt_engine::checkpoint::{Codec, Compression};
use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::{Checkpoints, Options};

const NODE: &str = "golden";
const EPOCH: u64 = 7;

const BOTH: [(&str, Compression); 2] = [("raw", Compression::None), ("zstd", Compression::Zstd(3))];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn place(db_type: &str, prefix: &Path) -> Checkpoints {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    Checkpoints::new(registry.driver(db_type, DriverOptions::new()).unwrap(), prefix.to_str().unwrap())
}

/// What the files hold, written out.
fn known() -> Workspace {
    let mut workspace = Workspace::new();
    let weights =
        Tensor::from_slice([2, 3], &[1.5f32, -2.0, 0.0, f32::INFINITY, f32::MIN_POSITIVE, -0.0]).unwrap();
    workspace.insert("encoder/w", weights.clone());
    workspace.insert("decoder/w", weights);
    workspace.insert("step", Tensor::scalar(-9_007_199_254_740_993_i64));
    workspace.insert("flags", Tensor::from_slice([2], &[true, false]).unwrap());
    workspace.insert(
        "halves",
        Tensor::new(DType::Bf16, [2], Bytes::from_static(&[0x80, 0x3f, 0xc0, 0x7f])).unwrap(),
    );
    workspace.insert("pairs", Tensor::from_slice([1], &[[0.5f64, -0.25]]).unwrap());
    workspace.insert("empty", Tensor::from_slice::<u16>([0, 4], &[]).unwrap());
    workspace.insert("words", Tensor::from_strings([3], &[&b"a\0b"[..], b"", "Größe".as_bytes()]).unwrap());
    workspace.insert("state", Blob::bytes("std::string", Bytes::from_static(b"opaque \xff")));
    // Compresses, and is more than is gathered into one record.
    let ramp = (0..17_000u32).map(|index| index / 100).collect();
    workspace.insert("größe", Tensor::from_vec([170, 100], ramp).unwrap());
    workspace
}

#[test]
fn what_an_earlier_build_wrote_loads_to_the_known_values() {
    for (name, compression) in BOTH {
        let place = place("files", &folder(name));
        assert_eq!(place.load(NODE, EPOCH).unwrap(), known(), "{name}");
        let report = place.verify(NODE, EPOCH).unwrap();
        assert!(report.is_ok(), "{name}: {:?}", report.damage);
        let checkpoint = place.open(NODE, EPOCH).unwrap();
        let manifest = checkpoint.manifest().unwrap();
        assert_eq!((manifest.node.as_str(), manifest.epoch), (NODE, EPOCH));
        assert_eq!(manifest.metadata.get("purpose").map(String::as_str), Some("golden"));
        let ramp = checkpoint.blobs().unwrap().into_iter().find(|info| info.name == "größe").unwrap();
        let codec = if compression == Compression::None { Codec::Raw } else { Codec::Zstd };
        assert_eq!((ramp.bytes, ramp.codec), (68_000, codec), "{name}");
        let tied = |name: &str| manifest.blob(name).unwrap().storage;
        assert_eq!(tied("encoder/w"), tied("decoder/w"));
    }
}

#[test]
fn the_writer_makes_the_same_bytes_of_the_same_records() {
    for (name, _) in BOTH {
        let golden = place("files", &folder(name));
        let between = place("memory", Path::new("between"));
        let dir = tempfile::tempdir().unwrap();
        golden.copy_to(NODE, EPOCH, &between).unwrap();
        between.copy_to(NODE, EPOCH, &place("files", dir.path())).unwrap();
        let bytes = |folder: &Path| fs::read(folder.join(format!("{NODE}.{EPOCH}"))).unwrap();
        assert!(bytes(&folder(name)) == bytes(dir.path()), "{name}");
    }
}

#[test]
fn the_manifest_of_the_same_save_is_the_same_record() {
    for (name, _) in BOTH {
        let checkpoint = place("files", &folder(name)).open(NODE, EPOCH).unwrap();
        let stored = checkpoint.db().get(ckpt_engine::format::keys::MANIFEST).unwrap().unwrap();
        assert!(stored == checkpoint.manifest().unwrap().encode(), "{name}");
    }
}

fn options(compression: Compression) -> Options {
    let metadata = [("purpose".to_owned(), "golden".to_owned())].into();
    Options { compression, metadata, ..Options::default() }
}

#[test]
#[ignore = "writes files for a new version of the format"]
fn write_the_golden_files() {
    for (name, compression) in BOTH {
        place("files", &folder(name)).with_options(options(compression)).save(&known(), NODE, EPOCH).unwrap();
    }
}
