//! [`Driver`] for packs, whatever store they are in.

use std::sync::Arc;

use ckpt_engine::Result;
use ckpt_engine::db::{Capabilities, Db, Driver, Records, Source, WriteBody, WritePlan};

use super::format;
use super::reader::PackDb;
use super::writer::PackWriter;
use crate::store::{Expected, Store};

/// What keys are expected to take in the index, for the bound that is told to the store.
const KEY_LEN: u64 = 256;

/// Dbs that are packs in a store.
#[derive(Debug)]
pub(crate) struct PackDriver<S> {
    store: S,
}

impl<S: Store> PackDriver<S> {
    /// Packs in `store`.
    pub(crate) fn new(store: S) -> Self {
        Self { store }
    }
}

impl<S: Store> Driver for PackDriver<S> {
    fn db_type(&self) -> &'static str {
        self.store.db_type()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { max_key_len: format::MAX_KEY_LEN, ..self.store.capabilities() }
    }

    fn write(&self, source: &Source, plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        let bytes = format::max_len(plan.records, KEY_LEN, plan.bytes);
        let writer = self.store.create(source, Expected { bytes, limits: plan.limits })?;
        let mut pack = PackWriter::new(writer)?;
        body(&mut pack)?;
        pack.finish()
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        Ok(Arc::new(PackDb::open(self.store.open(source)?)?))
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
