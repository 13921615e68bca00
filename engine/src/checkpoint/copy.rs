//! Copy: from one store to another, and from one layout to another.
//!
//! Without a change of layout records are copied as they are stored, nothing is decoded or encoded again, and the copy keeps its
//! id: it is the same save. So a `files` db and its copy in an object store hold the same bytes. A change of layout writes the blobs
//! anew, streaming, and compares the outcome with the original before it counts as copied.

use std::time::Instant;

use super::content::Content;
use super::naming::DbName;
use super::{Checkpoint, Checkpoints, caffe2, native, save};
use crate::db::{Layout, Limits, Source};
use crate::error::{Error, Result, ResultExt};

/// Whether a copy had something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// It was copied.
    Copied,
    /// It was there already, whole and of the same save.
    Present,
}

/// What a copy did.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// The copy's name for people.
    pub db: String,
    /// Whether anything was written.
    pub outcome: CopyOutcome,
    /// How many blobs it holds.
    pub blobs: u64,
    /// Their raw bytes.
    pub bytes: u64,
    /// What was put.
    pub bytes_written: u64,
    /// From the call to the commit.
    pub seconds: f64,
}

pub(super) fn copy(
    from: &Checkpoints,
    source: Source,
    to: &Checkpoints,
    target: Source,
) -> Result<CopyReport> {
    let started = Instant::now();
    let db = to.label(&target);
    let checkpoint = from.open_source(source)?;
    let mut report = CopyReport {
        db,
        outcome: CopyOutcome::Present,
        blobs: checkpoint.blob_count() as u64,
        bytes: checkpoint.bytes(),
        bytes_written: 0,
        seconds: 0.0,
    };
    let layout = to.layout_of_copy(checkpoint.about().layout);
    if !is_present(&checkpoint, to, &target, layout)? {
        report.bytes_written = transfer(&checkpoint, from.request_limits(), to, &target, layout)
            .context(|| format!("cannot copy db `{}` to `{}`", checkpoint.label(), report.db))?;
        report.outcome = CopyOutcome::Copied;
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Whether the target holds the same save, and all of it.
fn is_present(checkpoint: &Checkpoint, to: &Checkpoints, target: &Source, layout: Layout) -> Result<bool> {
    if !to.driver().exists(target).context(|| format!("db `{}`", to.label(target)))? {
        return Ok(false);
    }
    // What is there and cannot be read is no copy; the write that follows replaces it, or says why it cannot.
    let Ok(there) = to.open_source(target.clone()) else { return Ok(false) };
    if there.about().layout != layout {
        return Ok(false);
    }
    if layout == Layout::Native && checkpoint.about().layout == Layout::Native {
        return Ok(there.id() == checkpoint.id() && to.verify_source(target)?.is_ok());
    }
    // Caffe2 has no id of a save, and no checksums that stand for all of it.
    Ok(checkpoint.diff(&there).is_ok_and(|diff| diff.is_equal()))
}

fn transfer(
    checkpoint: &Checkpoint,
    limits: Limits,
    to: &Checkpoints,
    target: &Source,
    layout: Layout,
) -> Result<u64> {
    let bytes = match (checkpoint.native(), layout) {
        (Some((native, opened)), Layout::Native) => {
            return native::copy_records(native, opened, limits, to, target);
        }
        (None, Layout::Caffe2) => caffe2::copy_records(checkpoint, to, target)?,
        (_, layout) => {
            let content = Content::of_checkpoint(checkpoint)?;
            let about = checkpoint.about();
            let name = DbName { epoch: about.epoch, node: about.node.clone() };
            let to = to.clone().with_layout(layout);
            save::write(&to, &content, target, &name, &about.metadata)?.bytes_written
        }
    };
    // Caffe2's records have no checksums to compare on the way: what was written is read back.
    let diff = checkpoint.diff(&to.open_source(target.clone())?)?;
    if diff.is_equal() { Ok(bytes) } else { Err(Error::internal(format!("the copy differs: {diff:?}"))) }
}
