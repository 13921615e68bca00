//! The command `ckpt`, as scripts see it: its words, its JSON and its exit codes, over every store that outlives a process.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use ckpt_engine::blob::{Blob, Buffer, DType, Tensor, Workspace};
use ckpt_runner::formats;
use ckpt_tests::s3_server::{Answer, S3Server, serve_all};
use serde_json::Value;
use tempfile::TempDir;

const DONE: i32 = 0;
const NO: i32 = 1;
const USAGE: i32 = 2;
const FAILED: i32 = 3;

/// The command that was built with this test.
fn ckpt() -> Command {
    let here = std::env::current_exe().unwrap();
    let path = here.parent().and_then(Path::parent).unwrap().join("ckpt");
    assert!(path.exists(), "build the command first: make build ({})", path.display());
    Command::new(path)
}

struct Place {
    dir: TempDir,
    server: OnceLock<S3Server>,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), server: OnceLock::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A STORE of this db_type.
    fn store(&self, db_type: &str, name: &str) -> String {
        match db_type {
            "s3" => {
                self.server();
                format!("s3://bucket/{name}")
            }
            _ => format!("{db_type}:{}", self.text(name)),
        }
    }

    fn server(&self) -> &S3Server {
        self.server.get_or_init(|| {
            let server = S3Server::temporary(serve_all()).unwrap();
            server.create_bucket("bucket").unwrap();
            server
        })
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = ckpt();
        command.args(args).current_dir(self.dir.path());
        if let Some(server) = self.server.get() {
            command.envs(server.environment());
        }
        command.output().unwrap()
    }

    /// Runs and expects an exit code; returns standard output.
    fn expect(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "ckpt {args:?}\nstdout: {stdout}\nstderr: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
        if code == FAILED {
            assert!(stdout.is_empty(), "{stdout}");
            let lines: Vec<&str> = stderr.lines().collect();
            assert!(lines[0].starts_with("error: ") && lines[0].len() < 600, "{stderr}");
            assert!(lines[1..].iter().all(|line| line.starts_with("  caused by: ")), "{stderr}");
        }
        stdout
    }

    fn json(&self, code: i32, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.push("--json");
        serde_json::from_str(&self.expect(code, &args)).unwrap()
    }

    fn error(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "ckpt {args:?}: {stderr}");
        assert!(output.stdout.is_empty());
        stderr
    }

    /// A file with `count` tensors of `len` bytes that do not compress, `w00` and on.
    fn model(&self, name: &str, count: usize, len: usize) -> (String, Workspace) {
        let tensor = |seed: usize| {
            let mut state = seed as u64 + 1;
            let mut data = Buffer::zeroed(len).unwrap();
            for byte in data.as_mut().unwrap() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = state.to_be_bytes()[0];
            }
            Blob::from(Tensor::new(DType::F32, [len as u64 / 4], data).unwrap())
        };
        let workspace = (0..count).map(|index| (format!("w{index:02}"), tensor(index))).collect();
        formats::write(
            &self.path(name),
            &workspace,
            &BTreeMap::from([("format".to_owned(), "pt".to_owned())]),
        )
        .unwrap();
        (self.text(name), workspace)
    }

    fn import(&self, file: &str, store: &str, node: &str, epoch: u64) -> Value {
        self.json(DONE, &["import", file, store, "--node", node, "--epoch", &epoch.to_string()])
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[track_caller]
fn has_keys(value: &Value, wanted: &[&str]) {
    for key in wanted {
        assert!(keys(value).contains(key), "no `{key}` in {value}");
    }
}

#[test]
fn a_model_goes_through_every_store_and_comes_out_the_same() {
    let place = Place::new();
    let (file, model) = place.model("model.safetensors", 6, 1 << 20);
    let stores = ["files", "rocksdb", "lmdb", "s3"];
    for from in stores {
        let store = place.store(from, &format!("from_{from}"));
        let imported = place.import(&file, &store, "trainer:0", 3);
        has_keys(&imported, &["blobs", "bytes", "bytes_read", "bytes_written", "seconds"]);
        assert_eq!((&imported["blobs"], &imported["bytes"]), (&6.into(), &(6 << 20).into()));
        for to in stores {
            let copy = place.store(to, &format!("{from}_to_{to}"));
            place.expect(DONE, &["copy", &store, &copy]);
            let again = place.json(DONE, &["copy", &store, &copy]);
            assert_eq!((&again["copied"], &again["present"]), (&0.into(), &1.into()));
            let verified = place.json(DONE, &["verify", &copy]);
            has_keys(&verified, &["ok", "dbs", "blobs", "bytes", "damage"]);
            assert_eq!(
                (&verified["ok"], &verified["dbs"], &verified["bytes"]),
                (&true.into(), &1.into(), &(6 << 20).into())
            );
            assert_eq!(place.json(DONE, &["diff", &store, &copy])["equal"], true);
            let out = place.text("out.safetensors");
            let exported = place.json(DONE, &["export", &copy, &out]);
            has_keys(&exported, &["blobs", "bytes", "bytes_read", "bytes_written", "seconds"]);
            let back = formats::read(Path::new(&out)).unwrap();
            assert_eq!(back.workspace, model, "{from} to {to}");
            assert_eq!(back.metadata["format"], "pt");
        }
    }
    // The same bytes as a file and as an object.
    let object = place.server().root().join("bucket/files_to_s3/trainer:0.3");
    assert_eq!(fs::read(place.path("from_files/trainer:0.3")).unwrap(), fs::read(object).unwrap());
}

#[test]
fn the_json_is_what_scripts_rely_on() {
    let place = Place::new();
    let mut workspace = Workspace::new();
    workspace.insert("b", Tensor::from_slice([2, 3], &[1i16; 6]).unwrap());
    workspace
        .insert("zeros", Tensor::new(DType::F32, [2, 1 << 20], Buffer::zeroed(8 << 20).unwrap()).unwrap());
    workspace.insert("a", Tensor::scalar(1.5f64));
    let file = place.text("x.npz");
    formats::write(Path::new(&file), &workspace, &BTreeMap::new()).unwrap();
    for db_type in ["files", "rocksdb", "lmdb", "s3"] {
        let store = place.store(db_type, &format!("j_{db_type}"));
        place.expect(DONE, &["import", &file, &store, "--node", "n", "--epoch", "7", "--compress", "zstd:5"]);
        let shown = place.json(DONE, &["show", &store]);
        has_keys(&shown, &["db", "layout", "blobs"]);
        assert_eq!(shown["layout"], "native");
        let blobs = shown["blobs"].as_array().unwrap();
        let names: Vec<_> = blobs.iter().map(|blob| blob["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "zeros"]);
        has_keys(&blobs[0], &["name", "kind", "dtype", "shape", "bytes", "stored_bytes", "codec", "chunks"]);
        assert_eq!(blobs[0]["shape"], serde_json::json!([]));
        assert_eq!((&blobs[1]["dtype"], &blobs[1]["kind"]), (&"i16".into(), &"tensor".into()));
        assert_eq!(
            (&blobs[2]["bytes"], &blobs[2]["codec"], &blobs[2]["chunks"]),
            (&(8 << 20).into(), &"zstd".into(), &2.into())
        );
        assert!(blobs[2]["stored_bytes"].as_u64().unwrap() < 10_000);
        assert_eq!(place.json(DONE, &["show", &store, "--blob", "z*"])["blobs"].as_array().unwrap().len(), 1);

        let listed = place.json(DONE, &["ls", &store]);
        has_keys(&listed, &["store", "epochs"]);
        let epoch = &listed["epochs"][0];
        has_keys(epoch, &["epoch", "complete", "pinned", "nodes"]);
        assert_eq!((&epoch["epoch"], &epoch["complete"]), (&7.into(), &true.into()));
        has_keys(&epoch["nodes"][0], &["node", "db", "bytes", "stored_bytes", "blobs"]);
        assert_eq!(place.json(DONE, &["exists", &store])["exists"], true);
        assert_eq!(place.json(NO, &["exists", &store, "--epoch", "8"])["exists"], false);
        assert_eq!(place.json(NO, &["exists", &store, "--epoch", "8", "--node", "n"])["exists"], false);
        assert_eq!(place.json(NO, &["exists", &store, "--epoch", "7", "--node", "other"])["exists"], false);
        assert_eq!(place.json(DONE, &["exists", &store, "--epoch", "latest", "--node", "n"])["exists"], true);
    }
}

#[test]
fn one_blob_of_64_is_read_alone() {
    let place = Place::new();
    let (file, model) = place.model("m.safetensors", 64, 512 << 10);
    for db_type in ["files", "rocksdb", "lmdb", "s3"] {
        let store = place.store(db_type, &format!("p_{db_type}"));
        place.import(&file, &store, "n", 1);
        let out = place.text("one.safetensors");
        let exported = place.json(DONE, &["export", &store, &out, "--blob", "w17"]);
        assert_eq!((&exported["blobs"], &exported["bytes"]), (&1.into(), &(512 << 10).into()));
        let read = exported["bytes_read"].as_u64().unwrap();
        assert!((512 << 10..(512 << 10) + (1 << 20)).contains(&read), "{db_type} read {read}");
        let back = formats::read(Path::new(&out)).unwrap().workspace;
        assert_eq!((back.len(), back.get("w17")), (1, model.get("w17")));
    }
}

#[test]
fn epochs_and_nodes_are_chosen() {
    let place = Place::new();
    let (a, _) = place.model("a.safetensors", 2, 4096);
    let (b, _) = place.model("b.npz", 3, 4096);
    let store = place.store("files", "s");
    place.import(&a, &store, "t:0", 1);
    place.import(&a, &store, "t:0", 2);
    place.import(&b, &store, "t:1", 2);
    let listed = place.json(DONE, &["ls", &store]);
    let nodes: Vec<usize> = listed["epochs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|epoch| epoch["nodes"].as_array().unwrap().len())
        .collect();
    assert_eq!(nodes, [1, 2]);
    assert!(listed["epochs"].as_array().unwrap().iter().all(|epoch| epoch["complete"] == true));
    let error = place.error(USAGE, &["show", &store]);
    assert!(error.contains("t:0, t:1") && error.contains("--node"), "{error}");
    assert_eq!(place.json(DONE, &["show", &store, "--node", "t:1"])["blobs"].as_array().unwrap().len(), 3);
    assert_eq!(place.json(DONE, &["show", &store, "--epoch", "1"])["blobs"].as_array().unwrap().len(), 2);
    assert_eq!(place.json(DONE, &["verify", &store])["dbs"], 3);
    assert_eq!(place.json(DONE, &["verify", &store, "--epoch", "latest"])["dbs"], 2);
    assert_eq!(place.json(DONE, &["verify", &store, "--node", "t:0"])["dbs"], 2);
    let diff = place.json(NO, &["diff", &store, &store, "--epoch-a", "1", "--epoch-b", "2"]);
    has_keys(&diff, &["equal", "added", "removed", "changed"]);
    assert_eq!(diff["added"], serde_json::json!(["t:1/w00", "t:1/w01", "t:1/w02"]));
    // One db is a STORE of its own.
    for db in [format!("{store}/t:1.2"), format!("file://{}", place.text("s/t:1.2"))] {
        assert_eq!(place.json(DONE, &["show", &db])["blobs"].as_array().unwrap().len(), 3);
        place.expect(DONE, &["verify", &db]);
        place.expect(DONE, &["exists", &db]);
    }
    // Only some are copied; the record says what is there.
    let other = place.store("lmdb", "o");
    place.expect(DONE, &["copy", &store, &other, "--epoch", "2", "--node", "t:1"]);
    let copied = place.json(DONE, &["ls", &other]);
    assert_eq!((&copied["epochs"][0]["epoch"], &copied["epochs"][0]["complete"]), (&2.into(), &true.into()));
    place.expect(DONE, &["copy", &store, &other]);
    assert_eq!(place.json(DONE, &["ls", &other])["epochs"].as_array().unwrap().len(), 2);
    let relative = place.json(DONE, &["show", "files:s", "--epoch", "1"]);
    assert_eq!(relative["blobs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let place = Place::new();
    let (file, model) = place.model("m.safetensors", 4, 300_000);
    for (db_type, data) in [("files", "n.1"), ("lmdb", "n.1/data.mdb"), ("rocksdb", "n.1")] {
        let store = place.store(db_type, &format!("d_{db_type}"));
        place.import(&file, &store, "n", 1);
        let mut path = place.path(&format!("d_{db_type}/{data}"));
        if db_type == "rocksdb" {
            let tables = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            path = tables
                .into_iter()
                .find(|path| path.extension().is_some_and(|extension| extension == "sst"))
                .unwrap();
        }
        let bytes = fs::read(&path).unwrap();
        let wanted = &model.get("w02").unwrap().data()[150_000..150_032];
        let at = bytes.windows(32).position(|window| window == wanted).unwrap();
        let out = fs::OpenOptions::new().write(true).open(&path).unwrap();
        out.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        let verified = place.json(NO, &["verify", &store]);
        assert_eq!(verified["ok"], false);
        let damage = verified["damage"].as_array().unwrap();
        has_keys(&damage[0], &["db", "blob", "range", "reason"]);
        assert_eq!((damage.len(), &damage[0]["blob"]), (1, &"w02".into()), "{verified}");
        assert_eq!(damage[0]["range"], serde_json::json!([0, 300_000]));
        let error = place.error(FAILED, &["export", &store, "out.npz"]);
        assert!(error.contains("w02") && error.contains("n.1"), "{error}");
        assert!(!place.path("out.npz").exists());
        place.expect(DONE, &["export", &store, "some.npz", "--blob", "w0[013]"]);
        let error = place.error(FAILED, &["copy", &store, &place.store("files", "never")]);
        assert!(error.contains("w02"), "{error}");
        assert!(!place.path("never/n.1").exists(), "damage is not copied");
        assert!(place.expect(NO, &["verify", &store]).contains("w02"));
    }
}

#[test]
fn a_lost_db_of_a_complete_epoch_is_damage() {
    let place = Place::new();
    let (file, _) = place.model("m.npz", 1, 100);
    let store = place.store("files", "s");
    place.import(&file, &store, "a", 1);
    place.import(&file, &store, "b", 1);
    fs::remove_file(place.path("s/b.1")).unwrap();
    let verified = place.json(NO, &["verify", &store]);
    assert!(verified["damage"][0]["reason"].as_str().unwrap().contains("not"), "{verified}");
    assert_eq!(place.json(DONE, &["ls", &store])["epochs"][0]["complete"], false);
    place.expect(NO, &["exists", &store]);
    fs::remove_file(place.path("s/a.1")).unwrap();
    place.expect(NO, &["verify", &store]);
}

/// A damaged epoch record once made `exists` answer no, although nobody could tell.
#[test]
fn a_damaged_epoch_record_is_an_error_and_not_a_no() {
    let place = Place::new();
    let (file, _) = place.model("m.npz", 1, 100);
    let store = place.store("files", "s");
    place.import(&file, &store, "a", 1);
    let record = place.path("s/.ckpt/epoch.1");
    let mut bytes = fs::read(&record).unwrap();
    bytes[20] ^= 1;
    fs::write(&record, bytes).unwrap();
    assert!(place.error(FAILED, &["exists", &store]).contains("epoch record"));
    place.expect(NO, &["verify", &store]);
    place.expect(DONE, &["exists", &store, "--epoch", "1", "--node", "a"]);
}

#[test]
fn wrong_usage_is_2() {
    let place = Place::new();
    let (file, _) = place.model("m.npz", 1, 100);
    let import = |store: &str, more: &[&str]| -> String {
        let mut args = vec!["import", &file, store, "--node", "n", "--epoch", "1"];
        args.extend_from_slice(more);
        place.error(USAGE, &args)
    };
    let unknown = import("redis:x", &[]);
    assert!(
        unknown.contains("files, gs, leveldb, lmdb, memory, minidb, rocksdb, s3")
            && unknown.contains("redis"),
        "{unknown}"
    );
    assert!(import("x", &[]).contains("DB_TYPE:PREFIX"));
    assert!(import("files:x", &["--compress", "gzip"]).contains("zstd"));
    assert!(import("files:x", &["--layout", "mxnet"]).contains("native"));
    assert!(import("minidb:x", &["--compress", "zstd"]).contains("no compression"));
    assert!(import("files:x", &["--db-option", "cache=1"]).contains("cache"));
    assert!(import("rocksdb:x", &["--db-option", "cache=1"]).contains("block_bytes"));
    assert!(import("files:x", &["--db-option", "cache"]).contains("KEY=VALUE"));
    for args in [
        &["frobnicate"][..],
        &[],
        &["ls"],
        &["show", "files:x", "--epoch", "one"],
        &["import", &file, "files:x", "--epoch", "1"],
        &["import", "files:x", "--node", "n", "--epoch", "1"],
        &["import", &file, "files:x", "--node", "a/b", "--epoch", "1"],
        &["export", "files:x", "out.txt"],
        &["ls", "files:x", "-q", "-v"],
    ] {
        let error = place.error(USAGE, args);
        assert!(error.contains("error:") || error.contains("Usage:"), "{args:?}: {error}");
    }
    assert!(!place.path("x").exists(), "nothing was made");
    place.expect(DONE, &["--help"]);
    place.expect(DONE, &["--version"]);
    assert!(place.expect(DONE, &["completions", "bash"]).contains("ckpt"));
}

#[test]
fn bad_input_is_3_and_nothing_is_lost() {
    let place = Place::new();
    let (file, _) = place.model("m.safetensors", 2, 5000);
    let store = place.store("files", "s");
    place.import(&file, &store, "n", 1);
    let failed = |args: &[&str], says: &str| {
        place.expect(FAILED, args);
        let error = place.error(FAILED, args);
        assert!(error.contains(says), "{args:?}: {error}");
    };
    failed(&["show", &store, "--epoch", "9"], "9");
    failed(&["show", &store, "--node", "x"], "there are: n");
    failed(&["export", &store, "o.npz", "--blob", "nope*"], "nope*");
    failed(&["export", &store, "o.npz", "--blob", "w00", "--blob", "nope"], "nope");
    failed(&["show", "files:nowhere"], "nowhere");
    failed(&["ls", "files:nowhere"], "nowhere");
    failed(&["verify", "rocksdb:nowhere"], "nowhere");
    failed(&["export", &store, "missing/dir/o.npz"], "missing/dir");
    failed(&["import", "nofile.npz", &store, "--node", "n", "--epoch", "2"], "nofile.npz");
    failed(&["import", "nofile.txt", &store, "--node", "n", "--epoch", "2"], ".safetensors");
    fs::write(place.path("empty.npz"), "").unwrap();
    fs::write(place.path("garbage.npz"), [7; 5000]).unwrap();
    fs::write(place.path("garbage.safetensors"), [0xff; 5000]).unwrap();
    fs::write(place.path("cut.safetensors"), &fs::read(&file).unwrap()[..6000]).unwrap();
    for bad in ["empty.npz", "garbage.npz", "garbage.safetensors", "cut.safetensors", "s"] {
        failed(&["import", bad, &store, "--node", "n", "--epoch", "2"], bad);
    }
    // Two blobs of one name.
    let error = place.error(FAILED, &["import", &file, &file, &store, "--node", "n", "--epoch", "2"]);
    assert!(error.contains("w00") && error.contains("same name"), "{error}");
    assert_eq!(place.json(DONE, &["verify", &store])["dbs"], 1, "what was there is there");
    let left: Vec<_> =
        fs::read_dir(place.path("s")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "a db and the records: {left:?}");
}

/// A file where a directory is wanted, the reverse, garbage, and the dbs of one store given as another's.
#[test]
fn what_is_no_db_of_the_type_is_told_apart() {
    let place = Place::new();
    let (file, _) = place.model("m.safetensors", 2, 5000);
    fs::write(place.path("plain"), "not a directory").unwrap();
    for db_type in ["files", "rocksdb", "lmdb"] {
        place.import(&file, &place.store(db_type, db_type), "n", 1);
        let error = place
            .error(FAILED, &["import", &file, &place.store(db_type, "plain"), "--node", "n", "--epoch", "1"]);
        assert!(error.contains("plain"), "{error}");
        let error = place.error(FAILED, &["ls", &place.store(db_type, "plain")]);
        assert!(error.contains("plain"), "{error}");
    }
    assert_eq!(fs::read(place.path("plain")).unwrap(), b"not a directory");
    for (as_type, of_type) in
        [("rocksdb", "lmdb"), ("lmdb", "rocksdb"), ("files", "lmdb"), ("rocksdb", "files"), ("lmdb", "files")]
    {
        let store = place.store(as_type, of_type);
        // In full: something else is in its place, and that is not "no".
        let error = place.error(FAILED, &["exists", &store, "--epoch", "1", "--node", "n"]);
        assert!(error.contains("n.1"), "{as_type} over {of_type}: {error}");
        place.expect(FAILED, &["show", &store, "--epoch", "1", "--node", "n"]);
    }
    let damaged: [(&str, &str, &str); 3] =
        [("files", "n.1", "files"), ("lmdb", "n.1/data.mdb", "lmdb"), ("rocksdb", "n.1/CURRENT", "rocksdb")];
    for (db_type, part, name) in damaged {
        let path = place.path(name).join(part);
        let good = fs::read(&path).unwrap();
        let halves = [good[..good.len() / 2].to_vec(), Vec::new(), vec![0x5a; 10_000], vec![0; 10_000]];
        for bytes in halves {
            fs::write(&path, &bytes).unwrap();
            let store = place.store(db_type, name);
            let verified = place.json(NO, &["verify", &store, "--epoch", "1"]);
            assert_eq!(verified["ok"], false);
            place.expect(FAILED, &["show", &store, "--epoch", "1"]);
        }
        fs::write(&path, &good).unwrap();
        assert_eq!(place.json(DONE, &["verify", &place.store(db_type, name)])["ok"], true);
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_an_error_and_not_a_no() {
    let place = Place::new();
    let mut command = ckpt();
    command.args(["exists", "s3://bucket/run", "--epoch", "1", "--node", "n"]).current_dir(place.dir.path());
    for (name, value) in place.server().environment() {
        command.env(name, value);
    }
    let denied = command.env("AWS_SECRET_ACCESS_KEY", "wrong").output().unwrap();
    assert_eq!(denied.status.code(), Some(FAILED), "{denied:?}");
    assert!(String::from_utf8(denied.stderr).unwrap().contains("denied"));
    let error = place.error(FAILED, &["ls", "s3://nobucket/run"]);
    assert!(error.contains("nobucket"), "{error}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let place = Place::new();
    let workspace = (0..5000).map(|index| (format!("{index:0100}"), Tensor::scalar(1u8).into())).collect();
    formats::write(&place.path("m.safetensors"), &workspace, &BTreeMap::new()).unwrap();
    place.import("m.safetensors", "files:s", "n", 1);
    let mut child = ckpt()
        .args(["show", "files:s"])
        .current_dir(place.dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(DONE));
}

fn fixture(name: &str) -> String {
    format!("{}/fixtures/caffe2/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Files and directories that real Caffe2 wrote are STOREs.
#[test]
fn caffe2s_files_are_stores() {
    let place = Place::new();
    let model = format!("minidb:{}", fixture("golden/predictor.minidb"));
    let shown = place.json(DONE, &["show", &model]);
    assert_eq!(shown["layout"], "caffe2");
    assert_eq!(shown["blobs"].as_array().unwrap().len(), 3);
    assert_eq!(shown["models"][0]["nets"][2]["inputs"], serde_json::json!(["data", "y_w", "y_b"]));
    assert!(place.expect(DONE, &["show", &model]).contains("net m_1 (PREDICT_NET_TYPE)"));
    assert_eq!(place.json(DONE, &["verify", &model])["ok"], true);
    assert_eq!(place.json(DONE, &["exists", &model])["exists"], true);
    let listed = place.json(DONE, &["ls", &model]);
    assert_eq!(
        (&listed["epochs"][0]["complete"], &listed["epochs"][0]["nodes"][0]["node"]),
        (&true.into(), &"predictor".into())
    );
    let wrong = format!("minidb:{}", fixture("lmdb/01_dtypes.lmdb"));
    assert!(place.error(FAILED, &["show", &wrong]).contains("perhaps a db of db_type"));

    for (db_type, path) in [
        ("lmdb", "lmdb/01_dtypes.lmdb"),
        ("lmdb", "lmdb/01_dtypes.lmdb/"),
        ("lmdb", "lmdb/01_dtypes.lmdb/data.mdb"),
        ("leveldb", "leveldb/01_dtypes.leveldb"),
        ("minidb", "real/01_dtypes.minidb"),
    ] {
        let store = format!("{db_type}:{}", fixture(path));
        let out = place.text("out.npz");
        let exported = place.json(DONE, &["export", &store, &out]);
        assert_eq!(
            exported["blobs"],
            place.json(DONE, &["show", &store])["blobs"].as_array().unwrap().len() - 1,
            "{store}"
        );
        assert_eq!(
            exported["left_out"].as_array().unwrap().len(),
            1,
            "a std::string, which an .npz cannot hold"
        );
    }

    let job = format!("minidb:{}", fixture("golden/job"));
    let listed = place.json(DONE, &["ls", &job]);
    assert_eq!(listed["epochs"].as_array().unwrap().len(), 5);
    assert!(listed["epochs"].as_array().unwrap().iter().all(|epoch| epoch["complete"] == true));
    assert_eq!(listed["epochs"][4]["nodes"][2]["created_unix_ms"], Value::Null);
    let shown = place.json(DONE, &["show", &job, "--node", "trainer_1"]);
    assert_eq!((&shown["epoch"], &shown["node"]), (&4.into(), &"trainer_1".into()));
    assert!(place.error(USAGE, &["show", &job]).contains("choose one with --node"));
}

#[test]
fn an_export_says_what_it_leaves_out_and_how_things_are_named() {
    let place = Place::new();
    let special = format!("minidb:{}", fixture("golden/special.minidb"));
    let out = place.text("special.safetensors");
    let exported = place.json(DONE, &["export", &special, &out]);
    assert_eq!(exported["left_out"], serde_json::json!(["idx", "m", "map", "map2", "tc"]));
    let read = formats::read(Path::new(&out)).unwrap().workspace;
    assert_eq!(read.names().collect::<Vec<_>>(), ["c", "i8", "i8.scale", "i8.zero_point"]);
    assert_eq!(read.tensor("c").unwrap().as_slice::<i64>().unwrap(), [22]);
    assert!(
        place.error(FAILED, &["export", &special, &out, "--blob", "tc"]).contains("`tc`"),
        "asked for by name"
    );

    let strings = format!("minidb:{}", fixture("real/05_string_blobs.minidb"));
    let exported = place.json(DONE, &["export", &strings, &out]);
    assert_eq!(exported["left_out"], serde_json::json!(["s_binary", "s_long"]));
    assert_eq!(formats::read(Path::new(&out)).unwrap().metadata["s_ascii"], "hello caffe2");

    let (file, _) = place.model("m.safetensors", 2, 100);
    let prefixed = place.store("minidb", "p");
    place.expect(DONE, &["import", &file, &prefixed, "--node", "n", "--epoch", "1"]);
    place.expect(DONE, &["export", &prefixed, &out, "--strip-prefix", "w0"]);
    assert_eq!(formats::read(Path::new(&out)).unwrap().workspace.names().collect::<Vec<_>>(), ["0", "1"]);
}

/// `--layout`, and what is chosen without it.
#[test]
fn copies_and_imports_choose_a_layout() {
    let place = Place::new();
    let (file, workspace) = place.model("m.safetensors", 5, 5000);
    let import = |store: &str, more: &[&str]| {
        let args = [&["import", &file, store, "--node", "n", "--epoch", "3"], more].concat();
        place.expect(DONE, &args);
        place.json(DONE, &["show", store])["layout"].as_str().unwrap().to_owned()
    };
    for (db_type, more, layout) in [
        ("files", &[][..], "native"),
        ("minidb", &[], "caffe2"),
        ("leveldb", &[], "caffe2"),
        ("lmdb", &["--layout", "caffe2"], "caffe2"),
        ("rocksdb", &["--layout", "caffe2"], "caffe2"),
        ("files", &["--layout", "caffe2"], "caffe2"),
        ("leveldb", &["--layout", "native"], "native"),
    ] {
        let store = place.store(db_type, &format!("{db_type}{layout}"));
        assert_eq!(import(&store, more), layout, "{store}");
        assert_eq!(place.json(DONE, &["verify", &store])["ok"], true, "{store}");
    }
    let from = place.store("files", "filesnative");
    for (db_type, more, layout) in [
        ("minidb", &[][..], "caffe2"),
        ("files", &["--layout", "caffe2"], "caffe2"),
        ("rocksdb", &[], "native"),
    ] {
        let (to, back) = (
            place.store(db_type, &format!("{db_type}copy")),
            place.store("files", &format!("{db_type}back")),
        );
        let copy = [&["copy", &from, &to][..], more].concat();
        assert_eq!(place.json(DONE, &copy)["copied"], 1);
        assert_eq!(place.json(DONE, &copy)["present"], 1, "a second time");
        assert_eq!(place.json(DONE, &["show", &to])["layout"], layout);
        assert_eq!(place.json(DONE, &["ls", &to])["epochs"][0]["complete"], true, "{to}");
        assert_eq!(place.json(DONE, &["diff", &from, &to])["equal"], true);
        place.expect(DONE, &["copy", &to, &back, "--layout", "native"]);
        let out = place.text("back.safetensors");
        place.expect(DONE, &["export", &back, &out]);
        assert_eq!(formats::read(Path::new(&out)).unwrap().workspace, workspace);
    }
    // A single file becomes a checkpoint of the node and epoch in its name.
    let to = place.store("files", "single");
    let single = format!("minidb:{}", fixture("checkpoints/single/temp_node.3"));
    place.expect(DONE, &["copy", &single, &to, "--layout", "native"]);
    assert_eq!(place.json(DONE, &["show", &to, "--node", "temp_node"])["epoch"], 3);
}

/// A look at one blob of a minidb file, which has no index, costs the lengths and little more than that blob.
#[test]
fn one_blob_of_a_minidb_file_is_read_alone() {
    let place = Place::new();
    let (file, workspace) = place.model("m.safetensors", 64, 1 << 20);
    let store = place.store("minidb", "s");
    place.expect(DONE, &["import", &file, &store, "--node", "n", "--epoch", "1"]);
    let out = place.text("one.npz");
    let exported = place.json(DONE, &["export", &store, &out, "--blob", "w17"]);
    let bytes = workspace.get("w17").unwrap().data().len() as u64;
    let read = exported["bytes_read"].as_u64().unwrap();
    // u8 elements are varints of one or two bytes there.
    assert!(read < 2 * bytes + (1 << 20), "{read}");
    assert_eq!(formats::read(Path::new(&out)).unwrap().workspace.get("w17"), workspace.get("w17"));
}

#[test]
fn nets_and_pickles_are_imported() {
    let place = Place::new();
    let pickle = format!("{}/../runner/src/formats/pickle/fixtures", env!("CARGO_MANIFEST_DIR"));
    let file = fs::read_dir(pickle).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some_and(|extension| extension == "pkl"));
    let mut files: Vec<PathBuf> = file.collect();
    files.sort();
    let imported = files.iter().filter(|file| {
        let store = place.store("files", file.file_stem().unwrap().to_str().unwrap());
        let args = ["import", file.to_str().unwrap(), &store, "--node", "n", "--epoch", "0"];
        place.run(&args).status.code() == Some(DONE)
    });
    assert!(imported.count() > 5, "{files:?}");
    // A net of one GivenTensorFill: w = [1, 2].
    let net = b"\x0a\x04init\x12\x37\x12\x01w\x22\x0fGivenTensorFill*\x09\x0a\x05shape0\x02*\x12\x0a\x06values-\0\0\x80?-\0\0\0@";
    let mut net = net.to_vec();
    net[7] = u8::try_from(net.len() - 8).unwrap();
    fs::write(place.path("init_net.pb"), net).unwrap();
    let store = place.store("lmdb", "net");
    place.expect(DONE, &["import", "init_net.pb", &store, "--node", "n", "--epoch", "0"]);
    let out = place.text("net.npz");
    place.expect(DONE, &["export", &store, &out]);
    let read = formats::read(Path::new(&out)).unwrap().workspace;
    assert_eq!(read.tensor("w").unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
}

/// A copy into the folder that it came from, and a save over another's files, each lost Caffe2's checkpoints.
#[test]
fn nothing_is_written_over_what_is_copied_or_belongs_to_another_db_type() {
    let place = Place::new();
    let (file, _) = place.model("m.safetensors", 2, 100);
    let job = place.path("job");
    fs::create_dir(&job).unwrap();
    for name in ["trainer_0.1", "trainer_0.2"] {
        fs::copy(fixture(&format!("golden/job/{name}")), job.join(name)).unwrap();
    }
    let (minidb, files) = (place.store("minidb", "job"), place.store("files", "job"));
    for (to, more) in
        [(&files, &["--layout", "native"][..]), (&minidb, &[]), (&place.store("files", "./job"), &[])]
    {
        let args = [&["copy", &minidb, to][..], more].concat();
        let run = place.run(&args);
        assert!(matches!(run.status.code(), Some(USAGE | FAILED)), "{args:?}");
    }
    let import = ["import", &file, &files, "--node", "trainer_0", "--epoch", "2"];
    assert!(place.error(FAILED, &import).contains("db of db_type `minidb`"));
    for name in ["trainer_0.1", "trainer_0.2"] {
        let golden = fs::read(fixture(&format!("golden/job/{name}"))).unwrap();
        assert_eq!(fs::read(job.join(name)).unwrap(), golden);
    }
    let latest = || place.json(DONE, &["show", &minidb])["epoch"].clone();
    assert_eq!(latest(), 2);
    assert_eq!(place.json(DONE, &["verify", &minidb])["without_checksums"], 2);
    assert!(place.expect(DONE, &["verify", &minidb]).contains("have no checksums"));
    // A node of ours beside them, of an older epoch, takes nothing from Caffe2's newer ones.
    place.expect(DONE, &["import", &file, &minidb, "--node", "extra", "--epoch", "0"]);
    assert_eq!(latest(), 2);
    let again = place.json(DONE, &["import", &file, &minidb, "--node", "extra", "--epoch", "0"]);
    assert_eq!(again["replaced"], true);
    // Of two nodes of Caffe2's one is gone.
    fs::copy(fixture("golden/job/trainer_1.1"), job.join("trainer_1.1")).unwrap();
    let verified = place.json(NO, &["verify", &minidb]);
    assert!(verified["damage"][0]["reason"].as_str().unwrap().contains("trainer_1"), "{verified}");
    assert!(
        place
            .error(FAILED, &["show", &format!("{minidb}/trainer_0.1"), "--epoch", "1"])
            .contains("leave out --epoch")
    );
    assert!(place.error(FAILED, &["ls", &minidb, "--epoch", "77"]).contains("no such epoch"));
    let real = format!("minidb:{}", fixture("real"));
    assert!(place.expect(DONE, &["ls", &real]).contains("name one as the STORE"));
    let compressed = place.store("leveldb", "snappy");
    place.expect(
        DONE,
        &[
            "copy",
            &real.replace("real", "checkpoints/single"),
            &compressed,
            "--db-option",
            "compression=snappy",
        ],
    );
    let wrong = place.error(USAGE, &["import", &file, "minidb:./x.minidb", "--node", "n", "--epoch", "0"]);
    assert!(wrong.contains("name the folder"), "{wrong}");
}

/// A copy of many checkpoints ended at the first damaged one, and did not say how to go on.
#[test]
fn a_copy_takes_what_is_whole_and_names_what_is_not() {
    let place = Place::new();
    let (file, _) = place.model("m.safetensors", 2, 50_000);
    let from = place.store("files", "from");
    for epoch in ["1", "2", "3"] {
        place.expect(DONE, &["import", &file, &from, "--node", "n", "--epoch", epoch]);
    }
    let db = fs::OpenOptions::new().write(true).open(place.path("from").join("n.2")).unwrap();
    db.write_all_at(b"damaged", 30_000).unwrap();
    for db_type in ["files", "minidb"] {
        let to = place.store(db_type, &format!("to-{db_type}"));
        let error = place.error(FAILED, &["copy", &from, &to]);
        assert!(error.contains("1 of 3 dbs are damaged") && error.contains("n.2"), "{error}");
        let listed = place.json(DONE, &["ls", &to]);
        let epochs = listed["epochs"].as_array().unwrap().iter();
        let complete: Vec<u64> = epochs
            .filter(|epoch| epoch["complete"] == true)
            .map(|epoch| epoch["epoch"].as_u64().unwrap())
            .collect();
        assert_eq!(complete, [1, 3], "{to}");
        assert!(!place.path(&format!("to-{db_type}")).join("n.2").exists());
    }
}

/// A minidb file has no checksums; the epoch record beside those that we write has one over all records.
#[test]
fn a_flip_in_a_number_of_a_minidb_file_is_noticed_by_the_epoch_record() {
    let place = Place::new();
    let (file, _) = place.model("m.safetensors", 3, 100_000);
    for (db_type, name) in [("minidb", "imported"), ("minidb", "copied"), ("lmdb", "copied2")] {
        let store = place.store(db_type, name);
        if name == "imported" {
            place.expect(DONE, &["import", &file, &store, "--node", "n", "--epoch", "1"]);
        } else {
            place.expect(DONE, &["copy", &place.store("minidb", "imported"), &store]);
        }
        assert_eq!(place.json(DONE, &["verify", &store])["ok"], true);
    }
    for name in ["imported", "copied"] {
        let path = place.path(name).join("n.1");
        let db = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        db.read_exact_at(&mut byte, 50_000).unwrap();
        // Another number of as many bytes.
        db.write_all_at(&[byte[0] ^ 1], 50_000).unwrap();
        let verified = place.json(NO, &["verify", &place.store("minidb", name)]);
        assert!(
            verified["damage"][0]["reason"].as_str().unwrap().contains("differs from the epoch record"),
            "{verified}"
        );
    }
}

#[test]
fn bench_measures_every_store_and_leaves_nothing() {
    let place = Place::new();
    let (dir, page) = (place.text("disk"), place.text("page.html"));
    let run = |more: &[&str]| {
        let mut command = ckpt();
        command.args(["bench", "--size", "8MiB", "--blobs", "5", "--rounds", "2", "--dir", &dir]).args(more);
        command.output().unwrap()
    };
    let output = run(&["--json", "--html", &page]);
    assert_eq!(output.status.code(), Some(DONE), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    has_keys(&report, &["machine", "payload", "rounds", "limits", "results"]);
    has_keys(&report["limits"], &["write_mib_s", "read_mib_s", "memcpy_mib_s", "crc32_mib_s"]);
    let payload = report["payload"]["bytes"].as_u64().unwrap();
    assert_eq!((payload / 5 % 4, payload <= 8 << 20), (0, true));
    let results = report["results"].as_array().unwrap();
    let db_types: Vec<&str> = results.iter().map(|result| result["db_type"].as_str().unwrap()).collect();
    assert_eq!(db_types, ["files", "rocksdb", "lmdb"]);
    for result in results {
        for key in ["save_mib_s", "save_of_limit", "load_cold_mib_s", "load_of_limit", "load_warm_mib_s"] {
            assert!(result[key].as_f64().unwrap() > 0.0, "{key} {result}");
        }
        has_keys(result, &["partial_cold_ms", "exists_ms", "peak_rss_over_payload_mib"]);
        assert_eq!(
            (&result["peak_allowed_mib"], &result["peak_within_allowed"]),
            (&320.0.into(), &true.into())
        );
        let save_limit = if result["db_type"] == "lmdb" { "buffered" } else { "write" };
        assert_eq!(
            (&result["save_limit"]["name"], &result["load_limit"]["name"]),
            (&save_limit.into(), &"read".into())
        );
        assert_eq!(result["stored_bytes"].as_u64(), Some(payload));
        let read = result["partial_bytes_read"].as_u64().unwrap();
        assert!((payload / 5..=payload / 5 + (1 << 20)).contains(&read), "{read}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "it cleans up");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("\"db_type\":\"lmdb\"") && !html.contains("/*DATA*/null"));
    for wrong in [&["--db-type", "memory"][..], &["--db-type", "nope"], &["--blobs", "0"], &["--rounds", "0"]]
    {
        let mut command = ckpt();
        let output = command.args(["bench", "--dir", &dir]).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(USAGE), "{wrong:?}");
    }
    let output = ckpt().args(["bench", "--dir", &dir, "--size", "900TiB"]).output().unwrap();
    assert_eq!(output.status.code(), Some(FAILED));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not enough room"));
}

#[test]
fn bench_measures_an_object_store_against_plain_requests_and_leaves_nothing() {
    let place = Place::new();
    let (dir, page) = (place.text("disk"), place.text("page.html"));
    let is_clean = || {
        let server = place.server();
        server.keys("bucket").unwrap().is_empty() && server.pending_uploads().unwrap().is_empty()
    };
    assert!(is_clean());
    let bench =
        ["bench", "--size", "24MiB", "--blobs", "3", "--rounds", "2", "--dir", "s3://bucket/some/where"];
    let run = |more: &[&str]| place.json(DONE, &[&bench[..], more].concat());

    let report = run(&["--db-type", "s3"]);
    assert_eq!((&report["limits"]["write_mib_s"], &report["machine"]["dir"]), (&Value::Null, &Value::Null));
    assert_eq!(report["machine"]["remote"], serde_json::json!(["s3://bucket/some/where"]));
    let names =
        report["limits"]["probes"].as_array().unwrap().iter().map(|probe| probe["name"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    let plain = ["s3 PUT, objects of 8 MiB x 16", "s3 GET, objects of 8 MiB x 16"];
    assert_eq!(names, [&plain[..], &["memcpy, all cpus", "crc32, all cpus"]].concat());
    let s3 = &report["results"][0];
    for key in
        ["save_mib_s", "save_of_limit", "load_cold_mib_s", "load_of_limit", "partial_cold_ms", "exists_ms"]
    {
        assert!(s3[key].as_f64().unwrap() > 0.0, "{key} {s3}");
    }
    assert_eq!((&s3["save_limit"]["way"], &s3["load_limit"]["way"]), (&plain[0].into(), &plain[1].into()));
    assert_eq!((&s3["load_warm_mib_s"], &s3["save_of_buffered"]), (&Value::Null, &Value::Null));
    assert_eq!((&s3["stored_bytes"], &s3["peak_within_allowed"]), (&(24 << 20).into(), &true.into()));
    let read = s3["partial_bytes_read"].as_u64().unwrap();
    assert!((8 << 20..=9 << 20).contains(&read), "{read}");
    assert!(is_clean());

    let report = run(&["--db-type", "files,S3", "--dir", &dir, "--html", &page]);
    assert!(report["limits"]["write_mib_s"].as_f64().unwrap() > 0.0);
    let limits: Vec<_> =
        report["results"].as_array().unwrap().iter().map(|r| &r["save_limit"]["name"]).collect();
    assert_eq!(limits, ["write", "PUT"]);
    assert!(fs::read_to_string(&page).unwrap().contains("s3://bucket/some/where"));
    assert!(is_clean() && fs::read_dir(&dir).unwrap().count() == 0);

    for (wrong, hint) in [
        (&["--db-type", "s3"][..], "add --dir s3://BUCKET/PREFIX"),
        (&["--db-type", "files", "--dir", "s3://bucket"], "add s3 to --db-type"),
        (&["--db-type", "s3", "--dir", "s3://bucket", "--dir", &dir], "leave out --dir"),
        (&["--db-type", "files", "--dir", "a", "--dir", "b"], "leave out one"),
        (&["--db-type", "s3", "--dir", "https://bucket"], "give a folder, or a URL"),
    ] {
        let error = place.error(USAGE, &[&["bench"], wrong].concat());
        assert!(error.contains(hint), "{error}");
    }
}

#[test]
fn a_bench_that_fails_removes_its_objects() {
    // Plain objects are served; of checkpoints, no upload is completed, or none can be read.
    for refused in ["POST", "GET"] {
        let is_of_checkpoint = |path: &str| path.contains("bench%3A0") && !path.ends_with("?uploads=");
        let server = S3Server::temporary(Arc::new(move |method, path| {
            if method == refused && is_of_checkpoint(path) { Answer::Refuse(403) } else { Answer::Serve }
        }));
        let place = Place { server: server.unwrap().into(), ..Place::new() };
        place.server().create_bucket("bucket").unwrap();
        let bench = ["bench", "--db-type", "s3", "--dir", "s3://bucket", "--size", "24MiB"];
        assert!(place.error(FAILED, &bench).contains("access denied"), "{refused}");
        assert_eq!(place.server().keys("bucket").unwrap(), [""; 0], "{refused}");
        assert_eq!(place.server().pending_uploads().unwrap(), [""; 0], "{refused}");
    }
}
