//! The blobs of one node in memory.

use std::collections::BTreeMap;

use super::{Buffer, Tensor};
use crate::error::{Error, Result};

/// The longest name of a blob, in bytes.
pub const MAX_NAME_LEN: usize = 64 << 10;

/// A value: a tensor, or bytes that only their owner understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blob {
    /// A tensor.
    Tensor(Tensor),
    /// Opaque bytes.
    Bytes {
        /// What they are, for whoever understands them, such as `std::string`.
        type_name: String,
        /// The bytes.
        data: Buffer,
    },
}

impl Blob {
    /// Opaque bytes with a type name.
    pub fn bytes(type_name: impl Into<String>, data: impl Into<Buffer>) -> Self {
        Self::Bytes { type_name: type_name.into(), data: data.into() }
    }

    /// The stored bytes.
    pub fn data(&self) -> &Buffer {
        match self {
            Self::Tensor(tensor) => tensor.data(),
            Self::Bytes { data, .. } => data,
        }
    }

    /// The tensor, or an error if it is none.
    pub fn as_tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::Bytes { type_name, .. } => {
                Err(Error::invalid(format!("blob is not a tensor type=`{type_name}`")))
            }
        }
    }
}

impl From<Tensor> for Blob {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

/// Blobs by name, in the order of their names.
///
/// A clone is a snapshot: it costs no copy of the data until one of the two is written to. Two names for one [`Buffer`] (tied
/// weights) are saved once and come back sharing it; writing to one of them then gives it a buffer of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    blobs: BTreeMap<String, Blob>,
}

impl Workspace {
    /// An empty workspace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a blob under a name and returns the one it replaces.
    pub fn insert(&mut self, name: impl Into<String>, blob: impl Into<Blob>) -> Option<Blob> {
        self.blobs.insert(name.into(), blob.into())
    }

    /// The blob of a name.
    pub fn get(&self, name: &str) -> Option<&Blob> {
        self.blobs.get(name)
    }

    /// The blob of a name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Blob> {
        self.blobs.get_mut(name)
    }

    /// The tensor of a name. Fails with `NotFound` if there is no such blob and `InvalidInput` if it is no tensor.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let blob = self.get(name).ok_or_else(|| no_such_blob(name))?;
        blob.as_tensor().map_err(|error| error.context(format!("blob `{name}`")))
    }

    /// Takes a blob out.
    pub fn remove(&mut self, name: &str) -> Option<Blob> {
        self.blobs.remove(name)
    }

    /// Names and blobs, in the order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Blob)> {
        self.blobs.iter().map(|(name, blob)| (name.as_str(), blob))
    }

    /// The names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.blobs.keys().map(String::as_str)
    }

    /// How many blobs.
    pub fn len(&self) -> usize {
        self.blobs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blobs.is_empty()
    }

    /// Puts all blobs of `other` here, replacing those of equal names.
    pub fn extend(&mut self, other: Self) {
        self.blobs.extend(other.blobs);
    }
}

impl FromIterator<(String, Blob)> for Workspace {
    fn from_iter<I: IntoIterator<Item = (String, Blob)>>(blobs: I) -> Self {
        Self { blobs: blobs.into_iter().collect() }
    }
}

/// The error for a blob that is not there.
pub(crate) fn no_such_blob(name: &str) -> Error {
    Error::not_found(format!("no such blob blob=`{name}`"))
}
