//! `ckpt exists`: yes, no, or an error.

use serde_json::json;

use super::store::is_absent;
use super::{Answer, Context, Failure, Outcome};
use crate::cli::{EpochArg, OneArgs};

pub(super) fn run(context: &Context, args: &OneArgs) -> Outcome {
    let exists = exists(context, args)?;
    context.output.print(&json!({ "exists": exists }), || if exists { "yes" } else { "no" }.to_owned())?;
    Ok(Answer::from_yes(exists))
}

fn exists(context: &Context, args: &OneArgs) -> Result<bool, Failure> {
    let (epoch, node) = (args.which.epoch, args.which.node.as_deref());
    let store = context.store(&args.store, epoch.is_some() || node.is_some())?;
    if store.is_db() {
        return Ok(true);
    }
    // Named in full: one cheap call, whatever the store holds.
    if let (Some(EpochArg::Number(epoch)), Some(node)) = (epoch, node) {
        return Ok(store.place.exists(node, epoch)?);
    }
    match store.choose_one(epoch, node) {
        Ok(_) => Ok(true),
        Err(failure) if is_absent(&failure) => {
            // A record that cannot be read may be the one that would have said yes.
            let records = store.place.records()?;
            for epoch in records.epochs()? {
                records.get(epoch)?;
            }
            Ok(false)
        }
        Err(failure) => Err(failure),
    }
}
