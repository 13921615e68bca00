//! Writing a db into tables that follow each other.

use ckpt_engine::db::{Payload, Transaction, WritePlan, check_order};
use ckpt_engine::{Error, ErrorKind, Result};

use super::writer::TableWriter;
use super::{Finished, TableOptions, VALUE, internal_key};
use crate::store::Expected;
use crate::store::fs::StagedDir;

/// One write of a db.
#[derive(Debug)]
pub(crate) struct TablesWriter<'a> {
    dir: &'a StagedDir,
    options: &'a TableOptions,
    plan: WritePlan,
    table: Option<TableWriter<'a>>,
    tables: Vec<Finished>,
    last_key: Vec<u8>,
    records: u64,
    /// The bytes of values that were put.
    value_bytes: u64,
    /// A write failed: a part of the records may be lost and the rest must not be published.
    failed: bool,
}

impl<'a> TablesWriter<'a> {
    /// Writes into `dir`.
    pub(crate) fn new(dir: &'a StagedDir, options: &'a TableOptions, plan: &WritePlan) -> Self {
        let (table, tables, last_key) = (None, Vec::new(), Vec::new());
        let plan = *plan;
        Self { dir, options, plan, table, tables, last_key, records: 0, value_bytes: 0, failed: false }
    }

    /// How many records were put.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// The tables with all that was put, in order. Not durable yet.
    pub(crate) fn finish(mut self) -> Result<Vec<Finished>> {
        if self.failed {
            return Err(Error::new(ErrorKind::Closed, "write failed before, so it cannot be committed"));
        }
        self.finish_table()?;
        Ok(self.tables)
    }

    fn append(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        check_order(Some(&self.last_key), key)?;
        let family = self.options.family;
        if key.len() > family.max_key_len || value.len() as u64 > family.max_value_len {
            return Err(Error::invalid(format!(
                "record is too large for {} key_bytes=`{}` value_bytes=`{}`",
                family.name,
                key.len(),
                value.len()
            )));
        }
        let mut table = match self.table.take() {
            Some(table) => table,
            None => self.begin_table()?,
        };
        self.records += 1;
        self.value_bytes += value.len() as u64;
        let sequence = if family.is_sequenced { self.records } else { 0 };
        table.put(internal_key(key, sequence, VALUE), value)?;
        let is_full = table.is_full();
        self.table = Some(table);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if is_full { self.finish_table() } else { Ok(()) }
    }

    fn begin_table(&self) -> Result<TableWriter<'a>> {
        let left = self.plan.bytes.saturating_sub(self.value_bytes);
        let expected = Expected { bytes: left.min(self.options.table_bytes), limits: self.plan.limits };
        let name = (self.options.family.table_name)(self.tables.len());
        Ok(TableWriter::new(self.dir.create_file(&name, expected)?, self.options))
    }

    fn finish_table(&mut self) -> Result<()> {
        let Some(table) = self.table.take() else { return Ok(()) };
        self.tables.push(table.finish()?);
        Ok(())
    }
}

impl Transaction for TablesWriter<'_> {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        let appended = self.append(key, &value);
        self.failed |= appended.is_err();
        appended
    }
}
