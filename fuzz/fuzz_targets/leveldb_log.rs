//! The log of a LevelDB database; its other files are sound. The first byte chooses: the log is any bytes, or a record of any bytes
//! whose checksums are right, so that it is looked at.
#![no_main]

use std::fs;

use ckpt_engine::db::Source;
use libfuzzer_sys::fuzz_target;

const FIXTURE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/caffe2/leveldb/01_dtypes.leveldb");
/// A log is cut into blocks of so many bytes; each part of a record has a header.
const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else { return };
    let folder = ckpt_fuzz::folder();
    let db = folder.join("n.1");
    if !db.exists() {
        fs::create_dir_all(&db).unwrap();
        for file in ["CURRENT", "MANIFEST-000002"] {
            fs::copy(format!("{FIXTURE}/{file}"), db.join(file)).unwrap();
        }
    }
    let log = if first % 4 == 0 { data.to_vec() } else { log_of(data) };
    fs::write(db.join("000003.log"), log).unwrap();
    let prefix = folder.to_str().unwrap();
    let place = ckpt_fuzz::place("leveldb", prefix);
    if let Ok(checkpoint) = place.open_source(Source::new(prefix, "n.1")) {
        ckpt_fuzz::use_all(&place, &checkpoint);
    }
});

/// A log of one record.
fn log_of(record: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = record.chunks(BLOCK - HEADER).collect();
    let mut log = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let kind: u8 = match (index == 0, index + 1 == parts.len()) {
            (true, true) => 1,
            (true, false) => 2,
            (false, false) => 3,
            (false, true) => 4,
        };
        let crc32c = crc32c::crc32c_append(crc32c::crc32c(&[kind]), part);
        log.extend(crc32c.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes());
        log.extend(u16::try_from(part.len()).unwrap().to_le_bytes());
        log.push(kind);
        log.extend_from_slice(part);
    }
    log
}
