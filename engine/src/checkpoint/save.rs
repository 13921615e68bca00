//! Save: plan, stage, publish, report.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::content::Content;
use super::naming::{DbName, guess_db_name};
use super::{Checkpoints, caffe2, native};
use crate::blob::{Blob, Workspace};
use crate::db::{Layout, Limits, Source};
use crate::error::{Error, Result, ResultExt};
use crate::format::manifest::DbId;

/// What a save did.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveReport {
    /// The db's name for people.
    pub db: String,
    /// The id of this save.
    pub id: DbId,
    /// How many blobs.
    pub blobs: u64,
    /// Their bytes; shared ones count once.
    pub bytes: u64,
    /// What their chunks take in the store.
    pub stored_bytes: u64,
    /// All that was put, manifest and padding too.
    pub bytes_written: u64,
    /// From the call to the commit.
    pub seconds: f64,
    /// In the caffe2 layout: what [`Checkpoint::records_crc32`](super::Checkpoint::records_crc32) gives of what was written.
    pub records_crc32: Option<u32>,
}

/// What a layout's writer did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) id: DbId,
    /// What the chunks take.
    pub(super) stored_bytes: u64,
    /// All values that were put.
    pub(super) bytes: u64,
    pub(super) records_crc32: Option<u32>,
}

pub(super) fn save(place: &Checkpoints, workspace: &Workspace, node: &str, epoch: u64) -> Result<SaveReport> {
    let source = place.source(node, epoch)?;
    let content = Content::of_workspace(workspace).context(|| format!("db `{}`", place.label(&source)))?;
    let name = DbName { epoch, node: node.to_owned() };
    write(place, &content, &source, &name, &place.options.metadata)
}

pub(super) fn save_blobs<'b>(
    place: &Checkpoints,
    blobs: impl Iterator<Item = (&'b str, &'b Blob)>,
    source: &Source,
) -> Result<SaveReport> {
    let content = Content::of_blobs(blobs).context(|| format!("db `{}`", place.label(source)))?;
    write(place, &content, source, &guess_db_name(source.name()), &place.options.metadata)
}

/// Writes blobs to `source`, as the checkpoint that `name` says, in the layout of the place.
pub(super) fn write(
    place: &Checkpoints,
    content: &Content<'_>,
    source: &Source,
    name: &DbName,
    metadata: &BTreeMap<String, String>,
) -> Result<SaveReport> {
    let started = Instant::now();
    let label = place.label(source);
    let bytes = content.bytes();
    place.options.observer.started(&label, bytes);
    let outcome = match place.layout() {
        Layout::Native => native::stage(place, content, source, name, metadata),
        Layout::Caffe2 => caffe2::stage(place, content, source),
    };
    place.options.observer.finished();
    let written = outcome.context(|| format!("cannot save db `{label}`"))?;
    let report = SaveReport {
        db: label,
        id: written.id,
        blobs: content.blobs.len() as u64,
        bytes,
        stored_bytes: written.stored_bytes,
        bytes_written: written.bytes,
        seconds: started.elapsed().as_secs_f64(),
        records_crc32: written.records_crc32,
    };
    tracing::info!(db = %report.db, blobs = report.blobs, bytes, seconds = report.seconds, "saved");
    Ok(report)
}

/// The budget is for what is encoded and for what the backend writes behind: half each.
pub(super) fn share(limits: Limits) -> Limits {
    Limits { memory: limits.memory / 2, ..limits }
}

/// The error of a backend that does not keep the contract.
pub(super) fn body_was_not_run() -> Error {
    Error::internal("backend committed without running the body")
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
