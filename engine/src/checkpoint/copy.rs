//! Copy: record by record from one store to another, checking every chunk on the way.
//!
//! Records are copied as they are stored, nothing is decoded or encoded again, and the manifest keeps its id: the copy is the
//! same save. So a `files` db and its copy in an object store hold the same bytes.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;

use super::{Checkpoint, Checkpoints};
use crate::blob::{Buffer, to_usize};
use crate::db::{Limits, Payload, Read, Source, WritePlan};
use crate::error::{Error, Result, ResultExt};
use crate::format::codec;
use crate::format::keys::{self, RecordKey};
use crate::format::manifest::Located;
use crate::pipeline;

/// Whether a copy had something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// It was copied.
    Copied,
    /// It was there already, whole and of the same save.
    Present,
}

/// What a copy did.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// The copy's name for people.
    pub db: String,
    /// Whether anything was written.
    pub outcome: CopyOutcome,
    /// How many blobs it holds.
    pub blobs: u64,
    /// Their raw bytes.
    pub bytes: u64,
    /// What was put.
    pub bytes_written: u64,
    /// From the call to the commit.
    pub seconds: f64,
}

/// A record to copy.
struct Record<'a> {
    key: RecordKey,
    len: u64,
    /// Storage and place of each chunk in it.
    chunks: Vec<(usize, Located)>,
    from: &'a Checkpoint,
}

pub(super) fn copy(
    from: &Checkpoints,
    source: Source,
    to: &Checkpoints,
    target: Source,
) -> Result<CopyReport> {
    let started = Instant::now();
    let db = to.label(&target);
    let checkpoint = from.open_source(source)?;
    let manifest = checkpoint.manifest();
    let mut report = CopyReport {
        db,
        outcome: CopyOutcome::Present,
        blobs: manifest.blobs.len() as u64,
        bytes: manifest.bytes(),
        bytes_written: 0,
        seconds: 0.0,
    };
    if !is_present(&checkpoint, to, &target)? {
        report.bytes_written = copy_records(&checkpoint, from.request_limits(), to, &target)
            .context(|| format!("cannot copy db `{}` to `{}`", checkpoint.label(), report.db))?;
        report.outcome = CopyOutcome::Copied;
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Whether the target holds the same save, and all of it.
fn is_present(checkpoint: &Checkpoint, to: &Checkpoints, target: &Source) -> Result<bool> {
    if !to.driver().exists(target).context(|| format!("db `{}`", to.label(target)))? {
        return Ok(false);
    }
    // What is there and cannot be read is no copy; the write that follows replaces it, or says why it cannot.
    let same =
        to.open_source(target.clone()).is_ok_and(|there| there.manifest().id == checkpoint.manifest().id);
    Ok(same && to.verify_source(target)?.is_ok())
}

fn copy_records(checkpoint: &Checkpoint, limits: Limits, to: &Checkpoints, target: &Source) -> Result<u64> {
    let records = records_of(checkpoint);
    let manifest =
        checkpoint.db().get(keys::MANIFEST)?.ok_or_else(|| Error::corrupt("the manifest has gone"))?;
    let bytes = records.iter().map(|record| record.len).sum::<u64>() + manifest.len() as u64;
    let half = Limits { memory: limits.memory / 2, ..limits };
    let plan = WritePlan {
        records: records.len() as u64 + 1,
        bytes,
        limits: Limits { memory: half.memory, ..to.options().limits },
    };
    let observer = &to.options().observer;
    observer.started(&to.label(target), checkpoint.manifest().stored_bytes());
    let outcome = to.driver().write(target, &plan, &mut |transaction| {
        pipeline::ordered(
            &records,
            half,
            |record| usize::try_from(record.len).unwrap_or(usize::MAX),
            Record::read,
            |index, value| {
                let record = records.get(index).ok_or_else(|| Error::internal("no such record"))?;
                transaction.put(&record.key, Payload::from(value))?;
                observer.advanced(record.len);
                Ok(())
            },
        )?;
        transaction.put(keys::MANIFEST, Payload::from(manifest.clone()))
    });
    observer.finished();
    outcome.map(|()| bytes)
}

/// The records that the manifest's chunks lie in, in order.
fn records_of(checkpoint: &Checkpoint) -> Vec<Record<'_>> {
    let mut records: BTreeMap<u32, Record<'_>> = BTreeMap::new();
    for (storage, entry) in checkpoint.manifest().storages.iter().enumerate() {
        for located in entry.located() {
            let record = records.entry(located.record).or_insert_with(|| Record {
                key: keys::record_key(located.record),
                len: 0,
                chunks: Vec::new(),
                from: checkpoint,
            });
            record.len = record.len.max(located.stored.end);
            record.chunks.push((storage, located));
        }
    }
    records.into_values().collect()
}

impl Record<'_> {
    /// The record's value, every chunk of it checked.
    fn read(&self) -> Result<Bytes> {
        // The length is the manifest's word: this memory is not touched before the store has found that there is so much to read.
        let mut value = Buffer::zeroed(to_usize(self.len)?)?;
        let one = Limits { threads: 1, ..*self.from.limits() };
        let reads = vec![Read { key: &self.key, range: 0..self.len, into: Some(value.as_mut()?) }];
        self.from.db().read(reads, &one, &|_, stored| self.check(stored.context(|| self.describe())?))?;
        Ok(value.into())
    }

    /// Which blobs a record holds, for errors.
    fn describe(&self) -> String {
        let first = self.chunks.first().map(|(storage, located)| self.from.describe(*storage, located));
        let first = first.unwrap_or_default();
        match self.chunks.len().saturating_sub(1) {
            0 => first,
            more => format!("{first} or one of {more} more in its record"),
        }
    }

    fn check(&self, stored: &[u8]) -> Result<()> {
        for (storage, located) in &self.chunks {
            let bounds = to_usize(located.stored.start)?..to_usize(located.stored.end)?;
            let chunk = stored.get(bounds).ok_or_else(|| Error::internal("chunk outside its record"))?;
            codec::check(chunk, located.chunk.crc32).context(|| self.from.describe(*storage, located))?;
        }
        Ok(())
    }
}
