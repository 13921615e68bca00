//! A minidb file of any bytes.
#![no_main]

use ckpt_engine::db::Source;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let folder = ckpt_fuzz::folder();
    std::fs::write(folder.join("n.1"), data).unwrap();
    let prefix = folder.to_str().unwrap();
    let place = ckpt_fuzz::place("minidb", prefix);
    if let Ok(checkpoint) = place.open_source(Source::new(prefix, "n.1")) {
        ckpt_fuzz::use_all(&place, &checkpoint);
    }
});
