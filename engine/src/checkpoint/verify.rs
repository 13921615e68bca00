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
    /// Whether only the structure could be checked, beside what the store checks by itself: a db in the caffe2 layout of which no epoch
    /// record keeps a checksum.
    pub structure_only: bool,
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
            if report.is_ok() && checkpoint.about().layout == Layout::Caffe2 {
                let recorded = recorded_crc32(place, &checkpoint)?;
                report.structure_only = recorded.is_none();
                report
                    .damage
                    .extend(recorded.map(|crc32| differs(&checkpoint, crc32)).transpose()?.flatten());
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

/// What the epoch record of a db in the caffe2 layout, which has no checksums, says of its records.
fn recorded_crc32(place: &Checkpoints, checkpoint: &Checkpoint) -> Result<Option<u32>> {
    let about = checkpoint.about();
    if !place.source(&about.node, about.epoch).is_ok_and(|source| source == *checkpoint.source()) {
        return Ok(None);
    }
    let record = match place.records()?.get(about.epoch) {
        // A damaged record is damage of the epoch, not of this db.
        Err(error) if error.kind() == ErrorKind::Corrupt => None,
        record => record?,
    };
    let id = id_text(checkpoint.id());
    let nodes = record.into_iter().flat_map(|record| record.nodes);
    Ok(nodes.filter(|node| node.node == about.node && node.id == id).find_map(|node| node.crc32))
}

fn differs(checkpoint: &Checkpoint, expected: u32) -> Result<Option<Damage>> {
    let found = checkpoint.records_crc32()?.unwrap_or_default();
    let reason = format!(
        "checksum of its records differs from the epoch record expected=`{expected:08x}` found=`{found:08x}`"
    );
    let damage = Damage { db: checkpoint.label().to_owned(), blob: None, range: None, reason };
    Ok((found != expected).then_some(damage))
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
