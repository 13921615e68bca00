//! What both layouts work with: an open db, what it says of itself and of its blobs, and what is to be read of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Options;
use crate::db::{Db, Layout, Source};
use crate::format::codec::Codec;
use crate::format::manifest::{BlobKind, DbId};

/// An open db and how to work on it.
pub(super) struct Opened {
    pub(super) db: Arc<dyn Db>,
    pub(super) source: Source,
    pub(super) label: String,
    pub(super) options: Options,
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// How its records are laid out.
    pub layout: Layout,
    /// The id of its save. Caffe2 keeps none: there it is made of the records' keys, lengths and ends.
    pub id: DbId,
    /// The node that was saved. Caffe2 keeps none: there it is the db's name.
    pub node: String,
    /// The epoch that was saved. Caffe2 keeps none: there it is the db's name, and 0 if that has none.
    pub epoch: u64,
    /// When the save began, in milliseconds since 1970, if it is known.
    pub created_unix_ms: Option<u64>,
    /// Program and version that wrote it.
    pub writer: String,
    /// The user's own.
    pub metadata: BTreeMap<String, String>,
}

/// What a checkpoint says of one blob.
#[derive(Clone, Debug, PartialEq)]
pub struct BlobInfo<'a> {
    /// The name.
    pub name: &'a str,
    /// Tensor or opaque bytes.
    pub kind: &'a BlobKind,
    /// The length in raw bytes.
    pub bytes: u64,
    /// What its chunks take in the store.
    pub stored_bytes: u64,
    /// That of the first chunk that is compressed, if any is.
    pub codec: Codec,
    /// How many chunks.
    pub chunks: u64,
    /// By which number its bytes are fetched: blobs that share bytes have the same.
    pub(super) storage: usize,
}

/// Bytes of one storage to be read into memory of the caller's.
pub(super) struct Fetch<'a> {
    /// Index of the storage.
    pub(super) storage: usize,
    /// The raw bytes wanted.
    pub(super) range: Range<u64>,
    /// Where they go; as long as `range`.
    pub(super) out: &'a mut [u8],
}
