//! Verify: every chunk against its checksum.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Native;
use crate::blob::{DType, Selection, to_usize};
use crate::checkpoint::opened::Opened;
use crate::checkpoint::verify::reason;
use crate::checkpoint::{Checkpoint, Damage, VerifyReport};
use crate::db::Read;
use crate::error::{Error, ErrorKind, Result};
use crate::format::codec;
use crate::format::keys;
use crate::format::manifest::{BlobKind, Located, Manifest};

/// A chunk to check.
struct Check {
    storage: usize,
    located: Located,
}

impl Native {
    /// Reads and checks every chunk, and the offsets of string tensors.
    pub(in crate::checkpoint) fn verify(
        &self,
        checkpoint: &Checkpoint,
        opened: &Opened,
    ) -> Result<VerifyReport> {
        let manifest = self.manifest();
        let checks: Vec<Check> = (manifest.storages.iter().enumerate())
            .flat_map(|(storage, entry)| entry.located().map(move |located| Check { storage, located }))
            .collect();
        let keys: Vec<_> = checks.iter().map(|check| keys::record_key(check.located.record)).collect();
        let reads = (keys.iter().zip(&checks)).map(|(key, check)| Read {
            key,
            range: check.located.stored.clone(),
            into: None,
        });
        let found = Mutex::new((0, Vec::new()));
        let observer = &opened.options.observer;
        observer.started(checkpoint.label(), manifest.bytes());
        let outcome = opened.db.read(reads.collect(), &opened.options.limits, &|index, stored| {
            let check =
                checks.get(index).ok_or_else(|| Error::internal("backend answers a read nobody made"))?;
            let raw = check.located.raw.end - check.located.raw.start;
            let outcome = stored.and_then(|stored| check_chunk(stored, &check.located));
            observer.advanced(raw);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Ok(()) => found.0 += raw,
                // Bytes that cannot be read now are not damaged for that: the caller must know that nothing was decided.
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                Err(error) => found.1.push((index, reason(&error))),
            }
            Ok(())
        });
        observer.finished();
        outcome?;
        let (bytes, mut damaged) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        damaged.sort_unstable();
        let mut damage = Vec::new();
        let names = if damaged.is_empty() { HashMap::new() } else { names_by_storage(manifest) };
        for (index, reason) in damaged {
            let Some(check) = checks.get(index) else { continue };
            damage.extend(names.get(&check.storage).into_iter().flatten().map(|&name| Damage {
                db: checkpoint.label().to_owned(),
                blob: Some(name.to_owned()),
                range: Some(check.located.raw.clone()),
                reason: reason.clone(),
            }));
        }
        verify_strings(manifest, checkpoint, &mut damage)?;
        Ok(VerifyReport { blobs: manifest.blobs.len() as u64, bytes, damage, structure_only: false })
    }
}

fn names_by_storage(manifest: &Manifest) -> HashMap<usize, Vec<&str>> {
    let mut names: HashMap<usize, Vec<&str>> = HashMap::new();
    for blob in &manifest.blobs {
        names.entry(blob.storage).or_default().push(&blob.name);
    }
    names
}

fn check_chunk(stored: &[u8], located: &Located) -> Result<()> {
    codec::check(stored, located.chunk.crc32)?;
    let raw_len = to_usize(located.raw.end - located.raw.start)?;
    codec::decode(located.chunk.codec, stored, raw_len).map(drop)
}

/// String tensors hold offsets, which only make sense as a whole.
fn verify_strings(manifest: &Manifest, checkpoint: &Checkpoint, damage: &mut Vec<Damage>) -> Result<()> {
    for blob in &manifest.blobs {
        let is_strings = matches!(blob.kind, BlobKind::Tensor { dtype: DType::String, .. });
        let known = damage.iter().any(|known| known.blob.as_ref() == Some(&blob.name));
        if !is_strings || known {
            continue;
        }
        match checkpoint.load(&Selection::names([&blob.name])) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => damage.push(Damage {
                db: checkpoint.label().to_owned(),
                blob: Some(blob.name.clone()),
                range: None,
                reason: reason(&error),
            }),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
