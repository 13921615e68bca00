//! Copy: record by record as they are stored, every chunk checked on the way.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Native;
use crate::blob::{Buffer, to_usize};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::opened::Opened;
use crate::db::{Limits, Payload, Read, Source, WritePlan};
use crate::error::{Error, Result, ResultExt};
use crate::format::codec;
use crate::format::keys::{self, RecordKey};
use crate::format::manifest::Located;
use crate::pipeline;

/// A record to copy.
struct Record<'a> {
    key: RecordKey,
    len: u64,
    /// Storage and place of each chunk in it.
    chunks: Vec<(usize, Located)>,
    native: &'a Native,
    opened: &'a Opened,
}

/// Copies all records as they are stored, and tells how many bytes that were.
pub(in crate::checkpoint) fn copy_records(
    native: &Native,
    opened: &Opened,
    limits: Limits,
    to: &Checkpoints,
    target: &Source,
) -> Result<u64> {
    let records = records_of(native, opened);
    let manifest = opened.db.get(keys::MANIFEST)?.ok_or_else(|| Error::corrupt("the manifest has gone"))?;
    let bytes = records.iter().map(|record| record.len).sum::<u64>() + manifest.len() as u64;
    let half = Limits { memory: limits.memory / 2, ..limits };
    let plan = WritePlan {
        records: records.len() as u64 + 1,
        bytes,
        limits: Limits { memory: half.memory, ..to.options().limits },
    };
    let observer = &to.options().observer;
    observer.started(&to.label(target), native.manifest().stored_bytes());
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
fn records_of<'a>(native: &'a Native, opened: &'a Opened) -> Vec<Record<'a>> {
    let mut records: BTreeMap<u32, Record<'_>> = BTreeMap::new();
    for (storage, entry) in native.manifest().storages.iter().enumerate() {
        for located in entry.located() {
            let record = records.entry(located.record).or_insert_with(|| Record {
                key: keys::record_key(located.record),
                len: 0,
                chunks: Vec::new(),
                native,
                opened,
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
        let one = Limits { threads: 1, ..self.opened.options.limits };
        let reads = vec![Read { key: &self.key, range: 0..self.len, into: Some(value.as_mut()?) }];
        self.opened.db.read(reads, &one, &|_, stored| self.check(stored.context(|| self.describe())?))?;
        Ok(value.into())
    }

    /// Which blobs a record holds, for errors.
    fn describe(&self) -> String {
        let first = self.chunks.first().map(|(storage, located)| self.native.describe(*storage, located));
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
            codec::check(chunk, located.chunk.crc32).context(|| self.native.describe(*storage, located))?;
        }
        Ok(())
    }
}
