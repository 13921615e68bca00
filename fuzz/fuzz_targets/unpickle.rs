//! A pickle of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = ckpt_fuzz::folder().join("x.pkl");
    std::fs::write(&path, data).unwrap();
    if let Ok(imported) = ckpt_runner::formats::read(&path) {
        ckpt_fuzz::comes_back(&imported.workspace, None);
    }
});
