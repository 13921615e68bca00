//! Reading: the headers of all records on opening; then elements, straight to their place where they lie as in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::blob::{DType, to_usize};
use crate::checkpoint::naming::guess_db_name;
use crate::checkpoint::opened::{About, BlobInfo, Fetch, Opened};
use crate::db::{Db, Layout, Limits, Read};
use crate::error::{Error, Result, ResultExt};
use crate::format::caffe2::index::{At, Builder, Contents, Entry, Index, Part};
use crate::format::caffe2::payload;
use crate::format::caffe2::record::{Piece, TensorPiece};
use crate::format::codec::Codec;
use crate::format::keys;
use crate::format::manifest::BlobKind;
use crate::observer::Observer;
use crate::pipeline;

/// The blobs of an open db.
#[derive(Debug)]
pub(in crate::checkpoint) struct Caffe2 {
    index: Index,
}

/// Elements that lie in the record as in memory.
struct Direct<'a> {
    at: &'a At,
    range: Range<u64>,
    out: &'a mut [u8],
    blob: &'a Entry,
}

/// A piece that must be decoded.
struct Decode<'a> {
    at: &'a At,
    piece: &'a TensorPiece,
    /// The bytes of the decoded piece that are wanted.
    within: Range<usize>,
    out: Mutex<&'a mut [u8]>,
    blob: &'a Entry,
}

/// How the bytes of a fetch are found.
#[derive(Default)]
struct Plan<'a> {
    direct: Vec<Direct<'a>>,
    decode: Vec<Decode<'a>>,
    strings: Vec<(&'a Entry, Fetch<'a>)>,
}

impl Caffe2 {
    /// Reads the headers of all records.
    pub(in crate::checkpoint) fn open(opened: &Opened) -> Result<(Self, About)> {
        let mut cursor = opened.db.cursor()?;
        if cursor.key() == Some(keys::record_key(0).as_slice()) {
            return Err(Error::corrupt(
                "db has no manifest: it was not written to its end, or its index is damaged",
            ));
        }
        let mut builder = Builder::default();
        while let Some(key) = cursor.key() {
            let key = key.to_owned();
            let len = cursor.value_len()?;
            builder.add(&key, len, &mut |start, into| cursor.read_at(start, into))?;
            cursor.next()?;
        }
        let index = builder.finish()?;
        let name = guess_db_name(opened.source.name());
        let about = About {
            layout: Layout::Caffe2,
            id: index.id,
            node: name.node,
            epoch: name.epoch,
            created_unix_ms: None,
            writer: "Caffe2 or compatible".to_owned(),
            metadata: BTreeMap::new(),
        };
        Ok((Self { index }, about))
    }

    pub(in crate::checkpoint) fn blobs(&self) -> &[Entry] {
        &self.index.blobs
    }

    /// The sum of all blobs' bytes, as far as they are known.
    pub(in crate::checkpoint) fn bytes(&self) -> u64 {
        self.blobs()
            .iter()
            .filter_map(|blob| blob.contents.as_ref().ok())
            .map(|contents| contents.bytes)
            .sum()
    }

    /// A blob by its place in the order of names.
    pub(in crate::checkpoint) fn described(&self, index: usize) -> Result<BlobInfo<'_>> {
        let blob = self.blob(index)?;
        let contents = blob.contents()?;
        Ok(BlobInfo {
            name: &blob.name,
            kind: &contents.kind,
            bytes: contents.bytes,
            stored_bytes: blob.stored_bytes,
            codec: Codec::Raw,
            chunks: contents.parts.len() as u64,
            storage: index,
        })
    }

    fn blob(&self, index: usize) -> Result<&Entry> {
        self.blobs().get(index).ok_or_else(|| Error::internal("no such blob"))
    }

    /// Reads ranges of blobs.
    pub(in crate::checkpoint) fn fetch(
        &self,
        opened: &Opened,
        fetches: Vec<Fetch<'_>>,
        observer: &dyn Observer,
    ) -> Result<()> {
        let mut plan = Plan::default();
        for fetch in fetches {
            let blob = self.blob(fetch.storage)?;
            plan.add(blob, blob.contents()?, fetch)?;
        }
        let limits = opened.options.limits;
        read_direct(&*opened.db, plan.direct, &limits, observer)?;
        pipeline::ordered(
            &plan.decode,
            limits,
            Decode::cost,
            |decode| decode.run(&*opened.db).context(|| describe(decode.blob, decode.piece)),
            |index, ()| {
                let bytes = plan.decode.get(index).map(|decode| decode.within.len());
                observer.advanced(bytes.unwrap_or_default() as u64);
                Ok(())
            },
        )?;
        for (blob, fetch) in plan.strings {
            let bytes = fetch.out.len() as u64;
            read_strings(&*opened.db, blob.contents()?, fetch).context(|| format!("blob `{}`", blob.name))?;
            observer.advanced(bytes);
        }
        Ok(())
    }
}

impl<'a> Plan<'a> {
    fn add(&mut self, blob: &'a Entry, contents: &'a Contents, fetch: Fetch<'a>) -> Result<()> {
        if matches!(contents.kind, BlobKind::Tensor { dtype: DType::String, .. }) {
            self.strings.push((blob, fetch));
            return Ok(());
        }
        let mut left = fetch.out;
        let mut begin = 0;
        for part in &contents.parts {
            let bytes = bytes_of(part)?;
            let (start, end) = (fetch.range.start.max(begin), fetch.range.end.min(begin + bytes));
            let within = start.saturating_sub(begin)..end.saturating_sub(begin);
            begin += bytes;
            if start >= end {
                continue;
            }
            let split = left.split_at_mut_checked(to_usize(end - start)?);
            let (out, rest) = split.ok_or_else(|| Error::internal("fetch is longer than its buffer"))?;
            left = rest;
            let at = &part.at;
            let first = match &part.piece {
                Piece::Opaque(piece) => piece.data.start,
                Piece::Tensor(piece) if piece.is_direct() => {
                    piece.runs.first().map(|run| run.range.start).unwrap_or_default()
                }
                Piece::Tensor(piece) => {
                    let within = to_usize(within.start)?..to_usize(within.end)?;
                    self.decode.push(Decode { at, piece, within, out: Mutex::new(out), blob });
                    continue;
                }
            };
            let range = first + within.start..first + within.end;
            self.direct.push(Direct { at, range, out, blob });
        }
        Ok(())
    }
}

impl Decode<'_> {
    /// The memory that it takes over the outcome.
    fn cost(&self) -> usize {
        let encoded: u64 = self.piece.runs.iter().map(|run| run.range.end - run.range.start).sum();
        let encoded = usize::try_from(encoded).unwrap_or(usize::MAX).min(payload::WINDOW);
        encoded.saturating_add(self.bytes().unwrap_or_default())
    }

    fn bytes(&self) -> Result<usize> {
        let size = self.piece.dtype.size().unwrap_or_default() as u64;
        to_usize((self.piece.elements.end - self.piece.elements.start) * size)
    }

    fn run(&self, db: &dyn Db) -> Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = |start: u64, into: &mut [u8]| read_record(db, self.at, start, into);
        let bytes = self.bytes()?;
        if self.within == (0..bytes) {
            return payload::fill(self.piece, &mut read, &mut out);
        }
        let mut whole = crate::blob::Buffer::zeroed(bytes)?;
        payload::fill(self.piece, &mut read, whole.as_mut()?)?;
        out.copy_from_slice(whole.get(self.within.clone()).unwrap_or_default());
        Ok(())
    }
}

/// The bytes in memory of a part that is not of strings.
pub(super) fn bytes_of(part: &Part) -> Result<u64> {
    match &part.piece {
        Piece::Opaque(piece) => Ok(piece.data.end - piece.data.start),
        Piece::Tensor(piece) => {
            let size = piece.dtype.size().ok_or_else(|| Error::internal("string has no size"))? as u64;
            Ok((piece.elements.end - piece.elements.start) * size)
        }
    }
}

pub(super) fn describe(blob: &Entry, piece: &TensorPiece) -> String {
    format!("blob `{}` elements {}..{}", blob.name, piece.elements.start, piece.elements.end)
}

fn read_direct(db: &dyn Db, direct: Vec<Direct<'_>>, limits: &Limits, observer: &dyn Observer) -> Result<()> {
    let (repeated, direct): (Vec<_>, Vec<_>) = direct.into_iter().partition(|read| read.at.is_repeated);
    for Direct { at, range, out, blob } in repeated {
        read_record(db, at, range.start, out).context(|| format!("blob `{}`", blob.name))?;
        observer.advanced(out.len() as u64);
    }
    let blobs: Vec<&Entry> = direct.iter().map(|read| read.blob).collect();
    let reads =
        direct.into_iter().map(|Direct { at, range, out, .. }| Read { key: &at.key, range, into: Some(out) });
    db.read(reads.collect(), limits, &|index, outcome| {
        let name =
            || format!("blob `{}`", blobs.get(index).map(|blob| blob.name.as_str()).unwrap_or_default());
        observer.advanced(outcome.context(name)?.len() as u64);
        Ok(())
    })
}

/// Reads bytes of a record.
pub(super) fn read_record(db: &dyn Db, at: &At, start: u64, into: &mut [u8]) -> Result<()> {
    if at.is_repeated {
        let mut cursor = db.cursor()?;
        for _ in 0..at.number {
            cursor.next()?;
        }
        return cursor.read_at(start, into);
    }
    let range = start..start + into.len() as u64;
    let one = Limits { threads: 1, memory: 0 };
    db.read(vec![Read { key: &at.key, range, into: Some(into) }], &one, &|_, outcome| outcome.map(drop))
}

/// Puts strings together: the offsets, then the bytes, as [`Tensor`](crate::blob::Tensor) has them.
fn read_strings(db: &dyn Db, contents: &Contents, fetch: Fetch<'_>) -> Result<()> {
    let whole = 0..contents.bytes;
    if fetch.range != whole {
        let mut bytes = crate::blob::Buffer::zeroed(to_usize(contents.bytes)?)?;
        read_strings(db, contents, Fetch { storage: fetch.storage, range: whole, out: bytes.as_mut()? })?;
        let wanted = to_usize(fetch.range.start)?..to_usize(fetch.range.end)?;
        let wanted = bytes.get(wanted).ok_or_else(|| Error::internal("range outside a blob"))?;
        fetch.out.copy_from_slice(wanted);
        return Ok(());
    }
    let BlobKind::Tensor { shape, .. } = &contents.kind else {
        return Err(Error::internal("strings of no tensor"));
    };
    let table = to_usize((crate::blob::element_count(shape)? + 1) * 8)?;
    let split = fetch.out.split_at_mut_checked(table);
    let (offsets, bytes) = split.ok_or_else(|| Error::internal("string tensor without room for offsets"))?;
    let mut offsets = offsets.chunks_exact_mut(8);
    let mut end = 0;
    // The first offset is 0, and the memory is zeroed; still it is written.
    let mut note = |end: usize| match offsets.next() {
        Some(place) => {
            place.copy_from_slice(&(end as u64).to_le_bytes());
            Ok(())
        }
        None => Err(Error::corrupt("string tensor has too many strings")),
    };
    note(0)?;
    for part in &contents.parts {
        let Piece::Tensor(piece) = &part.piece else { continue };
        let mut read = |start: u64, into: &mut [u8]| read_record(db, &part.at, start, into);
        payload::each_string(piece, &mut read, &mut |string| {
            let place = bytes.get_mut(end..end + string.len());
            place
                .ok_or_else(|| Error::corrupt("string tensor is longer than its records say"))?
                .copy_from_slice(string);
            end += string.len();
            note(end)
        })?;
    }
    if end == bytes.len() {
        Ok(())
    } else {
        Err(Error::corrupt("string tensor is shorter than its records say"))
    }
}
