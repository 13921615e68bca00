//! The log of a LevelDB database of any bytes; its other files are sound.
#![no_main]

use std::fs;

use ckpt_engine::db::Source;
use libfuzzer_sys::fuzz_target;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/caffe2/leveldb/01_dtypes.leveldb");

fuzz_target!(|data: &[u8]| {
    let folder = ckpt_fuzz::folder();
    let db = folder.join("n.1");
    if !db.exists() {
        fs::create_dir_all(&db).unwrap();
        for file in ["CURRENT", "MANIFEST-000002"] {
            fs::copy(format!("{FIXTURE}/{file}"), db.join(file)).unwrap();
        }
    }
    fs::write(db.join("000003.log"), data).unwrap();
    let prefix = folder.to_str().unwrap();
    let place = ckpt_fuzz::place("leveldb", prefix);
    if let Ok(checkpoint) = place.open_source(Source::new(prefix, "n.1")) {
        ckpt_fuzz::use_all(&place, &checkpoint);
    }
});
