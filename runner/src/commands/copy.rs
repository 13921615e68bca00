//! `ckpt copy`: checkpoints from one store to another.

use std::collections::BTreeMap;
use std::time::Instant;

use ckpt_engine::checkpoint::{Checkpoints, CopyOutcome, Options};
use ckpt_engine::db::Locality;
use ckpt_engine::manager::{EpochRecord, NodeRecord};
use ckpt_engine::{Error, ErrorKind};
use serde_json::json;

use super::store::{Chosen, Store};
use super::{Answer, Context, Failure, Outcome};
use crate::cli::CopyArgs;
use crate::output::size;

/// What was copied, over all dbs.
#[derive(Default)]
struct Copied {
    copied: u64,
    present: u64,
    blobs: u64,
    bytes: u64,
    bytes_written: u64,
}

pub(super) fn run(context: &Context, args: &CopyArgs) -> Outcome {
    let started = Instant::now();
    let from = context.copied(&args.store, !args.which.epochs.is_empty() || args.which.node.is_some())?;
    let layout = args.layout.map(Into::into);
    let to = context.target(&args.dst, Options { layout, ..context.options.clone() })?;
    check_apart(&from.place, &to)?;
    let mut epochs: BTreeMap<u64, Vec<Chosen>> = BTreeMap::new();
    for chosen in from.choose_many(&args.which.epochs, args.which.node.as_deref())? {
        epochs.entry(chosen.name.epoch).or_default().push(chosen);
    }
    let mut copied = Copied::default();
    let mut complete = Vec::new();
    let mut damaged = Vec::new();
    for (&epoch, dbs) in &epochs {
        let before = damaged.len();
        for chosen in dbs {
            match copy_db(&from, chosen, &to, &mut copied) {
                // The others are worth having all the more.
                Err(Failure::Failed(error)) if error.kind() == ErrorKind::Corrupt => damaged.push(error),
                outcome => outcome?,
            }
        }
        if damaged.len() == before && publish(&from, epoch, dbs, &to)? {
            complete.push(epoch);
        }
    }
    if let Some(first) = damaged.first() {
        return Err(Failure::Failed(Error::corrupt(format!(
            "{} of {} dbs are damaged and were not copied, the others were; the first: {first}",
            damaged.len(),
            damaged.len() as u64 + copied.copied + copied.present
        ))));
    }
    let seconds = started.elapsed().as_secs_f64();
    let document = json!({
        "dbs": copied.copied + copied.present,
        "copied": copied.copied,
        "present": copied.present,
        "epochs": epochs.keys().collect::<Vec<_>>(),
        "complete": complete,
        "blobs": copied.blobs,
        "bytes": copied.bytes,
        "bytes_written": copied.bytes_written,
        "seconds": seconds,
    });
    context.output.print(&document, || {
        format!(
            "copied {} dbs ({} were there already), {} written, to {} in {seconds:.2} s",
            copied.copied,
            copied.present,
            size(copied.bytes_written),
            args.dst
        )
    })?;
    Ok(Answer::Yes)
}

/// A copy into the folder that it comes from would replace what it copies.
fn check_apart(from: &Checkpoints, to: &Checkpoints) -> Result<(), Failure> {
    let is_local = |place: &Checkpoints| place.driver().capabilities().locality == Locality::Local;
    let real = |place: &Checkpoints| std::fs::canonicalize(place.prefix()).ok();
    let same = match (is_local(from), is_local(to)) {
        (true, true) => real(from).is_some_and(|path| Some(path) == real(to)),
        (false, false) => from.driver().db_type() == to.driver().db_type() && from.prefix() == to.prefix(),
        _ => false,
    };
    if same {
        return Err(Failure::usage(format!(
            "source and destination are the same place; copy to another one place=`{}`",
            from.prefix()
        )));
    }
    Ok(())
}

fn copy_db(from: &Store, chosen: &Chosen, to: &Checkpoints, copied: &mut Copied) -> Result<(), Failure> {
    let target = to.source(&chosen.name.node, chosen.name.epoch)?;
    let report = from.place.copy_source(chosen.source.clone(), to, target)?;
    match report.outcome {
        CopyOutcome::Copied => copied.copied += 1,
        CopyOutcome::Present => copied.present += 1,
    }
    copied.blobs += report.blobs;
    copied.bytes += report.bytes;
    copied.bytes_written += report.bytes_written;
    Ok(())
}

/// Says at the destination that the epoch is complete, after all its dbs are there, and tells whether it did.
///
/// An epoch that is complete at its source and was copied whole keeps its record, unless a change of layout has given its dbs other
/// ids. One that was copied in part is put together node by node, as imports are. One that is not complete at its source is not made so by copying it.
fn publish(from: &Store, epoch: u64, dbs: &[Chosen], to: &Checkpoints) -> Result<bool, Failure> {
    if from.is_db() {
        return add_nodes(dbs, epoch, to);
    }
    let state = from.place.epoch(epoch)?;
    if !state.is_complete() {
        tracing::warn!(
            epoch,
            "the epoch is not complete at its source, so its copy does not count as complete"
        );
        return Ok(false);
    }
    let whole = |record: &&EpochRecord| {
        record.nodes.iter().all(|node| dbs.iter().any(|chosen| chosen.name.node == node.node))
    };
    if let Some(record) = state.record.as_ref().filter(whole) {
        to.records()?.put(&record.of_copies(to)?)?;
        return Ok(true);
    }
    add_nodes(dbs, epoch, to)
}

fn add_nodes(dbs: &[Chosen], epoch: u64, to: &Checkpoints) -> Result<bool, Failure> {
    let records = to.records()?;
    for chosen in dbs {
        let copy = to.open(&chosen.name.node, epoch)?;
        records.add_node(epoch, NodeRecord::of(&copy)?)?;
    }
    Ok(true)
}
