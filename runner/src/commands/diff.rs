//! `ckpt diff`: what two checkpoints do not have in common.

use ckpt_engine::checkpoint::{Change, Changed, Diff};
use serde_json::{Value, json};

use super::store::{Chosen, Store};
use super::{Answer, Context, Failure, Outcome};
use crate::cli::{DiffArgs, EpochArg};
use crate::output::name;

pub(super) fn run(context: &Context, args: &DiffArgs) -> Outcome {
    let node = args.node.as_deref();
    let a = context.store(&args.store_a, args.epoch_a.is_some() || node.is_some())?;
    let b = context.store(&args.store_b, args.epoch_b.is_some() || node.is_some())?;
    let in_a = a.choose_many(&[args.epoch_a.unwrap_or(EpochArg::Latest)], node)?;
    let in_b = b.choose_many(&[args.epoch_b.unwrap_or(EpochArg::Latest)], node)?;
    let diff = match (&in_a[..], &in_b[..]) {
        // One of each is compared whatever the nodes are called.
        ([one], [other]) => diff_dbs(&a, one, &b, other)?,
        _ => diff_nodes(&a, &in_a, &b, &in_b)?,
    };
    let epoch = |chosen: &[Chosen]| chosen.first().map(|chosen| chosen.name.epoch);
    let epochs = [epoch(&in_a), epoch(&in_b)];
    let document = json!({
        "equal": diff.is_equal(),
        "epochs": epochs,
        "added": diff.added,
        "removed": diff.removed,
        "changed": diff.changed.iter().map(changed_json).collect::<Vec<_>>(),
    });
    let compared = match epochs {
        [Some(a), Some(b)] if a == b => format!("epoch {a} of both"),
        [Some(a), Some(b)] => format!("epoch {a} and epoch {b}"),
        _ => String::new(),
    };
    context.output.print(&document, || text(&diff, &compared))?;
    Ok(Answer::from_yes(diff.is_equal()))
}

fn diff_dbs(a: &Store, one: &Chosen, b: &Store, other: &Chosen) -> Result<Diff, Failure> {
    let one = a.place.open_source(one.source.clone())?;
    let other = b.place.open_source(other.source.clone())?;
    Ok(one.diff(&other)?)
}

/// Node by node. Blobs are named `<node>/<blob>`; a node that only one side has adds or removes all of its blobs.
fn diff_nodes(a: &Store, in_a: &[Chosen], b: &Store, in_b: &[Chosen]) -> Result<Diff, Failure> {
    let mut all = Diff::default();
    for one in in_a {
        match in_b.iter().find(|other| other.name.node == one.name.node) {
            None => all.removed.extend(all_blobs(a, one)?),
            Some(other) => {
                let diff = diff_dbs(a, one, b, other)?;
                let full = |blob: String| format!("{}/{blob}", one.name.node);
                all.added.extend(diff.added.into_iter().map(full));
                all.removed.extend(diff.removed.into_iter().map(full));
                let changed = diff.changed.into_iter();
                all.changed.extend(changed.map(|changed| Changed { name: full(changed.name), ..changed }));
            }
        }
    }
    for other in in_b {
        if !in_a.iter().any(|one| one.name.node == other.name.node) {
            all.added.extend(all_blobs(b, other)?);
        }
    }
    Ok(all)
}

fn all_blobs(store: &Store, chosen: &Chosen) -> Result<Vec<String>, Failure> {
    let checkpoint = store.place.open_source(chosen.source.clone())?;
    Ok(checkpoint.names().iter().map(|blob| format!("{}/{blob}", chosen.name.node)).collect())
}

fn changed_json(changed: &Changed) -> Value {
    match &changed.change {
        Change::Bytes { first } => json!({ "name": changed.name, "what": "bytes", "first": first }),
        Change::Shape { a, b } => json!({ "name": changed.name, "what": "shape", "a": a, "b": b }),
        Change::DType { a, b } => json!({ "name": changed.name, "what": "dtype", "a": a, "b": b }),
    }
}

fn text(diff: &Diff, compared: &str) -> String {
    if diff.is_equal() {
        return format!("equal: {compared}\n");
    }
    let mut text = format!("different: {compared}\n");
    for blob in &diff.removed {
        text.push_str(&format!("- {}\n", name(blob)));
    }
    for blob in &diff.added {
        text.push_str(&format!("+ {}\n", name(blob)));
    }
    for changed in &diff.changed {
        let what = match &changed.change {
            Change::Bytes { first } => format!("bytes, from byte {first} on"),
            Change::Shape { a, b } => format!("shape {a:?} -> {b:?}"),
            Change::DType { a, b } => format!("dtype {a} -> {b}"),
        };
        text.push_str(&format!("! {}: {what}\n", name(&changed.name)));
    }
    text
}
