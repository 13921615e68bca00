//! An `init_net.pb` of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = ckpt_engine::checkpoint::caffe2::init_net_weights(data);
});
