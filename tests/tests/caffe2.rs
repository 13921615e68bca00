//! Caffe2's files: what real Caffe2 wrote is read to the noted values, what we write of it is the same bytes, damage is told, and the
//! behaviours of its own `load_save_test`, `db_test` and `checkpoint_test` hold on every db_type that it had.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ckpt_engine::blob::{Blob, Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::caffe2::{
    BlobOptions, ChunkSize, Counter, FloatFormat, Int8Tensor, SaveOptions, model_info, string_of,
};
use ckpt_engine::checkpoint::{Checkpoint, CopyOutcome};
use ckpt_engine::db::{DriverOptions, Layout, Registry, Source};
use ckpt_engine::manager::Resume;
use ckpt_engine::operators::{Load, Save};
use ckpt_engine::{Checkpoints, ErrorKind, Options, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The job that goes on where Caffe2 stopped.
#[allow(dead_code, reason = "its main is not called here")]
#[path = "../../runner/examples/caffe2_job.rs"]
mod caffe2_job;

/// The db_types that Caffe2 had.
const DB_TYPES: [&str; 4] = ["minidb", "leveldb", "lmdb", "rocksdb"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/caffe2")
}

fn place(db_type: &str, dir: &Path) -> Checkpoints {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    Checkpoints::new(registry.driver(db_type, DriverOptions::new()).unwrap(), dir.to_str().unwrap())
}

/// Opens the db at a path.
fn open(db_type: &str, path: &Path) -> Result<Checkpoint> {
    let source =
        Source::new(path.parent().unwrap().to_str().unwrap(), path.file_name().unwrap().to_str().unwrap());
    place(db_type, path.parent().unwrap()).open_source(source)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Our name for a dtype of the lists.
fn dtype(name: &str) -> &str {
    match name {
        "float" | "float32" => "f32",
        "double" | "float64" => "f64",
        "float16" => "f16",
        "int8" => "i8",
        "int16" => "i16",
        "int32" => "i32",
        "int64" => "i64",
        "uint8" => "u8",
        "uint16" => "u16",
        "STRING" => "string",
        other => other,
    }
}

/// Compares a loaded blob with an entry of either kind of list.
fn check_blob(what: &str, blob: &Blob, noted: &Value) {
    let text = |key: &str| noted[key].as_str();
    match (noted["kind"].as_str().unwrap(), blob) {
        ("tensor", Blob::Tensor(tensor)) => {
            let shape = if noted["shape"].is_null() { &noted["dims"] } else { &noted["shape"] };
            assert_eq!(tensor.dtype().name(), dtype(text("dtype").unwrap()), "{what}");
            assert_eq!(serde_json::json!(tensor.shape()), *shape, "{what}");
            if tensor.dtype().size().is_none() {
                let strings = tensor.strings().unwrap();
                if let Some(noted) = noted["hex"].as_array() {
                    assert_eq!(
                        strings.iter().map(|string| hex(string)).collect::<Vec<_>>(),
                        noted.iter().map(|hex| hex.as_str().unwrap()).collect::<Vec<_>>()
                    );
                }
                if let Some(noted) = text("sha256_u64le_len_prefixed") {
                    let prefixed: Vec<u8> = (strings.iter())
                        .flat_map(|string| [&(string.len() as u64).to_le_bytes()[..], string].concat())
                        .collect();
                    assert_eq!(sha256(&prefixed), noted, "{what}");
                }
            }
            if let Some(noted) = text("le_hex").or(text("data_hex")) {
                assert_eq!(hex(tensor.data()), noted, "{what}");
            }
            if let Some(noted) = text("sha256") {
                assert_eq!(sha256(tensor.data()), noted, "{what}");
            }
        }
        ("string_blob", blob) => {
            assert_eq!(sha256(string_of(blob).unwrap()), text("sha256").unwrap(), "{what}")
        }
        // How Caffe2's Python shows an object that it cannot convert.
        ("string", Blob::Bytes { type_name, data }) => {
            if type_name == "std::string" {
                assert_eq!(data[..], unhex(&noted["hex"]), "{what}");
            } else {
                let shown = String::from_utf8(unhex(&noted["hex"])).unwrap();
                assert!(shown.contains("a C++ native class of type"), "{what}: {shown}");
            }
        }
        ("int8_tensor", blob) => {
            let found = Int8Tensor::from_blob(blob).unwrap();
            assert_eq!(found.elements.dtype().name(), dtype(text("dtype").unwrap()), "{what}");
            assert_eq!(serde_json::json!(found.elements.shape()), noted["shape"], "{what}");
            assert_eq!(hex(found.elements.data()), text("data_hex").unwrap(), "{what}");
            assert_eq!(
                (found.scale, i64::from(found.zero_point)),
                (noted["scale"].as_f64().unwrap(), noted["zero_point"].as_i64().unwrap())
            );
        }
        ("other", Blob::Bytes { type_name, .. }) => {
            if let Some(noted) = text("blob_type") {
                assert_eq!(type_name, noted, "{what}");
            }
        }
        (kind, blob) => panic!("{what}: {kind} came back as {blob:?}"),
    }
}

/// A db, and what it should hold.
struct Fixture {
    db_type: &'static str,
    path: PathBuf,
    blobs: BTreeMap<String, Value>,
    /// Keys in the order of the file, where the list has all of them.
    keys: Option<Vec<String>>,
}

fn undamaged() -> Vec<Fixture> {
    let mut found = Vec::new();
    let expected = json(&fixtures().join("golden/expected.json"));
    for (file, noted) in expected.as_object().unwrap() {
        let blobs = noted["blobs"].as_object().unwrap().clone().into_iter().collect();
        let keys: Vec<String> =
            noted["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()).collect();
        let keys = Some(keys).filter(|keys| keys.iter().all(|key| !key.starts_with("... ")));
        found.push(Fixture { db_type: "minidb", path: fixtures().join(file), blobs, keys });
    }
    for (folder, db_type) in
        [("real", "minidb"), ("checkpoints/single", "minidb"), ("lmdb", "lmdb"), ("leveldb", "leveldb")]
    {
        for entry in fs::read_dir(fixtures().join(folder)).unwrap() {
            let list = entry.unwrap().path();
            if list.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let noted = json(&list);
            let name = |blob: &Value| blob["saved_from_workspace_name"].as_str().map(str::to_owned);
            let blobs = noted["blobs"].as_array().unwrap().iter().map(|blob| {
                let own = blob["name"].as_str().unwrap().to_owned();
                // Caffe2 loses what is behind the separator in a name; we do not.
                let full = name(blob).filter(|full| full.contains("#%")).unwrap_or(own);
                (full, blob.clone())
            });
            found.push(Fixture {
                db_type,
                path: list.with_extension(""),
                blobs: blobs.collect(),
                keys: None,
            });
        }
    }
    assert!(found.len() > 40, "{}", found.len());
    found
}

#[test]
fn every_fixture_has_its_values() {
    for Fixture { db_type, path, blobs, keys } in undamaged() {
        let what = path.display().to_string();
        let checkpoint = open(db_type, &path).unwrap();
        assert_eq!(checkpoint.about().layout, Layout::Caffe2, "{what}");
        let loaded = checkpoint.load(&Selection::All).unwrap();
        let names: Vec<&str> = blobs.keys().map(String::as_str).collect();
        assert_eq!(loaded.names().collect::<Vec<_>>(), names, "{what}");
        for (name, noted) in &blobs {
            check_blob(&format!("{what}: {name}"), loaded.get(name).unwrap(), noted);
        }
        if let Some(keys) = keys {
            assert_eq!(
                records(&checkpoint).into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
                keys,
                "{what}"
            );
        }
        let place = place(db_type, path.parent().unwrap());
        let report = place.verify_source(checkpoint.source()).unwrap();
        assert!(report.is_ok() && report.blobs == blobs.len() as u64, "{what}: {report:?}");
    }
}

/// Keys and values, in the order of the db.
fn records(checkpoint: &Checkpoint) -> Vec<(String, Bytes)> {
    let mut cursor = checkpoint.db().cursor().unwrap();
    let mut records = Vec::new();
    while let Some(key) = cursor.key() {
        records.push((String::from_utf8(key.to_vec()).unwrap(), cursor.value().unwrap()));
        cursor.next().unwrap();
    }
    records
}

/// Files that Caffe2's Save makes of the same blobs again and again: all but those whose chunks its threads wrote in any order.
#[test]
fn what_we_write_is_caffe2s_own_file() {
    let bf16 = || BlobOptions::new("").unwrap().float_format(FloatFormat::Bfloat16);
    let plain = SaveOptions::default();
    let cases: Vec<(&str, SaveOptions)> = vec![
        ("golden/all_dtypes.minidb", plain.clone()),
        ("golden/special.minidb", plain.clone()),
        ("golden/predictor.minidb", plain.clone()),
        ("golden/bf16.minidb", SaveOptions { blobs: vec![bf16()], ..plain.clone() }),
        (
            "golden/caffe2_serialize_using_bytes_as_holder.minidb",
            SaveOptions { bytes_as_holder: true, ..plain.clone() },
        ),
        (
            "golden/caffe2_serialize_fp16_as_bytes.minidb",
            SaveOptions { fp16_as_bytes: true, ..plain.clone() },
        ),
        (
            "golden/caffe2_tensor_chunk_size.minidb",
            SaveOptions { chunk_size: ChunkSize::Elements(2), ..plain.clone() },
        ),
        ("golden/job/trainer_0.0", plain.clone()),
        ("golden/job/trainer_2.4", plain.clone()),
        ("checkpoints/single/temp_node.3", plain.clone()),
        ("real/01_dtypes.minidb", plain.clone()),
        ("real/03_empty.minidb", plain.clone()),
        ("real/05_string_blobs.minidb", plain.clone()),
        ("real/07c_nochunk.minidb", SaveOptions { chunk_size: ChunkSize::Whole, ..plain.clone() }),
        ("real/08b_chunk_sep_in_name.minidb", plain.clone()),
        ("real/11_bytes_as_holder.minidb", SaveOptions { bytes_as_holder: true, ..plain.clone() }),
        ("real/16_int8_quantised.minidb", plain.clone()),
        ("real/18_other_blob_kinds.minidb", plain.clone()),
        ("real/20_many_small.minidb", plain.clone()),
        ("real/22_varint_widths.minidb", plain.clone()),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (file, options) in cases {
        let original = open("minidb", &fixtures().join(file)).unwrap();
        let loaded = original.load(&Selection::All).unwrap();
        let mut names: Vec<String> = Vec::new();
        for (key, _) in records(&original) {
            let name = key.rsplit_once("#%").map_or(key.as_str(), |(name, _)| name).to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let blobs = names.iter().map(|name| (name.as_str(), loaded.get(name).unwrap()));
        let place =
            place("minidb", dir.path()).with_options(Options { caffe2: options, ..Options::default() });
        place.save_blobs(blobs, &Source::new(dir.path().to_str().unwrap(), "again")).unwrap();
        let (written, wanted) =
            (fs::read(dir.path().join("again")).unwrap(), fs::read(fixtures().join(file)).unwrap());
        assert!(written == wanted, "{file}: {} bytes instead of {}", written.len(), wanted.len());
    }
}

/// Chunks that Caffe2's threads wrote in any order: the same records.
#[test]
fn what_we_write_has_caffe2s_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let sorted = |checkpoint: &Checkpoint| {
        let mut records = records(checkpoint);
        records.sort();
        records
    };
    for (file, chunk) in [("golden/chunk32.minidb", 32), ("real/07_chunked.minidb", 64)] {
        let original = open("minidb", &fixtures().join(file)).unwrap();
        let caffe2 = SaveOptions { chunk_size: ChunkSize::Elements(chunk), ..SaveOptions::default() };
        let place = place("minidb", dir.path()).with_options(Options { caffe2, ..Options::default() });
        place.save(&original.load(&Selection::All).unwrap(), "n", 1).unwrap();
        assert!(sorted(&place.open("n", 1).unwrap()) == sorted(&original), "{file}");
    }
}

/// What was done to each file, what Caffe2 does with it, and what we do: an error, or the values of the base.
#[test]
fn damaged_files_are_refused_or_right() {
    let list = json(&fixtures().join("damaged/damaged.json"));
    let base =
        open("minidb", &fixtures().join("damaged/base.minidb")).unwrap().load(&Selection::All).unwrap();
    let mut right = Vec::new();
    for (file, noted) in list["files"].as_object().unwrap() {
        let path = fixtures().join("damaged").join(file);
        let loaded = open("minidb", &path).and_then(|checkpoint| checkpoint.load(&Selection::All));
        match loaded {
            Ok(loaded) if loaded == base => right.push(file.as_str()),
            Ok(loaded) => {
                // Bytes that are cut off at the end of an entry leave a smaller db that is sound in itself, and a key that is damaged
                // names another blob. Neither can be told from what somebody meant.
                let names: Vec<&str> = loaded.names().collect();
                let known = ["trunc_at_record_boundary_1.minidb", "key_sep_flip.minidb"];
                assert!(known.contains(&file.as_str()), "{file}: {} loaded as {names:?}", noted["what"]);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{file}: {error}");
                // It ignores stray bytes, and chunks that contradict each other happen to fit here.
                let lucky =
                    ["trailing_3_bytes.minidb", "chunk_dims_disagree.minidb"].contains(&file.as_str());
                let ours_alone = noted["caffe2"]["load_all"]["complete_and_identical"] == true;
                assert!(!ours_alone || lucky, "{file}: Caffe2 reads it right: {error}");
            }
        }
    }
    let harmless = [
        "chunk_key_wrong_index.minidb",
        "chunks_scattered.minidb",
        "device_cuda.minidb",
        "inner_name_missing.minidb",
        "outer_name_differs.minidb",
    ];
    right.sort_unstable();
    assert_eq!(right, harmless);
}

/// Damage in the headers of one blob leaves the others.
#[test]
fn other_blobs_of_a_damaged_file_can_be_loaded() {
    for file in ["chunk_segments_overlap.minidb", "chunk_dims_disagree.minidb", "chunk_missing_middle.minidb"]
    {
        let checkpoint = open("minidb", &fixtures().join("damaged").join(file)).unwrap();
        assert!(checkpoint.load(&Selection::names(["w", "idx"])).is_ok(), "{file}");
        let error = checkpoint.load(&Selection::names(["c"])).unwrap_err();
        assert!(error.to_string().contains("blob `c`"), "{error}");
    }
}

#[test]
fn every_cut_and_every_flip_of_a_file_is_an_error_or_a_value() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n.1");
    let file = fs::read(fixtures().join("damaged/base.minidb")).unwrap();
    let base =
        open("minidb", &fixtures().join("damaged/base.minidb")).unwrap().load(&Selection::All).unwrap();
    fs::write(&path, &file).unwrap();
    let attempt = || {
        let checkpoint = open("minidb", &path)?;
        let report = place("minidb", dir.path()).verify_source(checkpoint.source())?;
        checkpoint.load(&Selection::All).map(|loaded| (loaded, report))
    };
    for len in 0..file.len() {
        fs::write(&path, &file[..len]).unwrap();
        match attempt() {
            // Cut at the end of an entry: fewer blobs, each of them right.
            Ok((loaded, _)) => loaded.iter().for_each(|(name, blob)| assert_eq!(base.get(name), Some(blob))),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "cut to {len}: {error}"),
        }
    }
    fs::write(&path, &file).unwrap();
    // In place: a file that is cut and written again goes to the disk at once on some file systems.
    let handle = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for bit in 0..file.len() * 8 {
        let (byte, at) = (file[bit / 8], bit as u64 / 8);
        handle.write_all_at(&[byte ^ (1 << (bit % 8))], at).unwrap();
        let outcome = attempt();
        handle.write_all_at(&[byte], at).unwrap();
        if let Err(error) = outcome {
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "bit {bit}: {error}"
            );
        }
    }
}

/// Reading makes and changes nothing, whatever the db_type.
#[test]
fn reading_leaves_everything_as_it_is() {
    for (db_type, folder, name) in
        [("lmdb", "lmdb", "01_dtypes.lmdb"), ("leveldb", "leveldb", "07_chunked.leveldb")]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        for entry in fs::read_dir(fixtures().join(folder).join(name)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
        }
        let look = || {
            let mut files: Vec<_> = (fs::read_dir(&path).unwrap().map(|entry| entry.unwrap()))
                .map(|entry| {
                    (
                        entry.file_name(),
                        fs::read(entry.path()).unwrap(),
                        entry.metadata().unwrap().modified().unwrap(),
                    )
                })
                .collect();
            files.sort();
            files
        };
        let before = look();
        let checkpoint = open(db_type, &path).unwrap();
        // A second reader at the same time, too.
        let loaded = open(db_type, &path).unwrap().load(&Selection::All).unwrap();
        assert_eq!(checkpoint.load(&Selection::All).unwrap(), loaded);
        assert!(look() == before, "{db_type}");
    }
}

#[test]
fn a_predictor_export_tells_its_model() {
    let loaded =
        open("minidb", &fixtures().join("golden/predictor.minidb")).unwrap().load(&Selection::All).unwrap();
    let model = model_info(string_of(loaded.get("!!META_NET_DEF").unwrap()).unwrap()).unwrap();
    let net = model.nets.iter().find(|net| net.role == "PREDICT_NET_TYPE").unwrap();
    assert_eq!(
        (net.inputs.as_slice(), net.outputs.as_slice()),
        (["data", "y_w", "y_b"].map(str::to_owned).as_slice(), ["y"].map(str::to_owned).as_slice())
    );
    let parameters = model.blobs.iter().find(|(role, _)| role == "PARAMETERS_BLOB_TYPE").unwrap();
    assert_eq!(parameters.1, ["y_w", "y_b"]);
}

/// Caffe2 makes the file before it looks at the blobs, and leaves it.
#[test]
fn a_save_that_is_refused_makes_nothing() {
    let mut workspace = Workspace::new();
    workspace.insert("fine", Tensor::scalar(1i32));
    workspace.insert("w", Tensor::scalar(1u64));
    for db_type in DB_TYPES {
        let dir = tempfile::tempdir().unwrap();
        let place = place(db_type, &dir.path().join("run")).with_layout(Layout::Caffe2);
        let error = place.save(&workspace, "n", 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{db_type}: {error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{db_type}");
    }
}

/// `load_save_test` 1: arrays of every dtype; a second load over them; a load of all.
#[test]
fn arrays_of_every_dtype_make_the_round_trip() {
    let mut from = Workspace::new();
    from.insert(
        "f16",
        Tensor::from_vec([2, 3], (0..6u8).map(|n| half::f16::from_f32(f32::from(n) / 3.0)).collect())
            .unwrap(),
    );
    from.insert("f32", Tensor::from_slice([2, 3], &[1.5f32, -0.0, f32::NAN, 3.0, 4.0, f32::MIN]).unwrap());
    from.insert("f64", Tensor::from_slice([2, 3], &[1.5f64, -0.0, 1e300, 3.0, 4.0, f64::MIN]).unwrap());
    from.insert("bool", Tensor::from_slice([2, 3], &[true, false, true, true, false, false]).unwrap());
    from.insert("i8", Tensor::from_slice([2, 3], &[i8::MIN, -1, 0, 1, 2, i8::MAX]).unwrap());
    from.insert("i16", Tensor::from_slice([2, 3], &[i16::MIN, -1, 0, 1, 2, i16::MAX]).unwrap());
    from.insert("i32", Tensor::from_slice([2, 3], &[i32::MIN, -1, 0, 1, 2, i32::MAX]).unwrap());
    from.insert("i64", Tensor::from_slice([2, 3], &[i64::MIN, -1, 0, 1, 2, i64::MAX]).unwrap());
    from.insert("u8", Tensor::from_slice([2, 3], &[0u8, 1, 2, 3, 254, 255]).unwrap());
    from.insert("u16", Tensor::from_slice([2, 3], &[0u16, 1, 2, 3, 254, 65535]).unwrap());
    from.insert("strings", Tensor::from_strings([2], &["a", "b\0c"]).unwrap());
    from.insert("counter", Counter(22).to_blob("counter"));
    from.insert("text", Blob::bytes("std::string", Bytes::from_static(b"any \xff bytes")));
    let inputs: Vec<&str> = from.names().collect();
    for db_type in DB_TYPES {
        for bytes_as_holder in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let place = place(db_type, dir.path()).with_options(Options {
                layout: Some(Layout::Caffe2),
                caffe2: SaveOptions { bytes_as_holder, ..SaveOptions::default() },
                ..Options::default()
            });
            let source = place.source("n", 1).unwrap();
            Save::default().run(&from, &inputs, &place, &source).unwrap();
            let db = [place.open_source(source.clone()).unwrap()];
            let mut to = Workspace::new();
            for load in [Load::default(), Load { load_all: true, ..Load::default() }] {
                load.run(&db, &inputs, &mut to).unwrap();
                assert_eq!(
                    to.get("f32").unwrap().data(),
                    from.get("f32").unwrap().data(),
                    "NaNs and all, {db_type}"
                );
                assert_eq!(to, from, "{db_type}");
            }
            assert!(place.verify_source(&source).unwrap().is_ok(), "{db_type}");
            assert!(!place.exists("n", 2).unwrap(), "{db_type}");
        }
    }
}

/// `load_save_test` 5, 7, 8, 9, 12 to 15: names, sources, chunks, on every db_type.
#[test]
fn saves_and_loads_over_several_dbs() {
    let blob =
        |number: usize| Tensor::from_vec([1234], (0..1234).map(|n| (n * number) as i32).collect()).unwrap();
    let names: Vec<String> = (0..20).map(|number| format!("blob_{number}")).collect();
    let from: Workspace =
        names.iter().enumerate().map(|(number, name)| (name.clone(), blob(number).into())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for db_type in DB_TYPES {
        let dir = tempfile::tempdir().unwrap();
        let place = place(db_type, dir.path()).with_layout(Layout::Caffe2);
        let source = |name: &str| Source::new(place.prefix(), name);
        let save = Save { chunk_size: ChunkSize::Elements(32), ..Save::default() };
        save.run(&from, &names[..10], &place, &source("first")).unwrap();
        Save::default().run(&from, &names[10..], &place, &source("second")).unwrap();
        let open = |name: &str| place.open_source(source(name)).unwrap();
        assert_eq!(open("first").blob("blob_3").unwrap().chunks, 39, "{db_type}");
        assert_eq!(open("second").blob("blob_13").unwrap().chunks, 1, "{db_type}");
        let mut to = Workspace::new();
        Load { load_all: true, ..Load::default() }
            .run(&[open("first"), open("second")], &[], &mut to)
            .unwrap();
        assert_eq!(to, from, "{db_type}");
        let some =
            Load { source_blob_names: vec!["blob_3".to_owned(), "blob_13".to_owned()], ..Load::default() };
        let mut to = Workspace::new();
        some.run(&[open("first"), open("second")], &["x", "y"], &mut to).unwrap();
        assert_eq!((to.len(), to.get("y")), (2, from.get("blob_13")), "{db_type}");
        let rows = open("first").load_rows("blob_3", 30..70).unwrap();
        assert_eq!(rows, from.tensor("blob_3").unwrap().rows(30..70).unwrap(), "{db_type}");
        let again = Load { load_all: true, ..Load::default() };
        Save::default().run(&from, &names[..1], &place, &source("third")).unwrap();
        let error = again.run(&[open("first"), open("third")], &[], &mut to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{db_type}");
        // A save again replaces the older one, on every db_type.
        Save::default().run(&from, &names[..2], &place, &source("first")).unwrap();
        assert_eq!(open("first").names(), ["blob_0", "blob_1"], "{db_type}");
    }
}

/// Before 2017 chunks had no numbers: the key came again.
#[test]
fn chunks_without_numbers_are_read_and_get_numbers_where_they_must() {
    let dir = tempfile::tempdir().unwrap();
    let original = open("minidb", &fixtures().join("golden/chunk32.minidb")).unwrap();
    let loaded = original.load(&Selection::All).unwrap();
    let old = place("minidb", dir.path());
    let entries = records(&original);
    let plan =
        ckpt_engine::db::WritePlan { records: 0, bytes: 0, limits: ckpt_engine::db::Limits::default() };
    old.driver()
        .write(&old.source("n", 1).unwrap(), &plan, &mut |transaction| {
            entries.iter().try_for_each(|(key, value)| {
                let name = key.rsplit_once("#%").map_or(key.as_str(), |(name, _)| name);
                transaction.put(name.as_bytes(), value.clone().into())
            })
        })
        .unwrap();
    assert_eq!(old.load("n", 1).unwrap(), loaded);
    assert!(old.verify("n", 1).unwrap().is_ok());
    assert_eq!(
        old.load_rows("n", 1, "i", 100..200).unwrap(),
        loaded.tensor("i").unwrap().rows(100..200).unwrap()
    );
    for db_type in DB_TYPES {
        let dir = tempfile::tempdir().unwrap();
        let to = place(db_type, dir.path()).with_layout(Layout::Caffe2);
        old.copy_to("n", 1, &to).unwrap();
        assert_eq!(to.load("n", 1).unwrap(), loaded, "{db_type}");
        assert_eq!(old.copy_to("n", 1, &to).unwrap().outcome, CopyOutcome::Present, "{db_type}");
    }
}

/// From any of its db_types to any other and to ours and back: the same records.
#[test]
fn copies_keep_the_bytes_over_every_db_type() {
    let original = place("minidb", &fixtures().join("golden/job"));
    let wanted = |db: &Checkpoint| {
        let mut records = records(db);
        records.sort();
        records
    };
    let dirs: Vec<_> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut from = original.clone();
    // Through a native checkpoint in the middle.
    for (dir, db_type) in dirs.iter().zip(["lmdb", "leveldb", "rocksdb", "files", "files", "minidb"]) {
        let mut to = place(db_type, dir.path());
        if dir.path() == dirs[4].path() {
            to = to.with_layout(Layout::Native);
        }
        from.copy_to("trainer_1", 3, &to).unwrap();
        let opened = to.open("trainer_1", 3).unwrap();
        let layout = if dir.path() == dirs[4].path() { Layout::Native } else { Layout::Caffe2 };
        assert_eq!(opened.about().layout, layout, "{db_type}");
        if layout == Layout::Caffe2 {
            assert!(wanted(&opened) == wanted(&original.open("trainer_1", 3).unwrap()), "{db_type}");
        }
        from = to;
    }
}

/// `checkpoint_test` 1, from where a real Caffe2 job stopped: the position of the reader and the total go on, and what we save is what
/// Caffe2 saved, blob for blob.
#[test]
fn a_job_goes_on_from_a_directory_that_caffe2_wrote() {
    let golden = place("minidb", &fixtures().join("golden/job"));
    assert_eq!(golden.latest_complete().unwrap(), Some(4));
    for resume in 0..4u64 {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 {
            let node = format!("trainer_{number}");
            for epoch in 0..=resume {
                let name = format!("{node}.{epoch}");
                fs::copy(fixtures().join("golden/job").join(&name), dir.path().join(&name)).unwrap();
            }
        }
        for number in 0..3 {
            let place = place("minidb", dir.path());
            let node = format!("trainer_{number}");
            // The newest epoch where there are no records yet; later, when the first of the jobs has written some, by its number.
            let choice = if number == 0 { Resume::Latest } else { Resume::Epoch(resume) };
            assert_eq!(caffe2_job::train(&place, number, choice).unwrap(), (4, 145), "from {resume}");
            for epoch in resume + 1..=4 {
                let (ours, theirs) = (place.load(&node, epoch).unwrap(), golden.load(&node, epoch).unwrap());
                for (name, blob) in theirs.iter().filter(|(name, _)| *name != "blob_names") {
                    assert_eq!(ours.get(name), Some(blob), "{node}.{epoch}: {name}");
                }
                let listed = |workspace: &Workspace| -> Vec<String> {
                    let list = workspace.tensor("blob_names").unwrap();
                    list.strings()
                        .unwrap()
                        .iter()
                        .map(|name| String::from_utf8(name.to_vec()).unwrap())
                        .collect()
                };
                let mut expected = listed(&theirs);
                expected.push("exhausted".to_owned());
                assert_eq!(listed(&ours), expected, "{node}.{epoch}");
            }
        }
    }
}
