//! `ckpt show`: the blobs of a checkpoint.

use ckpt_engine::checkpoint::{BlobInfo, Checkpoint};
use ckpt_engine::format::manifest::{BlobKind, id_text};
use serde_json::{Value, json};

use super::export::selection;
use super::{Answer, Context, Outcome};
use crate::cli::ShowArgs;
use crate::output::{name, size, table};

pub(super) fn run(context: &Context, args: &ShowArgs) -> Outcome {
    let store = context.store(&args.store, args.which.epoch.is_some() || args.which.node.is_some())?;
    let checkpoint = store.open_one(args.which.epoch, args.which.node.as_deref())?;
    let all = checkpoint.blobs()?;
    let wanted = selection(&args.blobs).resolve(&checkpoint.names())?;
    let blobs: Vec<&BlobInfo<'_>> = wanted.into_iter().filter_map(|at| all.get(at)).collect();
    let about = checkpoint.about();
    let document = json!({
        "db": checkpoint.label(),
        "layout": about.layout.name(),
        "node": about.node,
        "epoch": about.epoch,
        "id": id_text(&about.id),
        "created_unix_ms": about.created_unix_ms,
        "writer": about.writer,
        "metadata": about.metadata,
        "blobs": blobs.iter().map(|blob| blob_json(blob)).collect::<Vec<_>>(),
    });
    context.output.print(&document, || text(&checkpoint, &blobs))?;
    Ok(Answer::Yes)
}

fn blob_json(blob: &BlobInfo<'_>) -> Value {
    let (kind, dtype, shape, type_name) = match blob.kind {
        BlobKind::Tensor { dtype, shape } => ("tensor", Some(dtype.name()), Some(shape), None),
        BlobKind::Bytes { type_name } => ("bytes", None, None, Some(type_name)),
    };
    json!({
        "name": blob.name,
        "kind": kind,
        "dtype": dtype,
        "shape": shape,
        "type": type_name,
        "bytes": blob.bytes,
        "stored_bytes": blob.stored_bytes,
        "codec": blob.codec.to_string(),
        "chunks": blob.chunks,
    })
}

fn text(checkpoint: &Checkpoint, blobs: &[&BlobInfo<'_>]) -> String {
    let row = |blob: &&BlobInfo<'_>| {
        let (kind, shape) = match blob.kind {
            BlobKind::Tensor { dtype, shape } => (dtype.to_string(), format!("{shape:?}")),
            BlobKind::Bytes { type_name } => (format!("bytes ({})", name(type_name)), String::new()),
        };
        [
            name(blob.name),
            kind,
            shape,
            size(blob.bytes),
            size(blob.stored_bytes),
            blob.codec.to_string(),
            blob.chunks.to_string(),
        ]
    };
    let blobs = table(
        ["name", "dtype", "shape", ">bytes", ">stored", "codec", ">chunks"],
        blobs.iter().map(row).collect(),
    );
    let about = checkpoint.about();
    let mut text = format!(
        "{}: {} blobs, {} ({} stored), {} layout, written by {}\n",
        checkpoint.label(),
        checkpoint.blob_count(),
        size(checkpoint.bytes()),
        size(checkpoint.stored_bytes()),
        about.layout,
        name(&about.writer)
    );
    for (key, value) in &about.metadata {
        text.push_str(&format!("  {}: {}\n", name(key), name(value)));
    }
    text + &blobs
}
