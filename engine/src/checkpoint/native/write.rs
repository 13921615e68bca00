//! Writing: records encoded on several threads, in order; then the manifest.

use std::collections::BTreeMap;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::content::Content;
use crate::checkpoint::naming::DbName;
use crate::checkpoint::save::{Written, body_was_not_run, share, unix_ms};
use crate::db::{Limits, Payload, Source, Transaction, WritePlan};
use crate::error::{Error, Result};
use crate::format::keys;
use crate::format::layout::{Layout, Piece};
use crate::format::manifest::{BlobKind, DbId, Manifest};
use crate::pipeline;

/// Room in the plan for the manifest, per blob and per chunk beside the names; only an upper bound that sizes what is planned.
const MANIFEST_BYTES_PER_ENTRY: usize = 128;

/// Writes blobs to `source`.
pub(in crate::checkpoint) fn stage(
    place: &Checkpoints,
    content: &Content<'_>,
    source: &Source,
    name: &DbName,
    metadata: &BTreeMap<String, String>,
) -> Result<Written> {
    let planned = Layout::plan(&content.storages)?;
    let mut blobs = content.blobs.clone();
    blobs.sort_by(|a, b| a.name.cmp(&b.name));
    let template = Manifest {
        id: random_id()?,
        node: name.node.clone(),
        epoch: name.epoch,
        created_unix_ms: unix_ms(),
        writer: concat!("ckpt ", env!("CARGO_PKG_VERSION")).to_owned(),
        metadata: metadata.clone(),
        storages: Vec::new(),
        blobs,
    };
    let plan = write_plan(&planned, &template, place.options.limits);
    let mut written = None;
    place.driver.write(source, &plan, &mut |transaction| {
        written = Some(put_all(place, content, &planned, template.clone(), transaction)?);
        Ok(())
    })?;
    written.ok_or_else(body_was_not_run)
}

/// Puts the records in order, encoded on several threads, then the manifest.
fn put_all(
    place: &Checkpoints,
    content: &Content<'_>,
    planned: &Layout,
    mut manifest: Manifest,
    transaction: &mut dyn Transaction,
) -> Result<Written> {
    let options = &place.options;
    let mut storages = planned.storages.clone();
    let mut bytes = 0;
    let raw = |piece: &Piece| content.read(piece.storage, piece.range.clone());
    pipeline::ordered(
        &planned.records,
        share(options.limits),
        |record| content.cost(Layout::record_bytes(record), Layout::record_bytes(record)),
        |record| Layout::encode(record, options.compression, raw),
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
    let record = manifest.encode();
    bytes += record.len() as u64;
    transaction.put(keys::MANIFEST, Payload::from(record))?;
    Ok(Written { id: manifest.id, stored_bytes: manifest.stored_bytes(), bytes, records_crc32: None })
}

fn write_plan(planned: &Layout, manifest: &Manifest, limits: Limits) -> WritePlan {
    let names = manifest.blobs.iter().map(|blob| {
        let kind = match &blob.kind {
            BlobKind::Tensor { shape, .. } => shape.len() * 10,
            BlobKind::Bytes { type_name } => type_name.len(),
        };
        blob.name.len() + kind
    });
    let metadata = manifest.metadata.iter().map(|(key, value)| key.len() + value.len());
    let entries = manifest.blobs.len() + planned.records.iter().map(Vec::len).sum::<usize>() + metadata.len();
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
