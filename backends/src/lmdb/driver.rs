//! The driver of db_type `lmdb`.

use std::path::Path;
use std::sync::Arc;

use ckpt_engine::db::{
    Capabilities, Db, Driver, DriverOptions, Layout, Locality, Order, Records, Source, Values, WriteBody,
    WritePlan,
};
use ckpt_engine::{Error, Result};

use super::config::{DB_TYPE, MAX_KEY_LEN, MAX_VALUE_LEN};
use super::reader::LmdbDb;
use super::writer::LmdbWriter;
use crate::store::fs::{self, FsRecords, StagedDir};

/// The file of an environment.
pub(super) const DATA: &str = "data.mdb";

/// LMDB environments in directories.
#[derive(Debug)]
pub(crate) struct LmdbDriver;

impl LmdbDriver {
    /// There are no settings.
    pub(crate) fn from_options(options: DriverOptions) -> Result<Self> {
        options.finish(DB_TYPE)?;
        Ok(Self)
    }

    fn is_there(path: &Path) -> Result<bool> {
        fs::dir_db_exists(path, DATA, "an LMDB environment")
    }
}

impl Driver for LmdbDriver {
    fn db_type(&self) -> &'static str {
        DB_TYPE
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_key_len: MAX_KEY_LEN,
            max_value_len: MAX_VALUE_LEN,
            locality: Locality::Local,
            values: Values::MappedSingly,
            order: Order::Ascending,
            layout: Layout::Native,
        }
    }

    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        let staged = StagedDir::create(&fs::db_path(source.prefix(), source.name())?)?;
        let mut writer = LmdbWriter::new(&staged, plan)?;
        body(&mut writer)?;
        writer.finish()?;
        staged.publish()
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        let path = fs::db_path(source.prefix(), source.name())?;
        if !Self::is_there(&path)? {
            return Err(Error::not_found(format!("no such db path=`{}`", path.display())));
        }
        Ok(Arc::new(LmdbDb::open(&path.join(DATA))?))
    }

    fn exists(&self, source: &Source) -> Result<bool> {
        Self::is_there(&fs::db_path(source.prefix(), source.name())?)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        fs::list_dir_dbs(Path::new(prefix), DATA)
    }

    fn destroy(&self, source: &Source) -> Result<()> {
        fs::destroy_dir(&fs::db_path(source.prefix(), source.name())?)
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(FsRecords::new(prefix)))
    }
}
