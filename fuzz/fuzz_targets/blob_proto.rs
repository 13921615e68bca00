//! A record of Caffe2 of any bytes. The first byte chooses its key.
#![no_main]

use ckpt_engine::db::{Limits, Source, WritePlan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&first, value)) = data.split_first() else { return };
    let key = ["w#%0", "w", "a#%b", "!!META_NET_DEF"][usize::from(first) % 4];
    let place = ckpt_fuzz::place("memory", "run");
    let source = Source::new("run", "n.1");
    let plan = WritePlan { records: 1, bytes: value.len() as u64, limits: Limits::default() };
    let put = place
        .driver()
        .write(&source, &plan, &mut |transaction| transaction.put(key.as_bytes(), value.to_vec().into()));
    put.unwrap();
    if let Ok(checkpoint) = place.open_source(source) {
        ckpt_fuzz::use_all(&place, &checkpoint);
    }
});
