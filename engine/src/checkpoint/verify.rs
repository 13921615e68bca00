//! Verify: read everything, check everything, say what is damaged.

use std::ops::Range;

use super::{Checkpoint, Checkpoints};
use crate::db::{Layout, Source};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::format::manifest::id_text;

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

pub(super) fn verify(place: &Checkpoints, source: &Source) -> Result<VerifyReport> {
    let label = place.label(source);
    match place.open_source(source.clone()) {
        Ok(checkpoint) => {
            let mut report = checkpoint.verify().context(|| format!("cannot verify db `{label}`"))?;
            if report.is_ok() {
                report.damage.extend(differs_from_record(place, &checkpoint)?);
            }
            Ok(report)
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let damage = Damage { db: label, blob: None, range: None, reason: reason(&error) };
            Ok(VerifyReport { damage: vec![damage], ..VerifyReport::default() })
        }
        Err(error) => Err(error),
    }
}

/// Compares a db in the caffe2 layout, which has no checksums, with what its epoch record says of it.
fn differs_from_record(place: &Checkpoints, checkpoint: &Checkpoint) -> Result<Option<Damage>> {
    let about = checkpoint.about();
    let is_its_name =
        place.source(&about.node, about.epoch).is_ok_and(|source| source == *checkpoint.source());
    if about.layout == Layout::Native || !is_its_name {
        return Ok(None);
    }
    let record = match place.records()?.get(about.epoch) {
        // A damaged record is damage of the epoch, not of this db.
        Err(error) if error.kind() == ErrorKind::Corrupt => None,
        record => record?,
    };
    let id = id_text(checkpoint.id());
    let nodes = record.into_iter().flat_map(|record| record.nodes);
    let recorded = nodes.filter(|node| node.node == about.node && node.id == id).find_map(|node| node.crc32);
    let Some(recorded) = recorded else { return Ok(None) };
    let found = checkpoint.records_crc32()?.unwrap_or_default();
    let reason = format!(
        "checksum of its records differs from the epoch record expected=`{recorded:08x}` found=`{found:08x}`"
    );
    let damage = Damage { db: checkpoint.label().to_owned(), blob: None, range: None, reason };
    Ok((found != recorded).then_some(damage))
}

/// The error and what is below it in one line.
pub(super) fn reason(error: &Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text.push_str(": ");
        text.push_str(&error.to_string());
        below = error.source();
    }
    text
}
