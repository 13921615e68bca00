//! The driver of db_type `rocksdb`.

use std::path::Path;
use std::sync::Arc;

use ckpt_engine::db::{
    Capabilities, Db, Driver, DriverOptions, Layout, Locality, Order, Records, Source, Values, WriteBody,
    WritePlan,
};
use ckpt_engine::{Error, Result};

use super::config::{Config, DB_TYPE, MAX_KEY_LEN, MAX_VALUE_LEN};
use super::reader::RocksDb;
use super::writer;
use crate::store::fs::{self, FsRecords, StagedDir};

/// The file that a RocksDB directory always has: it names the current manifest.
const CURRENT: &str = "CURRENT";

/// What tells it from a LevelDB directory: its id, and the options that it was written with.
const IDENTITY: &str = "IDENTITY";
const OPTIONS: &str = "OPTIONS-";

/// RocksDB databases in directories.
#[derive(Debug)]
pub(crate) struct RocksDriver {
    config: Config,
}

impl RocksDriver {
    /// With the settings `block_bytes` and `table_bytes`.
    pub(crate) fn from_options(options: DriverOptions) -> Result<Self> {
        Ok(Self { config: Config::from_options(options)? })
    }

    fn is_there(path: &Path) -> Result<bool> {
        fs::dir_db_exists(path, CURRENT, "a RocksDB database")
    }
}

impl Driver for RocksDriver {
    fn db_type(&self) -> &'static str {
        DB_TYPE
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_key_len: MAX_KEY_LEN,
            max_value_len: MAX_VALUE_LEN,
            locality: Locality::Local,
            values: Values::Copied,
            order: Order::Ascending,
            layout: Layout::Native,
        }
    }

    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        let staged = StagedDir::create(&fs::db_path(source.prefix(), source.name())?)?;
        writer::write(&staged, &self.config, plan, body)?;
        staged.publish()
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        let path = fs::db_path(source.prefix(), source.name())?;
        if !Self::is_there(&path)? {
            return Err(Error::not_found(format!("no such db path=`{}`", path.display())));
        }
        Ok(Arc::new(RocksDb::open(&self.config, path)?))
    }

    fn exists(&self, source: &Source) -> Result<bool> {
        Self::is_there(&fs::db_path(source.prefix(), source.name())?)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in fs::list_dir_dbs(Path::new(prefix), CURRENT)? {
            // A LevelDB database has that file too.
            let path = Path::new(prefix).join(&name);
            if fs::file_exists(&path.join(IDENTITY))?
                || fs::list_files(&path)?.iter().any(|file| file.starts_with(OPTIONS))
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn destroy(&self, source: &Source) -> Result<()> {
        fs::destroy_dir(&fs::db_path(source.prefix(), source.name())?)
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(FsRecords::new(prefix)))
    }
}
