//! Damage to the files of a store: it is found and named, or the data are still right. Never a wrong tensor, never a panic.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use ckpt_engine::blob::{Selection, Tensor, Workspace};
use ckpt_engine::checkpoint::Compression;
use ckpt_engine::db::Values;
use ckpt_engine::{ErrorKind, Options};
use ckpt_tests::data::{noise, noise_tensor, zeros};
use ckpt_tests::stores::Store;

use crate::support::{entries, verify, write};
use crate::{Case, cases};

pub const CASES: &[Case] = cases! {
    damage_in_a_blob_is_named but not on "memory": "it keeps no files";
    a_flipped_byte_anywhere but not on "memory": "it keeps no files";
    a_flipped_byte_anywhere_compressed but not on "memory": "it keeps no files";
    a_file_that_is_cut_short_or_longer but not on "memory": "it keeps no files";
    a_file_that_is_missing but not on "memory": "it keeps no files", "files" | "minidb" | "s3": "its db is one file";
    garbage_in_place_of_a_db but not on "memory": "it keeps no files";
    a_db_of_other_records_is_no_checkpoint;
};

/// How many bytes of a db are flipped, one after the other.
fn flips(store: &Store) -> usize {
    // Each is several requests there, and the bytes are those of `files`.
    if store.db_type() == "s3" { 100 } else { 400 }
}

/// Flips a byte of a blob's stored bytes, which are found in the db's files: byte `at` of `blob`.
pub fn damage_blob(store: &Store, db: &str, blob: &[u8], at: usize) {
    // A store may cut a value into pages with headers between, so only the bytes around are looked for.
    let needle = &blob[at - at % 64..][..64.min(blob.len() - at + at % 64)];
    let found: Vec<_> = (store.files(db).into_iter())
        .flat_map(|file| {
            let bytes = fs::read(&file).unwrap();
            let found = bytes.windows(needle.len()).enumerate().filter(|(_, window)| *window == needle);
            found.map(|(offset, _)| (file.clone(), offset)).collect::<Vec<_>>()
        })
        .collect();
    let [(file, offset)] = found.as_slice() else { panic!("the blob is stored {} times", found.len()) };
    flip(file, (offset + at % 64) as u64, 0x10);
}

fn flip(file: &Path, at: u64, mask: u8) {
    let mut file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ mask]).unwrap();
}

fn sample() -> Workspace {
    let mut workspace = Workspace::new();
    workspace.insert("a", noise_tensor(100, 1));
    workspace.insert("b", noise_tensor(70_000, 2));
    workspace.insert("c", Tensor::from_slice([300], &[7i64; 300]).unwrap());
    workspace.insert("strings", Tensor::from_strings([3], &["x", "", "yz"]).unwrap());
    workspace.insert("zeros", zeros(100_000));
    workspace
}

/// Says what is wrong if damage went unnoticed. `Ok(true)` if it was found, `Ok(false)` if it did no harm.
fn notice(store: &Store, saved: &Workspace) -> Result<bool, String> {
    let place = store.checkpoints();
    let report = place.verify("n", 1).map_err(|error| format!("verify: {error:?}"))?;
    let label = format!("{}:{}/n.1", store.db_type(), store.prefix());
    if report.damage.iter().any(|damage| damage.db != label || damage.reason.is_empty()) {
        return Err(format!("damage without its place: {:?}", report.damage));
    }
    match place.load("n", 1) {
        Ok(loaded) if loaded != *saved => Err("a wrong tensor was loaded".to_owned()),
        Ok(_) if !report.is_ok() => Err(format!("what verify finds, load must find: {:?}", report.damage)),
        Ok(_) => Ok(false),
        Err(error) if error.kind() != ErrorKind::Corrupt => Err(format!("load: {error:?}")),
        Err(error) if report.is_ok() => Err(format!("what load finds, verify must find: {error:?}")),
        Err(error) if !error.to_string().contains(&label) => {
            Err(format!("load does not name the db: {error}"))
        }
        Err(_) => Ok(true),
    }
}

fn damage_in_a_blob_is_named(store: &Store) {
    let place = store.checkpoints();
    let mut saved = Workspace::new();
    saved.insert("a", noise_tensor(200, 1));
    saved.insert("b", noise_tensor(200, 2));
    saved.insert("c", noise_tensor(9 << 20, 3));
    saved.insert("d", noise_tensor(70_000, 4));
    saved.insert("d too", saved.get("d").unwrap().clone());
    place.save(&saved, "n", 1).unwrap();
    // Where only single records can be mapped the blob is one chunk.
    let is_whole = store.driver().capabilities().values == Values::MappedSingly;
    let cut = |from: u64, to: u64| if is_whole { [0, 9 << 20] } else { [from << 20, to << 20] };
    // Small blobs share a record. RocksDB and LevelDB check a record as a whole and give out nothing of a damaged one.
    let whole = ["rocksdb", "leveldb"].contains(&store.db_type());
    let (a, b): (&[&str], &[&str]) = if whole { (&["a", "b"], &["a", "b"]) } else { (&["a"], &["b"]) };
    let cases: [(&[&str], u64, usize, usize, [u64; 2]); 6] = [
        (a, 1, 200, 0, [0, 200]),
        (b, 2, 200, 199, [0, 200]),
        (&["c"], 3, 9 << 20, 1000, cut(0, 4)),
        (&["c"], 3, 9 << 20, 5 << 20, cut(4, 8)),
        (&["c"], 3, 9 << 20, (9 << 20) - 1, cut(8, 9)),
        (&["d", "d too"], 4, 70_000, 69_999, [0, 70_000]),
    ];
    for (names, seed, len, at, range) in cases {
        let bytes = noise(len, seed);
        damage_blob(store, "n.1", &bytes, at);
        let report = place.verify("n", 1).unwrap();
        let named: Vec<&str> = report.damage.iter().map(|damage| damage.blob.as_deref().unwrap()).collect();
        assert_eq!(named, names);
        for damage in &report.damage {
            assert_eq!(damage.range, Some(range[0]..range[1]));
        }
        let lost: u64 = if names == ["a", "b"] { 400 } else { range[1] - range[0] };
        assert_eq!(report.bytes, (9 << 20) + 400 + 70_000 - lost, "the rest is right");
        let error = place.load_blobs("n", 1, &Selection::names(names.iter().copied())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        let text = error.to_string();
        let bytes_named = format!("bytes {}..{}", range[0], range[1]);
        assert!(
            text.contains("n.1") && text.contains(&format!("`{}`", names[0])) && text.contains(&bytes_named),
            "{text}"
        );
        // What is not damaged can be had.
        let others = saved.names().filter(|name| !names.contains(name));
        let others = place.load_blobs("n", 1, &Selection::names(others)).unwrap();
        assert!(others.iter().all(|(name, blob)| saved.get(name) == Some(blob)));
        place.save(&saved, "n", 1).unwrap();
    }
    verify(&place, "n", 1);
}

fn a_flipped_byte_anywhere(store: &Store) {
    flip_everywhere(store, Compression::None);
}

fn a_flipped_byte_anywhere_compressed(store: &Store) {
    flip_everywhere(store, Compression::Zstd(3));
}

fn flip_everywhere(store: &Store, compression: Compression) {
    let saved = sample();
    let place =
        store.checkpoints().with_options(Options { compression, ..store.checkpoints().options().clone() });
    place.save(&saved, "n", 1).unwrap();
    let files = store.files("n.1");
    assert!(!files.is_empty());
    let mut found = 0;
    for file in &files {
        let original = fs::read(file).unwrap();
        for (number, at) in positions(original.len(), flips(store) / files.len()).into_iter().enumerate() {
            // One bit, all bits, and a pattern, in turn.
            let mask = [0x01, 0xff, 0x80, 0x5a][number % 4];
            flip(file, at as u64, mask);
            match notice(store, &saved) {
                Ok(noticed) => found += usize::from(noticed),
                Err(wrong) => panic!("byte {at} of {} xor {mask:#04x}: {wrong}", file.display()),
            }
            flip(file, at as u64, mask);
        }
        assert!(fs::read(file).unwrap() == original);
    }
    assert!(found > 10, "only {found} flips were found");
    verify(&store.checkpoints(), "n", 1);
}

/// About `count` positions: the first and the last bytes, where headers and footers are, and others in even steps, off any
/// alignment.
fn positions(len: usize, count: usize) -> Vec<usize> {
    if len <= count {
        return (0..len).collect();
    }
    let (edge, steps) = (count / 4, count - count / 4 * 2);
    let step = (len / steps).max(1) | 1;
    let between = (edge..len - edge).step_by(step);
    (0..edge).chain(between).chain(len - edge..len).collect()
}

fn a_file_that_is_cut_short_or_longer(store: &Store) {
    let saved = sample();
    store.checkpoints().save(&saved, "n", 1).unwrap();
    for file in store.files("n.1") {
        let original = fs::read(&file).unwrap();
        let len = original.len();
        let cut = [
            0,
            1,
            63,
            len / 3,
            len / 2,
            len.saturating_sub(4096),
            len.saturating_sub(64),
            len.saturating_sub(1),
        ];
        let mut contents: Vec<Vec<u8>> = cut.map(|len| original[..len.min(original.len())].to_vec()).into();
        contents.push([&original[..], &[0]].concat());
        contents.push([&original[..], &[0; 4096]].concat());
        contents.push([&original[..], &noise(100, 1)].concat());
        // The right length, but the end was never written: what a crash leaves that dropped the last blocks.
        contents.push([&original[..len / 2], &vec![0; len - len / 2]].concat());
        for changed in contents {
            fs::write(&file, &changed).unwrap();
            if let Err(wrong) = notice(store, &saved) {
                panic!("{} of {len} bytes with {}: {wrong}", file.display(), changed.len());
            }
        }
        fs::write(&file, &original).unwrap();
    }
    verify(&store.checkpoints(), "n", 1);
}

fn a_file_that_is_missing(store: &Store) {
    let saved = sample();
    store.checkpoints().save(&saved, "n", 1).unwrap();
    for file in store.files("n.1") {
        let original = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        if let Err(wrong) = notice(store, &saved) {
            panic!("without {}: {wrong}", file.display());
        }
        fs::write(&file, &original).unwrap();
    }
    verify(&store.checkpoints(), "n", 1);
}

fn garbage_in_place_of_a_db(store: &Store) {
    let saved = sample();
    let place = store.checkpoints();
    let path = store.folder().unwrap().join("n.1");
    let garbage = [Vec::new(), b"garbage".to_vec(), vec![0; 4096], vec![0xff; 100], noise(100_000, 1)];
    // As the only file, or as each of the files of a real db.
    place.save(&saved, "n", 1).unwrap();
    let files = store.files("n.1");
    let is_folder = path.is_dir();
    if is_folder {
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_is_no_db(store, "an empty folder");
        fs::write(path.join("stray"), "garbage").unwrap();
        assert_is_no_db(store, "a folder of something else");
    }
    // An empty minidb file is a db of no records, though no checkpoint.
    let garbage = garbage.iter().filter(|contents| store.db_type() != "minidb" || !contents.is_empty());
    for contents in garbage {
        for file in &files {
            fs::write(file, contents).unwrap();
        }
        assert_is_no_db(store, &format!("{} bytes", contents.len()));
    }
    // And a save makes it a checkpoint again.
    place.save(&saved, "n", 1).unwrap();
    assert_eq!(place.load("n", 1).unwrap(), saved);
    assert_eq!(store.leftovers(), [""; 0]);
    verify(&place, "n", 1);
}

fn assert_is_no_db(store: &Store, what: &str) {
    let place = store.checkpoints();
    let error = store.driver().open(&store.source("n.1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error:?}");
    assert_eq!(place.load("n", 1).unwrap_err().kind(), ErrorKind::Corrupt, "{what}");
    assert!(!matches!(place.exists("n", 1), Ok(false)), "{what}: something is there");
    let report = place.verify("n", 1).unwrap();
    assert_eq!((report.blobs, report.damage.len()), (0, 1), "{what}");
    assert_eq!(report.damage[0].blob, None, "{what}");
}

fn a_db_of_other_records_is_no_checkpoint(store: &Store) {
    let place = store.checkpoints();
    write(&*store.driver(), &store.source("n.1"), &entries(["not", "a", "manifest"])).unwrap();
    assert_eq!(place.open("n", 1).unwrap_err().kind(), ErrorKind::Corrupt);
    let report = place.verify("n", 1).unwrap();
    assert_eq!((report.damage.len(), report.damage[0].blob.as_deref()), (1, None));
    place.save(&sample(), "n", 1).unwrap();
    verify(&place, "n", 1);
}
