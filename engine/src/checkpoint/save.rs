//! Save: plan, stage, manifest, commit, report.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Checkpoints;
use crate::blob::Workspace;
use crate::db::{Limits, Payload, Transaction, WritePlan};
use crate::error::{Error, Result, ResultExt};
use crate::format::keys;
use crate::format::layout::Layout;
use crate::format::manifest::{BlobKind, DbId, Manifest};
use crate::pipeline;

/// Room in the plan for the manifest, per blob and per chunk beside the names; only an upper bound that sizes what is planned.
const MANIFEST_BYTES_PER_ENTRY: usize = 128;

/// What a save did.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveReport {
    /// The db's name for people.
    pub db: String,
    /// The id of this save.
    pub id: DbId,
    /// How many blobs.
    pub blobs: u64,
    /// Their bytes; shared ones count once.
    pub bytes: u64,
    /// What their chunks take in the store.
    pub stored_bytes: u64,
    /// All that was put, manifest and padding too.
    pub bytes_written: u64,
    /// From the call to the commit.
    pub seconds: f64,
}

pub(super) fn save(place: &Checkpoints, workspace: &Workspace, node: &str, epoch: u64) -> Result<SaveReport> {
    let started = Instant::now();
    let source = place.source(node, epoch)?;
    let label = place.label(&source);
    let planned = Layout::plan(workspace).context(|| format!("db `{label}`"))?;
    let template = Manifest {
        id: random_id()?,
        node: node.to_owned(),
        epoch,
        created_unix_ms: unix_ms(),
        writer: concat!("ckpt ", env!("CARGO_PKG_VERSION")).to_owned(),
        metadata: place.options.metadata.clone(),
        storages: Vec::new(),
        blobs: Vec::new(),
    };
    let plan = write_plan(&planned, &template, place.options.limits);
    let bytes = planned.storages.iter().map(|storage| storage.bytes).sum();
    place.options.observer.started(&label, bytes);
    let mut written = None;
    let outcome = place.driver.write(&source, &plan, &mut |transaction| {
        written = Some(stage(place, &planned, template.clone(), transaction)?);
        Ok(())
    });
    place.options.observer.finished();
    outcome.context(|| format!("cannot save db `{label}`"))?;
    let written = written.ok_or_else(|| Error::internal("backend committed without running the body"))?;
    let report = SaveReport {
        db: label,
        id: template.id,
        blobs: planned.blobs.len() as u64,
        bytes,
        stored_bytes: written.stored_bytes,
        bytes_written: written.bytes,
        seconds: started.elapsed().as_secs_f64(),
    };
    tracing::info!(db = %report.db, blobs = report.blobs, bytes, seconds = report.seconds, "saved");
    Ok(report)
}

struct Written {
    stored_bytes: u64,
    bytes: u64,
}

/// Puts the records in order, encoded on several threads, then the manifest.
fn stage(
    place: &Checkpoints,
    planned: &Layout,
    mut manifest: Manifest,
    transaction: &mut dyn Transaction,
) -> Result<Written> {
    let options = &place.options;
    let mut storages = planned.storages.clone();
    let mut bytes = 0;
    pipeline::ordered(
        &planned.records,
        share(options.limits),
        |record| Layout::record_bytes(record),
        |record| planned.encode(record, options.compression),
        |number, encoded| {
            let key =
                keys::record_key(u32::try_from(number).map_err(|_| Error::internal("too many records"))?);
            bytes += encoded.value.len() as u64;
            transaction.put(&key, encoded.value)?;
            planned.record_done(&mut storages, number, &encoded.chunks);
            options.observer.advanced(encoded.raw_bytes);
            Ok(())
        },
    )?;
    manifest.storages = storages;
    manifest.blobs.clone_from(&planned.blobs);
    let record = manifest.encode();
    bytes += record.len() as u64;
    transaction.put(keys::MANIFEST, Payload::from(record))?;
    Ok(Written { stored_bytes: manifest.stored_bytes(), bytes })
}

/// The budget is for what is encoded and for what the backend writes behind: half each.
fn share(limits: Limits) -> Limits {
    Limits { memory: limits.memory / 2, ..limits }
}

fn write_plan(planned: &Layout, manifest: &Manifest, limits: Limits) -> WritePlan {
    let names = planned.blobs.iter().map(|blob| {
        let kind = match &blob.kind {
            BlobKind::Tensor { shape, .. } => shape.len() * 10,
            BlobKind::Bytes { type_name } => type_name.len(),
        };
        blob.name.len() + kind
    });
    let metadata = manifest.metadata.iter().map(|(key, value)| key.len() + value.len());
    let entries = planned.blobs.len() + planned.records.iter().map(Vec::len).sum::<usize>() + metadata.len();
    let manifest_bytes =
        names.chain(metadata).sum::<usize>() + manifest.node.len() + MANIFEST_BYTES_PER_ENTRY * (entries + 2);
    WritePlan {
        records: planned.records.len() as u64 + 1,
        bytes: planned.max_bytes() + manifest_bytes as u64,
        limits: share(limits),
    }
}

fn random_id() -> Result<DbId> {
    let mut id = DbId::default();
    getrandom::fill(&mut id)
        .map_err(|error| Error::internal("the system gives no random bytes").with_source(error))?;
    Ok(id)
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
