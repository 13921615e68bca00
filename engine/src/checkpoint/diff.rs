//! Diff: which blobs two checkpoints do not have in common.

use super::Checkpoint;
use super::opened::{BlobInfo, Fetch};
use crate::blob::to_usize;
use crate::error::{Result, ResultExt};
use crate::format::manifest::BlobKind;

/// How much of a blob is compared at a time.
const WINDOW: u64 = 16 << 20;

/// What differs between two checkpoints, `a` and `b`, in the order of names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// Blobs that only `b` has.
    pub added: Vec<String>,
    /// Blobs that only `a` has.
    pub removed: Vec<String>,
    /// Blobs that both have and that are not the same.
    pub changed: Vec<Changed>,
}

impl Diff {
    /// Whether nothing differs.
    pub fn is_equal(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// A blob that is not the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// What is not the same.
    pub change: Change,
}

/// How a blob changed: the first of these that holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The dtype, or the type of opaque bytes, or tensor against bytes.
    DType {
        /// In `a`.
        a: String,
        /// In `b`.
        b: String,
    },
    /// The shape.
    Shape {
        /// In `a`.
        a: Vec<u64>,
        /// In `b`.
        b: Vec<u64>,
    },
    /// The bytes.
    Bytes {
        /// The first byte that differs; where one is longer, possibly its length.
        first: u64,
    },
}

impl Checkpoint {
    /// Compares with another checkpoint, byte by byte: equal checksums are no proof.
    pub fn diff(&self, other: &Self) -> Result<Diff> {
        let mut diff = Diff::default();
        let (left, right) = (self.blobs()?, other.blobs()?);
        let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Ok(diff),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(a), Some(b)) => a.name.cmp(b.name),
            };
            match order {
                std::cmp::Ordering::Less => diff.removed.extend(left.next().map(|blob| blob.name.to_owned())),
                std::cmp::Ordering::Greater => {
                    diff.added.extend(right.next().map(|blob| blob.name.to_owned()))
                }
                std::cmp::Ordering::Equal => {
                    if let (Some(a), Some(b)) = (left.next(), right.next())
                        && let Some(change) = self.compare(a, other, b)?
                    {
                        diff.changed.push(Changed { name: a.name.to_owned(), change });
                    }
                }
            }
        }
    }

    fn compare(&self, a: &BlobInfo<'_>, other: &Self, b: &BlobInfo<'_>) -> Result<Option<Change>> {
        let (type_a, type_b) = (type_of(a.kind), type_of(b.kind));
        if type_a != type_b {
            return Ok(Some(Change::DType { a: type_a, b: type_b }));
        }
        let (shape_a, shape_b) = (shape_of(a.kind), shape_of(b.kind));
        if shape_a != shape_b {
            return Ok(Some(Change::Shape { a: shape_a.to_vec(), b: shape_b.to_vec() }));
        }
        let (len_a, len_b) = (a.bytes, b.bytes);
        let common = len_a.min(len_b);
        let (mut bytes_a, mut bytes_b) = (Vec::new(), Vec::new());
        for start in (0..common).step_by(usize::try_from(WINDOW).unwrap_or(usize::MAX)) {
            let range = start..common.min(start + WINDOW);
            self.window(a, range.clone(), &mut bytes_a)?;
            other.window(b, range, &mut bytes_b)?;
            if let Some(at) = bytes_a.iter().zip(&bytes_b).position(|(a, b)| a != b) {
                return Ok(Some(Change::Bytes { first: start + at as u64 }));
            }
        }
        Ok((len_a != len_b).then_some(Change::Bytes { first: common }))
    }

    fn window(&self, blob: &BlobInfo<'_>, range: std::ops::Range<u64>, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.resize(to_usize(range.end - range.start)?, 0);
        self.fetch(vec![Fetch { storage: blob.storage, range, out: bytes }])
            .context(|| format!("cannot read db `{}`", self.label()))
    }
}

fn type_of(kind: &BlobKind) -> String {
    match kind {
        BlobKind::Tensor { dtype, .. } => dtype.to_string(),
        // Told apart from a dtype, whatever the type is called.
        BlobKind::Bytes { type_name } => format!("bytes `{type_name}`"),
    }
}

fn shape_of(kind: &BlobKind) -> &[u64] {
    match kind {
        BlobKind::Tensor { shape, .. } => shape,
        BlobKind::Bytes { .. } => &[],
    }
}
