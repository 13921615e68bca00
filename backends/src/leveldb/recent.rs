//! What was put last: the records that are in logs and not yet in tables. They are in memory while the database is open, as they are
//! for LevelDB.

use std::collections::BTreeMap;

use bytes::Bytes;
use ckpt_engine::{Result, ResultExt};

use super::dir::Dir;
use super::format::log::{End, LogReader};
use super::format::{Stored, batch};
use super::version::log_name;

/// Keys in order, and the newest that is known of each from the logs.
#[derive(Debug, Default)]
pub(super) struct Recent {
    records: Vec<(Bytes, Stored)>,
}

impl Recent {
    /// Reads these logs.
    pub(super) fn load(dir: &Dir, logs: &[u64]) -> Result<Self> {
        let mut records = BTreeMap::new();
        for number in logs {
            let name = log_name(*number);
            let context = || format!("cannot read log path=`{}`", dir.path().join(&name).display());
            let mut log = LogReader::new(End::Torn);
            dir.read_log(&name, &mut |block| {
                log.read(block, &mut |record| {
                    batch::read(&record, &mut |key, stored| put(&mut records, key, stored))
                })
                .context(context)
            })?;
            log.finish().context(context)?;
        }
        Ok(Self { records: records.into_iter().collect() })
    }

    /// What a key was set to.
    pub(super) fn find(&self, key: &[u8]) -> Option<&Stored> {
        self.get(self.lower_bound(key)).filter(|(found, _)| found == key).map(|(_, stored)| stored)
    }

    /// The number of the first key that is not less.
    pub(super) fn lower_bound(&self, key: &[u8]) -> usize {
        self.records.partition_point(|(other, _)| other < key)
    }

    /// The key of this number, in order.
    pub(super) fn get(&self, number: usize) -> Option<&(Bytes, Stored)> {
        self.records.get(number)
    }
}

fn put(records: &mut BTreeMap<Bytes, Stored>, key: Bytes, stored: Stored) {
    // The key that is there stays, so it must not keep a batch in memory whose value is replaced.
    let first = records.remove(&key);
    records.insert(key, Stored::newer(first, stored));
}
