//! Reading: the database read-only, records fetched once however many ranges of them are wanted.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use ::rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use ::rocksdb::{DB, DBPinnableSlice};
use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink};

use super::config::{self, Config};
use super::cursor::RocksCursor;
use super::{error, logs};
use crate::store::wanted::Wanted;
use crate::store::{fs, parallel};

/// Reads under way at once.
const THREADS: usize = 8;

/// An open database.
pub(super) struct RocksDb {
    db: DB,
    path: PathBuf,
    bytes_read: AtomicU64,
}

impl RocksDb {
    pub(super) fn open(config: &Config, path: PathBuf) -> Result<Self> {
        let logs = logs::check(&path)?;
        let is_cached = fs::is_mostly_cached(&path, "sst");
        let options = config.read_options(!is_cached);
        let (db, blocks) = counted(|| DB::open_for_read_only(&options, &path, false));
        // A file system without direct reads says so here.
        let (db, blocks) = match db {
            Err(_) if !is_cached => {
                counted(|| DB::open_for_read_only(&config.read_options(false), &path, false))
            }
            db => (db, blocks),
        };
        let db = db.map_err(|error| error::map("cannot open database", &path, error))?;
        Ok(Self { db, path, bytes_read: AtomicU64::new(logs + blocks) })
    }

    fn fetch(&self, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>> {
        let (value, bytes) = counted(|| self.db.get_pinned_opt(key, &config::read_options()));
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        value.map_err(|error| error::map("cannot read database", &self.path, error))
    }
}

impl Db for RocksDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.fetch(key)?.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        // RocksDB reads a block at once and copies it once more.
        let largest = reads.iter().map(|read| read.range.end.saturating_sub(read.range.start)).max();
        let memory =
            usize::try_from(largest.unwrap_or_default()).unwrap_or(usize::MAX).saturating_mul(2).max(1);
        let threads = THREADS.max(limits.threads).min(limits.memory / memory).max(1);
        parallel::for_each(threads, Wanted::group(reads)?, |(), record| {
            let value = self.fetch(record.key);
            record.hand_out(&value, sink)
        })
    }

    fn map(&self, _first: &[u8], _last: &[u8]) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(RocksCursor::new(&self.db, &self.path)?))
    }

    fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for RocksDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksDb").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Runs `work` and tells how many bytes of blocks RocksDB read for it, by its own count for this thread.
fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    set_perf_stats(PerfStatsLevel::EnableCount);
    let mut context = PerfContext::default();
    context.reset();
    let done = work();
    let bytes = context.metric(PerfMetric::BlockReadByte);
    set_perf_stats(PerfStatsLevel::Disable);
    (done, bytes)
}
