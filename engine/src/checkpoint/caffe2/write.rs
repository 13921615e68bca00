//! Writing: a record per chunk of a tensor and one per other blob, encoded on several threads.

use std::collections::BTreeSet;
use std::ops::Range;

use super::checksum::Checksum;
use crate::blob::{DType, Tensor, element_count, to_usize};
use crate::checkpoint::content::Content;
use crate::checkpoint::naming::parse_db_name;
use crate::checkpoint::save::{Written, body_was_not_run, share};
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::db::{Order, Payload, Source, WritePlan};
use crate::error::{Error, Result, ResultExt};
use crate::format::caffe2::encode::{self, Chunk, Holders};
use crate::format::caffe2::index::IdBuilder;
use crate::format::caffe2::keys::chunk_key;
use crate::format::manifest::{BlobEntry, BlobKind};
use crate::pipeline;

/// No message of protobuf is longer.
const MAX_MESSAGE: u64 = (1 << 31) - 1;
/// What a record has beside its elements, its names and its dims, at most.
const OVERHEAD: u64 = 256;

/// A record to be written.
struct Record<'c> {
    key: String,
    blob: &'c BlobEntry,
    /// Of a tensor.
    elements: Range<u64>,
    holders: Holders,
    /// No more bytes than this; of a chunk of strings about so many, but of all chunks together no more.
    bytes: u64,
}

/// Writes blobs to `source`, in their order where the store keeps it.
pub(in crate::checkpoint) fn stage(
    place: &Checkpoints,
    content: &Content<'_>,
    source: &Source,
) -> Result<Written> {
    let capabilities = place.driver.capabilities();
    let mut records = Vec::new();
    for blob in &content.blobs {
        plan_blob(place, content, blob, &mut records).context(|| format!("blob `{}`", blob.name))?;
    }
    check_keys(&records)?;
    if capabilities.order == Order::Ascending {
        records.sort_by(|a, b| a.key.cmp(&b.key));
    }
    let most = capabilities.max_value_len.min(MAX_MESSAGE);
    let fits = |record: &Record<'_>, bytes: u64| {
        if bytes <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "blob does not fit one record; give a smaller chunk size blob=`{}` bytes=`{bytes}` most=`{most}`",
            record.blob.name
        )))
    };
    records.iter().try_for_each(|record| fits(record, record.bytes))?;
    begin(place, source)?;
    let limits = place.options.limits;
    let plan = WritePlan {
        records: records.len() as u64,
        bytes: records.iter().map(|record| record.bytes).sum(),
        limits: share(limits),
    };
    let mut outcome = None;
    place.driver.write(source, &plan, &mut |transaction| {
        let mut id = IdBuilder::default();
        let mut checksum = Checksum::default();
        let mut bytes = 0;
        pipeline::ordered(
            &records,
            share(limits),
            |record| {
                let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
                content.cost(bytes(record.raw_bytes(content)), bytes(record.bytes))
            },
            |record| {
                let value = record.encode(content).context(|| format!("blob `{}`", record.blob.name))?;
                // Of strings only all together were known before.
                fits(record, value.len() as u64)?;
                let crc32 = Checksum::of(record.key.as_bytes(), value.pieces());
                Ok((value, crc32))
            },
            |index, (value, crc32)| {
                let record = records.get(index).ok_or_else(|| Error::internal("no such record"))?;
                let key = record.key.as_bytes();
                let len = value.len() as u64;
                id.add(key, len, &mut |start, into| piece_of(&value, start, into))?;
                bytes += len;
                checksum.add(key, crc32);
                transaction.put(key, value)?;
                place.options.observer.advanced(record.raw_bytes(content));
                Ok(())
            },
        )?;
        let records_crc32 = Some(checksum.finish());
        outcome = Some(Written { id: id.finish(), stored_bytes: bytes, bytes, records_crc32 });
        Ok(())
    })?;
    outcome.ok_or_else(body_was_not_run)
}

/// Notes that a db of a node and an epoch is being saved.
fn begin(place: &Checkpoints, source: &Source) -> Result<()> {
    match parse_db_name(source.name()) {
        Some(name) => place.records()?.begin(name.epoch),
        None => Ok(()),
    }
}

fn plan_blob<'c>(
    place: &Checkpoints,
    content: &Content<'_>,
    blob: &'c BlobEntry,
    records: &mut Vec<Record<'c>>,
) -> Result<()> {
    let (chunk_size, holders) = place.options.caffe2.of(&blob.name);
    let names = 2 * blob.name.len() as u64 + OVERHEAD;
    let BlobKind::Tensor { dtype, shape } = &blob.kind else {
        let bytes = content.bytes_of(blob) + names;
        records.push(Record { key: blob.name.clone(), blob, elements: 0..0, holders, bytes });
        return Ok(());
    };
    encode::data_type(*dtype)?;
    let count = element_count(shape)?;
    let step = chunk_size.elements(count);
    let dims = 11 * shape.len() as u64;
    // An empty tensor has one chunk too: it keeps dtype and shape.
    for number in 0..count.div_ceil(step).max(1) {
        let elements = number * step..count.min((number + 1).saturating_mul(step));
        let values = match dtype {
            // What each string takes is not known: its share of what all of them do.
            DType::String => {
                let own = u128::from(content.bytes_of(blob)) * u128::from(elements.end - elements.start);
                let share = u64::try_from(own.div_ceil(u128::from(count.max(1)))).unwrap_or(u64::MAX);
                share.saturating_add(11 * (elements.end - elements.start))
            }
            dtype => encode::max_bytes(*dtype, elements.end - elements.start, holders),
        };
        let bytes = values.saturating_add(names + dims);
        records.push(Record { key: chunk_key(&blob.name, number), blob, elements, holders, bytes });
    }
    Ok(())
}

/// Two records of one key would be one lost.
fn check_keys(records: &[Record<'_>]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for record in records {
        if record.key.is_empty() {
            return Err(Error::invalid("a blob without a name cannot be saved in the caffe2 layout"));
        }
        if !seen.insert(&record.key) {
            return Err(Error::invalid(format!(
                "two blobs would be saved under one key key=`{}` blob=`{}`",
                record.key, record.blob.name
            )));
        }
    }
    Ok(())
}

impl Record<'_> {
    fn encode(&self, content: &Content<'_>) -> Result<Payload> {
        let (dtype, shape) = match &self.blob.kind {
            BlobKind::Tensor { dtype, shape } => (*dtype, shape),
            BlobKind::Bytes { type_name } => {
                return encode::opaque(&self.blob.name, type_name, content.read_blob(self.blob)?);
            }
        };
        let chunk = Chunk { name: &self.blob.name, dtype, shape, elements: self.elements.clone() };
        let Some(size) = dtype.size() else {
            let tensor = Tensor::new(dtype, shape.clone(), content.read_blob(self.blob)?)?;
            let strings = tensor.strings()?;
            let wanted = to_usize(self.elements.start)?..to_usize(self.elements.end)?;
            return encode::strings(&chunk, strings.get(wanted).unwrap_or_default().iter().copied());
        };
        let bytes = to_usize(self.elements.start)? * size..to_usize(self.elements.end)? * size;
        encode::tensor(&chunk, content.read(self.blob.storage, bytes)?, self.holders)
    }

    fn raw_bytes(&self, content: &Content<'_>) -> u64 {
        match &self.blob.kind {
            BlobKind::Tensor { dtype, .. } if *dtype != DType::String => {
                (self.elements.end - self.elements.start) * dtype.size().unwrap_or_default() as u64
            }
            _ if self.elements.start == 0 => content.bytes_of(self.blob),
            _ => 0,
        }
    }
}

/// Bytes of a value that is in pieces.
fn piece_of(value: &Payload, start: u64, into: &mut [u8]) -> Result<()> {
    let mut skip = to_usize(start)?;
    let mut left = into;
    for piece in value.pieces() {
        let from = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        let len = from.len().min(left.len());
        let (here, rest) = left.split_at_mut(len);
        here.copy_from_slice(from.get(..len).unwrap_or_default());
        left = rest;
    }
    if left.is_empty() { Ok(()) } else { Err(Error::internal("range outside a value")) }
}

/// Copies all records as they are, and tells how many bytes that were.
pub(in crate::checkpoint) fn copy_records(
    checkpoint: &Checkpoint,
    to: &Checkpoints,
    target: &Source,
) -> Result<u64> {
    begin(to, target)?;
    let db = checkpoint.db();
    let mut keys = Vec::new();
    let mut bytes = 0;
    let mut cursor = db.cursor()?;
    while let Some(key) = cursor.key() {
        keys.push(key.to_owned());
        bytes += cursor.value_len()?;
        cursor.next()?;
    }
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    let repeats = sorted.iter().zip(sorted.iter().skip(1)).any(|(a, b)| a == b);
    let is_sorted = to.driver().capabilities().order == Order::Ascending;
    if is_sorted && repeats {
        // Chunks without numbers, from before 2017: this store keeps one of each key, so they get numbers.
        let content = Content::of_checkpoint(checkpoint)?;
        return Ok(stage(to, &content, target)?.bytes);
    }
    let plan = WritePlan { records: keys.len() as u64, bytes, limits: share(to.options().limits) };
    let observer = &to.options().observer;
    observer.started(&to.label(target), bytes);
    let outcome = to.driver().write(target, &plan, &mut |transaction| {
        if is_sorted {
            for key in &sorted {
                let value = db.get(key)?.ok_or_else(|| crate::db::missing_record(key))?;
                observer.advanced(value.len() as u64);
                transaction.put(key, value.into())?;
            }
            return Ok(());
        }
        let mut cursor = db.cursor()?;
        while let Some(key) = cursor.key() {
            let key = key.to_owned();
            let value = cursor.value()?;
            observer.advanced(value.len() as u64);
            transaction.put(&key, value.into())?;
            cursor.next()?;
        }
        Ok(())
    });
    observer.finished();
    outcome.map(|()| bytes)
}
