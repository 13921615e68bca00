//! Reading: a read per chunk, checked as soon as it is there.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::blob::to_usize;
use crate::checkpoint::opened::{About, BlobInfo, Fetch, Opened};
use crate::db::{Layout, Read};
use crate::error::{Error, Result, ResultExt};
use crate::format::codec::{self, Codec};
use crate::format::keys;
use crate::format::manifest::{Located, Manifest};
use crate::observer::Observer;

/// The manifest of an open db.
#[derive(Debug)]
pub(in crate::checkpoint) struct Native {
    manifest: Manifest,
}

/// What one read of a fetch is for.
struct Part<'a> {
    storage: usize,
    located: Located,
    /// Where the decoded bytes go, unless the read went straight there.
    out: Option<Mutex<&'a mut [u8]>>,
    /// The bytes of the decoded chunk that are wanted.
    within: Range<usize>,
}

impl Native {
    /// Reads and checks the manifest.
    pub(in crate::checkpoint) fn open(record: &[u8]) -> Result<(Self, About)> {
        let manifest = Manifest::decode(record)?;
        let about = About {
            layout: Layout::Native,
            id: manifest.id,
            node: manifest.node.clone(),
            epoch: manifest.epoch,
            created_unix_ms: Some(manifest.created_unix_ms),
            writer: manifest.writer.clone(),
            metadata: manifest.metadata.clone(),
        };
        Ok((Self { manifest }, about))
    }

    /// What the db holds.
    pub(in crate::checkpoint) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A blob by its place in the order of names.
    pub(in crate::checkpoint) fn described(&self, index: usize) -> Result<BlobInfo<'_>> {
        let blob = self.manifest.blobs.get(index).ok_or_else(|| Error::internal("no such blob"))?;
        let storage = self.manifest.storage(blob)?;
        Ok(BlobInfo {
            name: &blob.name,
            kind: &blob.kind,
            bytes: storage.bytes,
            stored_bytes: storage.stored_bytes(),
            codec: storage.codec(),
            chunks: storage.chunks.len() as u64,
            storage: blob.storage,
        })
    }

    /// Reads ranges of storages, checking each chunk that is touched in the same read.
    pub(in crate::checkpoint) fn fetch(
        &self,
        opened: &Opened,
        fetches: Vec<Fetch<'_>>,
        observer: &dyn Observer,
    ) -> Result<()> {
        let mut parts = Vec::new();
        let mut direct = Vec::new();
        for fetch in fetches {
            self.plan_fetch(fetch, &mut parts, &mut direct)?;
        }
        let keys: Vec<_> = parts.iter().map(|part| keys::record_key(part.located.record)).collect();
        let reads = keys.iter().zip(&parts).zip(direct).map(|((key, part), into)| Read {
            key,
            range: part.located.stored.clone(),
            into,
        });
        opened.db.read(reads.collect(), &opened.options.limits, &|index, stored| {
            let part =
                parts.get(index).ok_or_else(|| Error::internal("backend answers a read nobody made"))?;
            take(part, stored).context(|| self.describe(part.storage, &part.located))?;
            observer.advanced(part.within.len() as u64);
            Ok(())
        })
    }

    /// Cuts a fetch into one read per chunk. A chunk that is stored raw and wanted whole is read straight to its place.
    fn plan_fetch<'a>(
        &self,
        fetch: Fetch<'a>,
        parts: &mut Vec<Part<'a>>,
        direct: &mut Vec<Option<&'a mut [u8]>>,
    ) -> Result<()> {
        let Fetch { storage, range, out } = fetch;
        let entry = self.manifest.storages.get(storage).ok_or_else(|| Error::internal("no such storage"))?;
        let mut left = out;
        for located in entry.located() {
            let start = located.raw.start.max(range.start);
            let end = located.raw.end.min(range.end);
            if start >= end {
                continue;
            }
            let split = left.split_at_mut_checked(to_usize(end - start)?);
            let (piece, rest) = split.ok_or_else(|| Error::internal("fetch is longer than its buffer"))?;
            left = rest;
            let within = to_usize(start - located.raw.start)?..to_usize(end - located.raw.start)?;
            let whole = start == located.raw.start && end == located.raw.end;
            let (into, out) = if whole && located.chunk.codec == Codec::Raw {
                (Some(piece), None)
            } else {
                (None, Some(Mutex::new(piece)))
            };
            direct.push(into);
            parts.push(Part { storage, located, out, within });
        }
        Ok(())
    }

    /// Which bytes of which blob a chunk is, for errors.
    pub(super) fn describe(&self, storage: usize, located: &Located) -> String {
        let name = self.manifest.blobs.iter().find(|blob| blob.storage == storage);
        let name = name.map_or("", |blob| blob.name.as_str());
        format!("blob `{name}` bytes {}..{}", located.raw.start, located.raw.end)
    }
}

/// Checks what was read for a part and brings it to its place.
fn take(part: &Part<'_>, stored: Result<&[u8]>) -> Result<()> {
    let stored = stored?;
    codec::check(stored, part.located.chunk.crc32)?;
    let Some(out) = &part.out else {
        return Ok(());
    };
    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
    let raw_len = to_usize(part.located.raw.end - part.located.raw.start)?;
    if part.within == (0..raw_len) {
        return codec::decode_into(part.located.chunk.codec, stored, &mut out);
    }
    let raw = codec::decode(part.located.chunk.codec, stored, raw_len)?;
    let wanted = raw.get(part.within.clone()).ok_or_else(|| Error::internal("part outside its chunk"))?;
    out.copy_from_slice(wanted);
    Ok(())
}
