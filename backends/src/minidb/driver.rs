//! The driver of db_type `minidb`.

use std::sync::Arc;

use ckpt_engine::db::{
    Capabilities, Db, Driver, DriverOptions, Layout, Order, Records, Source, WriteBody, WritePlan,
};
use ckpt_engine::{Result, ResultExt};

use super::format::{HEADER_LEN, MAX_LEN};
use super::reader::MiniDb;
use super::writer::MiniWriter;
use crate::store::fs::FsStore;
use crate::store::{Expected, Store};

/// The backend's name.
pub(crate) const DB_TYPE: &str = "minidb";

/// What a key is expected to take, for the bound that is told to the store.
const KEY_LEN: u64 = 256;

/// Files of entries.
#[derive(Debug)]
pub(crate) struct MiniDriver {
    store: FsStore,
}

impl MiniDriver {
    /// It has no settings.
    pub(crate) fn from_options(options: DriverOptions) -> Result<Self> {
        options.finish(DB_TYPE)?;
        Ok(Self { store: FsStore::new(DB_TYPE) })
    }
}

impl Driver for MiniDriver {
    fn db_type(&self) -> &'static str {
        DB_TYPE
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_key_len: MAX_LEN as usize,
            max_value_len: u64::from(MAX_LEN),
            order: Order::AsPut,
            layout: Layout::Caffe2,
            ..self.store.capabilities()
        }
    }

    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        let entries = plan.records.saturating_mul(HEADER_LEN as u64 + KEY_LEN);
        let bytes = plan.bytes.saturating_add(entries);
        let mut writer = MiniWriter::new(self.store.create(source, Expected { bytes, limits: plan.limits })?);
        body(&mut writer)?;
        writer.finish()
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        let opened = self.store.open(source)?;
        let db = MiniDb::open(opened).context(|| format!("cannot open minidb file path=`{source}`"))?;
        Ok(Arc::new(db))
    }

    fn exists(&self, source: &Source) -> Result<bool> {
        self.store.exists(source)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.store.list(prefix)
    }

    fn destroy(&self, source: &Source) -> Result<()> {
        self.store.delete(source)
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        self.store.records(prefix)
    }
}
