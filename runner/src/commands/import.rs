//! `ckpt import`: files into one checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ckpt_engine::blob::Workspace;
use ckpt_engine::checkpoint::{Compression, Options, naming};
use ckpt_engine::db::Layout;
use ckpt_engine::manager::NodeRecord;
use ckpt_engine::{Error, Result, ResultExt};

use super::{Answer, Context, Failure, Outcome};
use crate::cli::ImportArgs;
use crate::formats;
use crate::output::size;

pub(super) fn run(context: &Context, args: &ImportArgs) -> Outcome {
    let started = Instant::now();
    naming::check_node(&args.node).map_err(Failure::Usage)?;
    let layout = args.layout.map(Into::into);
    let options = Options { layout, compression: args.compress, ..context.options.clone() };
    let place = context.target(&args.store, options.clone())?;
    let is_caffe2 = place.layout() == Layout::Caffe2;
    if is_caffe2 && args.compress != Compression::None {
        return Err(Failure::usage(
            "the caffe2 layout has no compression; leave out --compress, or use --layout native",
        ));
    }
    let (workspace, metadata, bytes_read) = read_all(&args.files)?;
    if is_caffe2 && !metadata.is_empty() {
        let keys = metadata.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        tracing::warn!(keys, "the caffe2 layout keeps no metadata: left out");
    }
    let place = place.with_options(Options { metadata, ..options });
    let replaced = place.exists(&args.node, args.epoch)?;
    let report = place.save(&workspace, &args.node, args.epoch)?;
    place.records()?.add_node(args.epoch, NodeRecord::new(&args.node, &report))?;
    let seconds = started.elapsed().as_secs_f64();
    let document = serde_json::json!({
        "db": report.db,
        "replaced": replaced,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "stored_bytes": report.stored_bytes,
        "bytes_read": bytes_read,
        "bytes_written": report.bytes_written,
        "seconds": seconds,
    });
    context.output.print(&document, || {
        format!(
            "saved {} blobs, {} ({} stored), as {} in {seconds:.2} s{}",
            report.blobs,
            size(report.bytes),
            size(report.stored_bytes),
            report.db,
            if replaced { ", in place of an older one" } else { "" }
        )
    })?;
    Ok(Answer::Yes)
}

/// The blobs and the metadata of all files, and how many bytes the files have.
fn read_all(files: &[PathBuf]) -> Result<(Workspace, BTreeMap<String, String>, u64)> {
    let mut workspace = Workspace::new();
    let mut origins: BTreeMap<String, &Path> = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    let mut bytes = 0;
    for file in files {
        let imported = formats::read(file).context(|| format!("cannot import file `{}`", file.display()))?;
        bytes += imported.file_bytes;
        metadata.extend(imported.metadata);
        for (name, _) in imported.workspace.iter() {
            if let Some(other) = origins.insert(name.to_owned(), file) {
                return Err(Error::invalid(format!(
                    "two files hold a blob of the same name; import them as two checkpoints blob=`{name}` files=`{}`, `{}`",
                    other.display(),
                    file.display()
                )));
            }
        }
        workspace.extend(imported.workspace);
    }
    Ok((workspace, metadata, bytes))
}
