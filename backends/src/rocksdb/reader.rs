//! Reading: the database read-only, records fetched once however many ranges of them are wanted, by RocksDB where [`super::direct`]
//! cannot.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ::rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use ::rocksdb::{DB, DBPinnableSlice};
use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink};

use super::config::{self, Config};
use super::cursor::RocksCursor;
use super::direct::DirectTables;
use super::{error, logs};
use crate::store::wanted::Wanted;
use crate::store::{fs, parallel};

/// Reads under way at once.
const THREADS: usize = 8;

/// Openings that are tried anew because another database took the name.
const MAX_REPLACED: u32 = 1000;

/// An open database.
pub(super) struct RocksDb {
    db: DB,
    path: PathBuf,
    pub(super) direct: DirectTables,
    /// By RocksDB.
    bytes_read: AtomicU64,
}

impl RocksDb {
    pub(super) fn open(config: &Config, path: PathBuf) -> Result<Self> {
        let mut replaced = 0;
        loop {
            let before = fs::identity(&path);
            let opened = Self::open_once(config, &path);
            // Files of two databases must not be mixed, and those of an older one are gone.
            if replaced == MAX_REPLACED || before == fs::identity(&path) {
                return opened;
            }
            replaced += 1;
        }
    }

    fn open_once(config: &Config, path: &Path) -> Result<Self> {
        let logs = logs::check(path)?;
        let is_cached = fs::is_mostly_cached(path, "sst");
        let options = config.read_options(!is_cached);
        let (db, blocks) = counted(|| DB::open_for_read_only(&options, path, false));
        // A file system without direct reads says so here.
        let (db, blocks) = match db {
            Err(_) if !is_cached => {
                counted(|| DB::open_for_read_only(&config.read_options(false), path, false))
            }
            db => (db, blocks),
        };
        let db = db.map_err(|error| error::map("cannot open database", path, error))?;
        let direct = DirectTables::open(&db, path);
        Ok(Self { db, path: path.to_owned(), direct, bytes_read: AtomicU64::new(logs + blocks) })
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
        let records = self.direct.read(Wanted::group(reads)?, limits, sink)?;
        // RocksDB reads a block at once and copies it once more.
        let largest = records.iter().map(Wanted::longest).max().unwrap_or(0);
        let memory = usize::try_from(largest).unwrap_or(usize::MAX).saturating_mul(2).max(1);
        let threads = THREADS.max(limits.threads).min(limits.memory / memory).max(1);
        parallel::for_each(threads, records, |(), record| {
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
        self.bytes_read.load(Ordering::Relaxed) + self.direct.bytes_read()
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
