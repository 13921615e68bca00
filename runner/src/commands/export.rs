//! `ckpt export`: blobs of a checkpoint into a file.

use std::time::Instant;

use ckpt_engine::ResultExt;
use ckpt_engine::blob::Selection;

use super::{Answer, Context, Failure, Outcome};
use crate::cli::ExportArgs;
use crate::formats;
use crate::output::size;

pub(super) fn run(context: &Context, args: &ExportArgs) -> Outcome {
    let started = Instant::now();
    formats::check_writable_extension(&args.out).map_err(Failure::Usage)?;
    let store = context.store(&args.store, args.which.epoch.is_some() || args.which.node.is_some())?;
    let checkpoint = store.open_one(args.which.epoch, args.which.node.as_deref())?;
    let workspace = checkpoint.load(&selection(&args.blobs))?;
    let bytes: u64 = workspace.iter().map(|(_, blob)| blob.data().len() as u64).sum();
    let bytes_written = formats::write(&args.out, &workspace, &checkpoint.about().metadata)
        .context(|| format!("cannot export to file `{}`", args.out.display()))?;
    let bytes_read = checkpoint.db().bytes_read();
    let seconds = started.elapsed().as_secs_f64();
    let document = serde_json::json!({
        "db": checkpoint.label(),
        "blobs": workspace.len(),
        "bytes": bytes,
        "bytes_read": bytes_read,
        "bytes_written": bytes_written,
        "seconds": seconds,
    });
    context.output.print(&document, || {
        format!(
            "wrote {} blobs, {}, to {} in {seconds:.2} s ({} read)",
            workspace.len(),
            size(bytes),
            args.out.display(),
            size(bytes_read)
        )
    })?;
    Ok(Answer::Yes)
}

/// The blobs that `--blob` names; without it all.
pub(super) fn selection(globs: &[String]) -> Selection {
    if globs.is_empty() { Selection::All } else { Selection::globs(globs) }
}
