//! `ckpt export`: blobs of a checkpoint into a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use ckpt_engine::blob::{Blob, Selection, Workspace};
use ckpt_engine::checkpoint::caffe2::{as_tensors, string_of};
use ckpt_engine::{Error, Result, ResultExt};
use serde_json::{Value, json};

use super::{Answer, Context, Failure, Outcome};
use crate::cli::ExportArgs;
use crate::formats;
use crate::output::size;

/// What goes into the file.
#[derive(Default)]
struct Exported {
    workspace: Workspace,
    metadata: BTreeMap<String, String>,
    /// Blobs that the file cannot hold, and why.
    left_out: Vec<(String, Error)>,
}

pub(super) fn run(context: &Context, args: &ExportArgs) -> Outcome {
    let started = Instant::now();
    formats::check_writable_extension(&args.out).map_err(Failure::Usage)?;
    let store = context.store(&args.store, args.which.epoch.is_some() || args.which.node.is_some())?;
    let checkpoint = store.open_one(args.which.epoch, args.which.node.as_deref())?;
    let loaded = checkpoint.load(&selection(&args.blobs))?;
    let metadata = checkpoint.about().metadata.clone();
    let mut exported = Exported { metadata, ..Exported::default() };
    for (name, blob) in loaded.iter() {
        exported.add(&args.out, stripped(name, &args.strip_prefix), blob)?;
    }
    if let Some((_, error)) = exported.left_out.pop_if(|_| !args.blobs.is_empty()) {
        return Err(error.into());
    }
    let bytes: u64 = exported.workspace.iter().map(|(_, blob)| blob.data().len() as u64).sum();
    for (name, error) in &exported.left_out {
        tracing::warn!(blob = name, %error, "left out");
    }
    let bytes_written = formats::write(&args.out, &exported.workspace, &exported.metadata)
        .context(|| format!("cannot export to file `{}`", args.out.display()))?;
    let bytes_read = checkpoint.db().bytes_read();
    let seconds = started.elapsed().as_secs_f64();
    let left_out: Vec<&str> = exported.left_out.iter().map(|(name, _)| name.as_str()).collect();
    let document = json!({
        "db": checkpoint.label(),
        "blobs": loaded.len() - left_out.len(),
        "left_out": left_out,
        "bytes": bytes,
        "bytes_read": bytes_read,
        "bytes_written": bytes_written,
        "seconds": seconds,
    });
    context.output.print(&document, || text(args, &document, bytes_read, seconds))?;
    Ok(Answer::Yes)
}

impl Exported {
    /// Adds a blob; one of Caffe2's that others cannot read as what tensors can say of it, and a text as metadata.
    fn add(&mut self, out: &Path, name: &str, blob: &Blob) -> Result<()> {
        if let Some(tensors) = as_tensors(name, blob).context(|| format!("blob `{name}`"))? {
            return tensors.into_iter().try_for_each(|(name, tensor)| self.insert(&name, tensor.into()));
        }
        let text = string_of(blob).and_then(|bytes| std::str::from_utf8(bytes).ok());
        if let Some(text) = text.filter(|_| formats::holds_metadata(out)) {
            return match self.metadata.insert(name.to_owned(), text.to_owned()) {
                Some(_) => Err(twice(name)),
                None => Ok(()),
            };
        }
        match formats::check_blob(out, name, blob) {
            Ok(()) => self.insert(name, blob.clone()),
            Err(error) => {
                self.left_out.push((name.to_owned(), error));
                Ok(())
            }
        }
    }

    fn insert(&mut self, name: &str, blob: Blob) -> Result<()> {
        match self.workspace.insert(name, blob) {
            Some(_) => Err(twice(name)),
            None => Ok(()),
        }
    }
}

fn twice(name: &str) -> Error {
    Error::invalid(format!(
        "two blobs would have one name in the file; export them apart with --blob name=`{name}`"
    ))
}

/// What follows the first occurrence of `prefix`, as Caffe2's Load and Save cut names.
fn stripped<'n>(name: &'n str, prefix: &str) -> &'n str {
    match name.split_once(prefix) {
        Some((_, rest)) if !prefix.is_empty() => rest,
        _ => name,
    }
}

fn text(args: &ExportArgs, document: &Value, bytes_read: u64, seconds: f64) -> String {
    format!(
        "wrote {} blobs, {}, to {} in {seconds:.2} s ({} read)",
        document["blobs"],
        size(document["bytes"].as_u64().unwrap_or_default()),
        args.out.display(),
        size(bytes_read)
    )
}

/// The blobs that `--blob` names; without it all.
pub(super) fn selection(globs: &[String]) -> Selection {
    if globs.is_empty() { Selection::All } else { Selection::globs(globs) }
}
