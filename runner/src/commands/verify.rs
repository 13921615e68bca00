//! `ckpt verify`: read and check everything.

use ckpt_engine::ErrorKind;
use ckpt_engine::checkpoint::{Completeness, Damage, VerifyReport};
use serde_json::{Value, json};

use super::store::Store;
use super::{Answer, Context, Failure, Outcome};
use crate::cli::{EpochArg, ManyArgs};
use crate::output::{name, size};

/// What was checked, over all dbs.
#[derive(Default)]
struct Verified {
    dbs: u64,
    /// Of them, those of which only the structure could be checked.
    without_checksums: u64,
    report: VerifyReport,
}

pub(super) fn run(context: &Context, args: &ManyArgs) -> Outcome {
    let store = context.store(&args.store, !args.which.epochs.is_empty() || args.which.node.is_some())?;
    let mut verified = Verified::default();
    match verify_dbs(&store, args, &mut verified) {
        // All that is left of an epoch may be its record.
        Err(Failure::Failed(error)) if error.kind() == ErrorKind::NotFound && whole_store(&store, args) => {
            verify_epochs(&store, &mut verified)?;
            if verified.report.is_ok() {
                return Err(error.into());
            }
        }
        Err(failure) => return Err(failure),
        Ok(()) if whole_store(&store, args) => verify_epochs(&store, &mut verified)?,
        Ok(()) => {}
    }
    let Verified { dbs, without_checksums, report } = verified;
    let document = json!({
        "ok": report.is_ok(),
        "dbs": dbs,
        "without_checksums": without_checksums,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "damage": report.damage.iter().map(damage_json).collect::<Vec<_>>(),
    });
    context.output.print(&document, || text(dbs, without_checksums, &report))?;
    Ok(Answer::from_yes(report.is_ok()))
}

fn whole_store(store: &Store, args: &ManyArgs) -> bool {
    !store.is_db()
        && args.which.node.is_none()
        && args.which.epochs.iter().all(|epoch| *epoch == EpochArg::Latest)
}

fn verify_dbs(store: &Store, args: &ManyArgs, verified: &mut Verified) -> Result<(), Failure> {
    for source in store.sources(&args.which.epochs, args.which.node.as_deref())? {
        let report = store.place.verify_source(&source)?;
        verified.dbs += 1;
        verified.report.blobs += report.blobs;
        verified.report.bytes += report.bytes;
        verified.report.damage.extend(report.damage);
        // These two check every block that they read.
        let checks = ["rocksdb", "leveldb"].contains(&store.place.driver().db_type());
        verified.without_checksums += u64::from(report.structure_only && !checks);
    }
    Ok(())
}

/// An epoch that was complete and is not any more has lost something, even if each db that is left is whole.
fn verify_epochs(store: &Store, verified: &mut Verified) -> Result<(), Failure> {
    let states = match store.place.epochs() {
        // All that is left of a place may be its records.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let epochs = store.place.records()?.epochs()?;
            epochs.into_iter().map(|epoch| store.place.epoch(epoch)).collect()
        }
        states => states,
    };
    for state in states?.iter().filter(|state| state.has_lost()) {
        let Completeness::Incomplete(reason) = &state.completeness else { continue };
        let known = |node: &ckpt_engine::checkpoint::NodeState| {
            verified.report.damage.iter().any(|damage| damage.db == node.db)
        };
        if !state.nodes.iter().any(known) {
            let reason = format!("epoch {} was complete and is not: {reason}", state.epoch);
            let db = store.name().to_owned();
            verified.report.damage.push(Damage { db, blob: None, range: None, reason });
        }
    }
    Ok(())
}

fn damage_json(damage: &Damage) -> Value {
    json!({
        "db": damage.db,
        "blob": damage.blob,
        "range": damage.range.as_ref().map(|range| [range.start, range.end]),
        "reason": damage.reason,
    })
}

fn text(dbs: u64, without_checksums: u64, report: &VerifyReport) -> String {
    let mut text = String::new();
    for damage in &report.damage {
        let blob = damage.blob.as_deref().map(|blob| format!(": blob `{}`", name(blob))).unwrap_or_default();
        let range = damage.range.as_ref().map(|range| format!(" bytes {}..{}", range.start, range.end));
        text.push_str(&format!(
            "damaged: {}{blob}{}: {}\n",
            damage.db,
            range.unwrap_or_default(),
            damage.reason
        ));
    }
    let verdict = match report.damage.len() {
        0 => "all is well".to_owned(),
        1 => "1 place is damaged".to_owned(),
        many => format!("{many} places are damaged"),
    };
    text.push_str(&format!("{dbs} dbs, {} blobs, {} checked: {verdict}\n", report.blobs, size(report.bytes)));
    if without_checksums > 0 {
        text.push_str(&format!(
            "{without_checksums} of them are Caffe2's and have no checksums: a changed number would not be noticed (ckpt copy … --layout native \
             gives them some)\n"
        ));
    }
    text
}
