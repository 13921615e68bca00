//! Puts the records of a db together to blobs, and says what does not fit.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use super::record::{Encoding, Opaque, Piece, Record, TensorPiece};
use super::wire::ReadAt;
use crate::blob::{DType, MAX_NAME_LEN, byte_len};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{BlobKind, DbId};

/// How much of a record's front and end goes into the id of a db.
const SAMPLE: u64 = 64;

/// The blobs of a db.
#[derive(Debug)]
pub struct Index {
    /// Made of the records: Caffe2 keeps none.
    pub id: DbId,
    /// The blobs, in ascending order of names.
    pub blobs: Vec<Entry>,
}

/// A blob of a db.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The lengths of its records' values, in bytes.
    pub stored_bytes: u64,
    /// What it is; or, of a damaged one, what is wrong.
    pub contents: Result<Contents, String>,
}

/// What a blob is and where its parts are.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// A tensor or bytes.
    pub kind: BlobKind,
    /// The length in memory, in bytes.
    pub bytes: u64,
    /// Its parts: of a tensor in the order of elements.
    pub parts: Vec<Part>,
}

/// A part of a blob: what one record holds of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The record.
    pub at: At,
    /// What it holds.
    pub piece: Piece,
}

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// Its key.
    pub key: Vec<u8>,
    /// Its number in the order of the db.
    pub number: u64,
    /// Whether other records have the same key, so that only the number tells it.
    pub is_repeated: bool,
}

/// Takes the records of a db one after the other.
#[derive(Debug, Default)]
pub struct Builder {
    blobs: BTreeMap<String, Found>,
    id: IdBuilder,
    number: u64,
    readable: u64,
}

#[derive(Debug, Default)]
struct Found {
    parts: Vec<Part>,
    stored_bytes: u64,
    damage: Option<String>,
}

impl Builder {
    /// Adds a record: reads its headers. A damaged one is noted for its blob; an error means that it could not be read.
    pub fn add(&mut self, key: &[u8], len: u64, read: &mut ReadAt<'_>) -> Result<()> {
        let at = At { key: key.to_owned(), number: self.number, is_repeated: false };
        self.number += 1;
        self.id.add(key, len, read)?;
        let text = std::str::from_utf8(key);
        let parsed = text
            .map_err(|_| Error::corrupt("key is not UTF-8"))
            .and_then(|key| Record::parse(key, len, read))
            .and_then(|record| check_name(&record.blob).map(|()| record));
        let (name, parsed) = match parsed {
            Ok(record) => (record.blob, Ok(record.piece)),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let name = text.map_or_else(
                    |_| key.escape_ascii().to_string(),
                    |key| super::keys::blob_name(key, "").to_owned(),
                );
                (name, Err(reason(&error)))
            }
            Err(error) => return Err(error),
        };
        let found = self.blobs.entry(name).or_default();
        found.stored_bytes += len;
        match parsed {
            Ok(piece) => {
                self.readable += 1;
                found.parts.push(Part { at, piece });
            }
            Err(reason) => {
                found.damage.get_or_insert(reason);
            }
        }
        Ok(())
    }

    /// Ends it. Fails with `Corrupt` if no record at all is one of Caffe2.
    pub fn finish(mut self) -> Result<Index> {
        if self.readable == 0 {
            let first = self.blobs.values().find_map(|found| found.damage.clone());
            let first =
                first.map_or_else(|| "it is empty".to_owned(), |reason| format!("its first {reason}"));
            return Err(Error::corrupt(format!(
                "db holds neither a manifest nor records of Caffe2: {first}"
            )));
        }
        mark_repeats(&mut self.blobs);
        let entry = |(name, found): (String, Found)| {
            let contents = match found.damage {
                Some(reason) => Err(reason),
                None => assemble(found.parts).map_err(|error| reason(&error)),
            };
            Entry { name, stored_bytes: found.stored_bytes, contents }
        };
        Ok(Index { id: self.id.finish(), blobs: self.blobs.into_iter().map(entry).collect() })
    }
}

impl Entry {
    /// What the blob is, or `Corrupt`.
    pub fn contents(&self) -> Result<&Contents> {
        self.contents
            .as_ref()
            .map_err(|reason| Error::corrupt(reason.clone()).context(format!("blob `{}`", self.name)))
    }
}

/// The id of a db, of its records in any order.
///
/// What tells a record from another without reading all of it: key, length, and both ends, where the headers are and the first and last
/// elements of a tensor. The digests of these are added up, so that the same records give the same id in whatever order a db keeps
/// them, and nothing of them needs to be remembered.
#[derive(Debug, Default)]
pub struct IdBuilder {
    sums: [u64; 4],
}

impl IdBuilder {
    /// Adds a record.
    pub fn add(&mut self, key: &[u8], len: u64, read: &mut ReadAt<'_>) -> Result<()> {
        let mut hasher = Sha256::new();
        hasher.update((key.len() as u64).to_le_bytes());
        hasher.update(key);
        hasher.update(len.to_le_bytes());
        let mut sample = [0; 2 * SAMPLE as usize];
        let ends = if len <= 2 * SAMPLE { [0..len, len..len] } else { [0..SAMPLE, len - SAMPLE..len] };
        for range in ends {
            let wanted = usize::try_from(range.end - range.start).unwrap_or(0);
            if let Some(into) = sample.get_mut(..wanted).filter(|into| !into.is_empty()) {
                read(range.start, into)?;
                hasher.update(into);
            }
        }
        let digest: [u8; 32] = hasher.finalize().into();
        for (sum, part) in self.sums.iter_mut().zip(digest.chunks_exact(8)) {
            *sum = sum.wrapping_add(part.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        }
        Ok(())
    }

    /// The id.
    pub fn finish(&self) -> DbId {
        let sums = self.sums.map(u64::to_le_bytes).concat();
        let digest: [u8; 32] = Sha256::digest(sums).into();
        digest.first_chunk().copied().unwrap_or_default()
    }
}

/// Marks the records whose key others have too.
fn mark_repeats(blobs: &mut BTreeMap<String, Found>) {
    let mut keys: Vec<&[u8]> =
        blobs.values().flat_map(|found| &found.parts).map(|part| part.at.key.as_slice()).collect();
    keys.sort_unstable();
    let pairs = keys.iter().zip(keys.iter().skip(1));
    let repeated: BTreeSet<Vec<u8>> = pairs.filter(|(a, b)| a == b).map(|(key, _)| key.to_vec()).collect();
    if repeated.is_empty() {
        return;
    }
    for part in blobs.values_mut().flat_map(|found| &mut found.parts) {
        part.at.is_repeated = repeated.contains(&part.at.key);
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.len() > MAX_NAME_LEN {
        return Err(Error::corrupt(format!("name of a blob is longer than {MAX_NAME_LEN} bytes")));
    }
    Ok(())
}

/// The error and what is below it in one line.
fn reason(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(below) => format!("{error}: {below}"),
        None => error.to_string(),
    }
}

fn assemble(parts: Vec<Part>) -> Result<Contents> {
    let mut tensors = Vec::new();
    let mut opaque = Vec::new();
    for Part { at, piece } in parts {
        match piece {
            Piece::Tensor(piece) => tensors.push((at, piece)),
            Piece::Opaque(piece) => opaque.push((at, piece)),
        }
    }
    match (tensors.is_empty(), opaque.is_empty()) {
        (false, true) => assemble_tensor(tensors),
        (true, false) => assemble_opaque(opaque),
        _ => Err(Error::corrupt("blob is a tensor in one record and something else in another")),
    }
}

fn assemble_tensor(mut pieces: Vec<(At, TensorPiece)>) -> Result<Contents> {
    let (dtype, shape) = match pieces.first() {
        Some((_, first)) => (first.dtype, first.shape.clone()),
        None => return Err(Error::internal("tensor of no pieces")),
    };
    for (_, piece) in &pieces {
        if piece.dtype != dtype || piece.shape != shape {
            return Err(Error::corrupt(format!(
                "chunks of a tensor contradict each other: `{dtype}` {shape:?} and `{}` {:?}",
                piece.dtype, piece.shape
            )));
        }
    }
    pieces.sort_by_key(|(_, piece)| (piece.elements.start, piece.elements.end));
    let count = crate::blob::element_count(&shape)?;
    let mut end = 0;
    for (_, piece) in &pieces {
        let range = &piece.elements;
        if range.start < end {
            return Err(Error::corrupt(format!(
                "chunks of a tensor overlap elements=`{}..{}`",
                range.start,
                end.min(range.end)
            )));
        }
        if range.start > end {
            return Err(missing(end, range.start));
        }
        end = range.end;
    }
    if end < count {
        return Err(missing(end, count));
    }
    if count == 0 && pieces.len() > 1 {
        return Err(Error::corrupt("an empty tensor is there more than once"));
    }
    let bytes = match byte_len(dtype, &shape).map_err(|error| error.with_kind(ErrorKind::Corrupt))? {
        Some(bytes) => bytes,
        None => string_bytes(count, &pieces)?,
    };
    let parts = pieces.into_iter().map(|(at, piece)| Part { at, piece: Piece::Tensor(piece) }).collect();
    Ok(Contents { kind: BlobKind::Tensor { dtype, shape }, bytes, parts })
}

fn missing(start: u64, end: u64) -> Error {
    Error::corrupt(format!("a chunk of the tensor is missing elements=`{start}..{end}`"))
}

/// The bytes of a string tensor in memory: the offsets, and what they point to.
fn string_bytes(count: u64, pieces: &[(At, TensorPiece)]) -> Result<u64> {
    let runs = pieces.iter().flat_map(|(_, piece)| &piece.runs);
    let bytes = runs.map(|run| run.bytes).try_fold(0u64, u64::checked_add);
    let table = count.checked_add(1).and_then(|entries| entries.checked_mul(8));
    let total = bytes.zip(table).and_then(|(bytes, table)| bytes.checked_add(table));
    total.ok_or_else(|| Error::corrupt("string tensor is too large"))
}

fn assemble_opaque(mut pieces: Vec<(At, Opaque)>) -> Result<Contents> {
    pieces.sort_by_key(|(_, piece)| piece.chunk);
    let Some((_, first)) = pieces.first() else {
        return Err(Error::internal("blob of no pieces"));
    };
    let type_name = first.type_name.clone();
    let count = first.chunk.map_or(1, |(_, count)| count);
    let alike = pieces
        .iter()
        .all(|(_, piece)| piece.type_name == type_name && piece.chunk.map_or(1, |(_, count)| count) == count);
    if !alike {
        return Err(Error::corrupt("records of a blob contradict each other in type or number of chunks"));
    }
    let numbered =
        (0..).zip(&pieces).all(|(number, (_, piece))| piece.chunk.map_or(0, |(id, _)| id) == number);
    if !numbered || pieces.len() as u64 != u64::from(count) {
        return Err(Error::corrupt(format!(
            "blob is there more than once, or a chunk of it is missing records=`{}` chunks=`{count}`",
            pieces.len()
        )));
    }
    let bytes = pieces.iter().map(|(_, piece)| piece.data.end - piece.data.start).sum();
    let parts = pieces.into_iter().map(|(at, piece)| Part { at, piece: Piece::Opaque(piece) }).collect();
    Ok(Contents { kind: BlobKind::Bytes { type_name }, bytes, parts })
}

impl TensorPiece {
    /// Whether its elements lie in the record as in memory, in one run: then a read goes straight to its place.
    pub fn is_direct(&self) -> bool {
        self.encoding == Encoding::Plain
            && self.dtype != DType::Bool
            && matches!(self.runs.as_slice(), [run] if run.form == super::wire::Form::Packed)
    }
}
