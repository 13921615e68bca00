//! Data that the suites save: the same on every run.

use bytes::Bytes;
use ckpt_engine::blob::{Blob, Buffer, DType, Tensor, Workspace};

/// Bytes that do not compress.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A tensor of `len` bytes that do not compress.
pub fn noise_tensor(len: usize, seed: u64) -> Tensor {
    Tensor::from_vec([len as u64], noise(len, seed)).unwrap()
}

/// A tensor of `len` zeros.
pub fn zeros(len: usize) -> Tensor {
    Tensor::new(DType::U8, [len as u64], Buffer::zeroed(len).unwrap()).unwrap()
}

/// A workspace with blobs of `len` bytes each, named `w00`, `w01`, …
pub fn blobs(count: usize, len: usize, seed: u64) -> Workspace {
    let blob = |index: usize| (format!("w{index:02}"), noise_tensor(len, seed + index as u64).into());
    (0..count).map(blob).collect()
}

/// One of everything: every dtype as a matrix, a scalar and an empty tensor; strings; NaNs; opaque bytes; the empty name and the
/// longest; tensors of several chunks.
pub fn one_of_everything() -> Workspace {
    let mut workspace = Workspace::new();
    for &dtype in DType::ALL {
        let Some(size) = dtype.size() else { continue };
        let mut bytes = noise(6 * size, size as u64);
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|byte| *byte &= 1);
        }
        let tensor = |shape: &[u64], bytes: &[u8]| {
            Tensor::new(dtype, shape, Buffer::copy_from(bytes).unwrap()).unwrap()
        };
        workspace.insert(format!("{dtype}/2x3"), tensor(&[2, 3], &bytes));
        workspace.insert(format!("{dtype}/scalar"), tensor(&[], &bytes[..size]));
        workspace.insert(format!("{dtype}/empty"), tensor(&[3, 0, 2], &[]));
    }
    let strings: [&[u8]; 4] = [b"\0", b"", b"\xff\xfe", "Größe".as_bytes()];
    workspace.insert("strings", Tensor::from_strings([2, 2], &strings).unwrap());
    workspace.insert("strings/empty", Tensor::from_strings::<&[u8]>([0, 5], &[]).unwrap());
    let nans = [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000, 0xff80_0001].map(f32::from_bits);
    workspace.insert("nans", Tensor::from_slice([4], &nans).unwrap());
    workspace.insert("", Tensor::scalar(1u8));
    workspace.insert("n".repeat(64 << 10), Tensor::scalar(2i64));
    workspace.insert("name with / and \n and 日本", Tensor::scalar(3i64));
    workspace.insert("opaque", Blob::bytes("std::string", Bytes::from_static(b"a\0b")));
    workspace.insert("opaque/empty", Blob::bytes("", Bytes::new()));
    workspace.insert("large", noise_tensor((9 << 20) + 12_345, 9));
    workspace.insert("zeros", zeros(6 << 20));
    workspace
}
