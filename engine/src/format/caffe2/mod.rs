//! The caffe2 layout: records that are `BlobProto` messages, as Caffe2's Save operator wrote them.
//!
//! Reading goes in two steps, so that a look at a db costs no more than its headers. [`wire`] walks a message and keeps where its
//! payload lies; what is left of it is decoded by `prost`. [`record`] makes of that what the record is: a piece of a tensor, or an
//! opaque blob. [`index`] puts the pieces of all records together, and refuses what Caffe2 takes in silence: pieces that overlap,
//! leave holes or contradict each other. [`payload`] then turns payload into elements and back, [`encode`] writes records.
//!
//! All of it is pure: bytes come from a closure. docs/CAFFE2.md has the mapping and what differs from Caffe2.

pub mod encode;
pub mod index;
pub mod keys;
pub mod nets;
pub mod payload;
pub mod record;
pub mod values;
pub mod wire;

/// The messages.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/caffe2.rs"));
}

/// `BlobProto.type` of a tensor.
pub const TENSOR: &str = "Tensor";
/// `BlobProto.type` of a string.
pub const STRING: &str = "std::string";
