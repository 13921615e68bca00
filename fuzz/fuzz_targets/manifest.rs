//! A manifest of any body: its checksum is made right, so that the body is looked at.
#![no_main]

use ckpt_engine::format::manifest::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let (version, len) = (1u32.to_le_bytes(), (body.len() as u64).to_le_bytes());
    let crc32 = crc32fast::hash(&[&version[..], &len, body].concat()).to_le_bytes();
    let record = [b"CKPTMANI", &version[..], &len, &crc32, body].concat();
    if let Ok(manifest) = Manifest::decode(&record) {
        assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest);
    }
});
