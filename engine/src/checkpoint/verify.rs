//! Verify: read everything, check everything, say what is damaged.

use std::ops::Range;

use super::Checkpoints;
use crate::db::Source;
use crate::error::{Error, ErrorKind, Result, ResultExt};

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
        Ok(checkpoint) => checkpoint.verify().context(|| format!("cannot verify db `{label}`")),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let damage = Damage { db: label, blob: None, range: None, reason: reason(&error) };
            Ok(VerifyReport { damage: vec![damage], ..VerifyReport::default() })
        }
        Err(error) => Err(error),
    }
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
