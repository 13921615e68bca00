//! The caffe2 layout: reading what Caffe2's Save operator wrote, and writing what its Load operator reads.
//!
//! Caffe2 keeps no manifest and no checksums. What a db holds is found out by reading the headers of all its records on opening; a
//! flipped bit in a payload can only be noticed where the store below has checksums (`rocksdb`, `leveldb`). docs/CAFFE2.md has all
//! of it.

mod checksum;
mod options;
mod read;
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub(super) use checksum::records_crc32;
pub use options::{BlobOptions, ChunkSize, SaveOptions};
pub(super) use read::Caffe2;
pub(super) use verify::verify;
pub(super) use write::{copy_records, stage};

pub use crate::format::caffe2::encode::FloatFormat;
pub use crate::format::caffe2::nets::{ModelInfo, NetInfo, init_net_weights, is_meta_net, model_info};
pub use crate::format::caffe2::values::{BLOB_NAMES, Counter, Int8Tensor, TreeCursor, as_tensors, string_of};
