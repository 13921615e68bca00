//! Verify: read everything, check everything, say what is damaged.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::{Checkpoint, Checkpoints};
use crate::blob::{DType, Selection, to_usize};
use crate::db::{Read, Source};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::format::codec;
use crate::format::keys;
use crate::format::manifest::{BlobKind, Located};

/// What a verify found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifyReport {
    /// The blobs that the manifest lists; 0 if the manifest cannot be read.
    pub blobs: u64,
    /// The raw bytes that were found to be right.
    pub bytes: u64,
    /// What is wrong, by blob and range.
    pub damage: Vec<Damage>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_ok(&self) -> bool {
        self.damage.is_empty()
    }
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq)]
pub struct Damage {
    /// The db's name for people.
    pub db: String,
    /// The blob, or `None` if the db as a whole cannot be read.
    pub blob: Option<String>,
    /// The blob's raw bytes that are lost.
    pub range: Option<Range<u64>>,
    /// What was found.
    pub reason: String,
}

/// A chunk to check.
struct Check {
    storage: usize,
    located: Located,
}

pub(super) fn verify(place: &Checkpoints, source: &Source) -> Result<VerifyReport> {
    let label = place.label(source);
    match place.open_source(source.clone()) {
        Ok(checkpoint) => verify_open(&checkpoint).context(|| format!("cannot verify db `{label}`")),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let damage = Damage { db: label, blob: None, range: None, reason: reason(&error) };
            Ok(VerifyReport { damage: vec![damage], ..VerifyReport::default() })
        }
        Err(error) => Err(error),
    }
}

fn verify_open(checkpoint: &Checkpoint) -> Result<VerifyReport> {
    let manifest = checkpoint.manifest();
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
    let observer = &checkpoint.options().observer;
    observer.started(checkpoint.label(), manifest.bytes());
    let outcome = checkpoint.db().read(reads.collect(), checkpoint.limits(), &|index, stored| {
        let check = checks.get(index).ok_or_else(|| Error::internal("backend answers a read nobody made"))?;
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
    let names = if damaged.is_empty() { HashMap::new() } else { names_by_storage(checkpoint) };
    for (index, reason) in damaged {
        let Some(check) = checks.get(index) else { continue };
        damage.extend(names.get(&check.storage).into_iter().flatten().map(|&name| Damage {
            db: checkpoint.label().to_owned(),
            blob: Some(name.to_owned()),
            range: Some(check.located.raw.clone()),
            reason: reason.clone(),
        }));
    }
    verify_strings(checkpoint, &mut damage)?;
    Ok(VerifyReport { blobs: manifest.blobs.len() as u64, bytes, damage })
}

fn names_by_storage(checkpoint: &Checkpoint) -> HashMap<usize, Vec<&str>> {
    let mut names: HashMap<usize, Vec<&str>> = HashMap::new();
    for blob in &checkpoint.manifest().blobs {
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
fn verify_strings(checkpoint: &Checkpoint, damage: &mut Vec<Damage>) -> Result<()> {
    for blob in &checkpoint.manifest().blobs {
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

/// The error and what is below it in one line.
fn reason(error: &Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text.push_str(": ");
        text.push_str(&error.to_string());
        below = error.source();
    }
    text
}
