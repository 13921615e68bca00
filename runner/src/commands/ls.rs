//! `ckpt ls`: the epochs of a store and their nodes.

use ckpt_engine::checkpoint::naming::parse_db_name;
use ckpt_engine::checkpoint::{Completeness, EpochState, NodeState};
use serde_json::{Value, json};

use super::store::Store;
use super::{Answer, Context, Failure, Outcome};
use crate::cli::{EpochArg, ManyArgs};
use crate::output::{name, size, table, time};

pub(super) fn run(context: &Context, args: &ManyArgs) -> Outcome {
    let store = context.store(&args.store, !args.which.epochs.is_empty() || args.which.node.is_some())?;
    let epochs = chosen(&store, args)?;
    let document = json!({
        "store": store.name(),
        "epochs": epochs.iter().map(epoch_json).collect::<Vec<_>>(),
    });
    let others = if epochs.is_empty() { store.other_dbs() } else { String::new() };
    context.output.print(&document, || text(&epochs) + &others)?;
    Ok(Answer::Yes)
}

fn chosen(store: &Store, args: &ManyArgs) -> Result<Vec<EpochState>, Failure> {
    let latest = match args.which.epochs.contains(&EpochArg::Latest) {
        true => store.place.latest_complete()?,
        false => None,
    };
    // A db that is a STORE by itself is one of the place that holds it, or one without an epoch: a model in a file.
    let only = match store.is_db() {
        true => store.choose_many(&[], None)?.pop(),
        false => None,
    };
    if let Some(only) = only.as_ref().filter(|only| parse_db_name(only.source.name()).is_none()) {
        return Ok(vec![store.place.state_of(&only.source)?]);
    }
    let mut epochs = store.place.epochs()?;
    epochs.retain(|state| {
        let asked = args.which.epochs.iter().any(|epoch| match epoch {
            EpochArg::Latest => latest == Some(state.epoch),
            EpochArg::Number(number) => *number == state.epoch,
        });
        let meant = only.as_ref().is_none_or(|only| only.name.epoch == state.epoch);
        meant && (args.which.epochs.is_empty() || asked)
    });
    if epochs.is_empty() && !args.which.epochs.is_empty() {
        // Says which there are.
        store.choose_many(&args.which.epochs, args.which.node.as_deref())?;
    }
    for state in &mut epochs {
        state.nodes.retain(|node| {
            let asked = args.which.node.as_ref().is_none_or(|wanted| *wanted == node.node);
            asked && only.as_ref().is_none_or(|only| only.name.node == node.node)
        });
    }
    if args.which.node.is_some() && epochs.iter().all(|state| state.nodes.is_empty()) {
        store.choose_many(&args.which.epochs, args.which.node.as_deref())?;
    }
    Ok(epochs)
}

fn epoch_json(state: &EpochState) -> Value {
    let reason = match &state.completeness {
        Completeness::Complete => None,
        Completeness::Incomplete(reason) => Some(reason),
    };
    json!({
        "epoch": state.epoch,
        "complete": state.is_complete(),
        "incomplete_because": reason,
        // Nothing can be pinned in this version.
        "pinned": false,
        "completed_unix_ms": state.record.as_ref().map(|record| record.completed_unix_ms),
        "nodes": state.nodes.iter().map(|node| node_json(state, node)).collect::<Vec<_>>(),
    })
}

fn node_json(state: &EpochState, node: &NodeState) -> Value {
    let contents = node.contents.as_ref().ok();
    json!({
        "node": node.node,
        "db": node.db,
        "id": contents.map(|contents| &contents.id),
        "bytes": contents.map(|contents| contents.bytes),
        "stored_bytes": contents.map(|contents| contents.stored_bytes),
        "blobs": contents.map(|contents| contents.blobs),
        "created_unix_ms": contents.and_then(|contents| contents.created_unix_ms),
        "seconds": seconds(state, node),
        "error": node.contents.as_ref().err(),
    })
}

fn seconds(state: &EpochState, node: &NodeState) -> Option<f64> {
    let nodes = state.record.as_ref().map(|record| &record.nodes)?;
    nodes.iter().find(|recorded| recorded.node == node.node).map(|recorded| recorded.seconds)
}

fn text(epochs: &[EpochState]) -> String {
    let mut rows = Vec::new();
    let mut notes = String::new();
    for state in epochs {
        let complete = if state.is_complete() { "yes" } else { "no" };
        if let Completeness::Incomplete(reason) = &state.completeness {
            notes.push_str(&format!("epoch {} is not complete: {reason}\n", state.epoch));
        }
        for node in &state.nodes {
            let epoch = state.epoch.to_string();
            rows.push(match &node.contents {
                Ok(contents) => [
                    epoch,
                    name(&node.node),
                    complete.to_owned(),
                    contents.blobs.to_string(),
                    size(contents.bytes),
                    size(contents.stored_bytes),
                    contents.created_unix_ms.map(time).unwrap_or_default(),
                    seconds(state, node).map(|seconds| format!("{seconds:.2} s")).unwrap_or_default(),
                ],
                Err(_) => {
                    let unreadable = "unreadable".to_owned();
                    [
                        epoch,
                        name(&node.node),
                        complete.to_owned(),
                        unreadable,
                        String::new(),
                        String::new(),
                        String::new(),
                        String::new(),
                    ]
                }
            });
        }
    }
    if rows.is_empty() && notes.is_empty() {
        return "no checkpoints\n".to_owned();
    }
    table(["epoch", "node", "complete", ">blobs", ">bytes", ">stored", "saved (UTC)", ">took"], rows) + &notes
}
