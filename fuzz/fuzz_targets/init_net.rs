//! An `init_net.pb` of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(weights) = ckpt_engine::checkpoint::caffe2::init_net_weights(data) {
        ckpt_fuzz::comes_back(&weights, None);
    }
});
