//! The driver of db_type `leveldb`.

use std::path::Path;
use std::sync::Arc;

use ckpt_engine::Result;
use ckpt_engine::db::{
    Capabilities, Db, Driver, DriverOptions, Layout, Locality, Order, Records, Source, Values, WriteBody,
    WritePlan,
};

use super::config::{self, DB_TYPE, MAX_KEY_LEN, MAX_VALUE_LEN};
use super::format::edit::looks_like_rocksdb;
use super::reader::LevelDb;
use super::version::CURRENT;
use super::writer;
use crate::store::fs::{self, FsRecords, StagedDir};
use crate::table::TableOptions;

/// A file that RocksDB makes and LevelDB does not. Both make the file `CURRENT`.
const ROCKSDB: &str = "IDENTITY";

/// LevelDB databases in directories.
#[derive(Debug)]
pub(crate) struct LevelDriver {
    tables: TableOptions,
}

impl LevelDriver {
    /// With the settings `block_bytes`, `table_bytes` and `compression`.
    pub(crate) fn from_options(options: DriverOptions) -> Result<Self> {
        Ok(Self { tables: config::tables(options)? })
    }
}

impl Driver for LevelDriver {
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
            layout: Layout::Caffe2,
        }
    }

    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        let staged = StagedDir::create(&fs::db_path(source.prefix(), source.name())?)?;
        writer::write(&staged, &self.tables, plan, body)?;
        staged.publish()
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        Ok(Arc::new(LevelDb::open(&fs::db_path(source.prefix(), source.name())?)?))
    }

    fn exists(&self, source: &Source) -> Result<bool> {
        let path = fs::db_path(source.prefix(), source.name())?;
        if !fs::dir_db_exists(&path, CURRENT, "a LevelDB database")? {
            return Ok(false);
        }
        if fs::file_exists(&path.join(ROCKSDB))? {
            return Err(looks_like_rocksdb(&format!("file path=`{}`", path.join(ROCKSDB).display())));
        }
        Ok(true)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in fs::list_dir_dbs(Path::new(prefix), CURRENT)? {
            if !fs::file_exists(&Path::new(prefix).join(&name).join(ROCKSDB))? {
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
