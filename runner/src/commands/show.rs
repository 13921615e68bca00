//! `ckpt show`: the blobs of a checkpoint.

use ckpt_engine::Result;
use ckpt_engine::blob::Selection;
use ckpt_engine::checkpoint::caffe2::{ModelInfo, NetInfo, is_meta_net, model_info, string_of};
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
    let models = models(&checkpoint, &blobs)?;
    let document = json!({
        "db": checkpoint.label(),
        "layout": about.layout.name(),
        "node": about.node,
        "epoch": about.epoch,
        "id": id_text(&about.id),
        "created_unix_ms": about.created_unix_ms,
        "writer": about.writer,
        "metadata": about.metadata,
        "models": models.iter().map(model_json).collect::<Vec<_>>(),
        "blobs": blobs.iter().map(|blob| blob_json(blob)).collect::<Vec<_>>(),
    });
    context.output.print(&document, || text(&checkpoint, &blobs) + &models_text(&models))?;
    Ok(Answer::Yes)
}

/// What the descriptions of models among the blobs say, by the blob's name: a predictor export of Caffe2 has one.
fn models(checkpoint: &Checkpoint, blobs: &[&BlobInfo<'_>]) -> Result<Vec<(String, ModelInfo)>> {
    let mut models = Vec::new();
    for blob in blobs.iter().filter(|blob| is_meta_net(blob.name)) {
        let loaded = checkpoint.load(&Selection::names([blob.name]))?;
        if let Some(content) = loaded.get(blob.name).and_then(string_of) {
            models.push((blob.name.to_owned(), model_info(content)?));
        }
    }
    Ok(models)
}

fn model_json((blob, model): &(String, ModelInfo)) -> Value {
    let net = |net: &NetInfo| {
        json!({
            "role": net.role,
            "name": net.name,
            "inputs": net.inputs,
            "outputs": net.outputs,
            "operators": net.operators,
        })
    };
    let blobs: serde_json::Map<String, Value> =
        model.blobs.iter().map(|(role, names)| (role.clone(), json!(names))).collect();
    json!({ "blob": blob, "nets": model.nets.iter().map(net).collect::<Vec<_>>(), "blobs": blobs })
}

fn models_text(models: &[(String, ModelInfo)]) -> String {
    let mut text = String::new();
    let list = |names: &[String]| names.iter().map(|text| name(text)).collect::<Vec<_>>().join(", ");
    for (blob, model) in models {
        text.push_str(&format!("\nmodel in {}:\n", name(blob)));
        for (role, names) in &model.blobs {
            text.push_str(&format!("  {}: {}\n", name(role), list(names)));
        }
        for net in &model.nets {
            text.push_str(&format!(
                "  net {} ({}), {} operators: {} -> {}\n",
                name(&net.name),
                name(&net.role),
                net.operators,
                list(&net.inputs),
                list(&net.outputs)
            ));
        }
    }
    text
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
