//! Writing: sorted tables, then a manifest that names them.

use std::io::IoSlice;

use ckpt_engine::db::{Payload, Transaction, check_order};
use ckpt_engine::{Error, ErrorKind, Result};

use super::config::{Config, MAX_KEY_LEN, MAX_VALUE_LEN};
use super::format::edit::{LEVELS, NewTable, VersionEdit};
use super::format::{BYTEWISE, VALUE, internal_key, log};
use super::table_writer::TableWriter;
use super::version::CURRENT;
use crate::store::fs::StagedDir;

/// The number of the manifest. All files of a database are counted together.
const MANIFEST: u64 = 1;

/// One write of a db into an empty directory.
pub(super) struct LevelWriter<'a> {
    dir: &'a StagedDir,
    config: &'a Config,
    table: Option<TableWriter<'a>>,
    tables: Vec<NewTable>,
    last_key: Vec<u8>,
    /// The sequence number of the last record.
    sequence: u64,
    /// A write failed: a part of the records may be lost and the rest must not be published.
    failed: bool,
}

impl<'a> LevelWriter<'a> {
    /// Writes into `dir`, which is empty.
    pub(super) fn new(dir: &'a StagedDir, config: &'a Config) -> Self {
        let (table, tables, last_key) = (None, Vec::new(), Vec::new());
        Self { dir, config, table, tables, last_key, sequence: 0, failed: false }
    }

    /// Makes the database of all that was put.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.failed {
            return Err(Error::new(ErrorKind::Closed, "write failed before, so it cannot be committed"));
        }
        self.finish_table()?;
        let edit = VersionEdit {
            comparator: Some(BYTEWISE.to_vec()),
            // There is none: LevelDB says so of a database that it repaired.
            log: Some(0),
            previous_log: Some(0),
            next_file: Some(self.next_number()),
            last_sequence: Some(self.sequence),
            deleted: Vec::new(),
            new: self.tables,
        };
        let mut manifest = Vec::new();
        log::append(&mut manifest, &edit.encode());
        let name = format!("MANIFEST-{MANIFEST:06}");
        self.dir.create_file(&name)?.write(&mut [IoSlice::new(&manifest)])?;
        let current = format!("{name}\n");
        self.dir.create_file(CURRENT)?.write(&mut [IoSlice::new(current.as_bytes())])
    }

    fn next_number(&self) -> u64 {
        MANIFEST + 1 + self.tables.len() as u64
    }

    fn append(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        check_order(Some(&self.last_key), key)?;
        if key.len() > MAX_KEY_LEN || value.len() as u64 > MAX_VALUE_LEN {
            return Err(Error::invalid(format!(
                "record is too large for LevelDB key_bytes=`{}` value_bytes=`{}`",
                key.len(),
                value.len()
            )));
        }
        let mut table = match self.table.take() {
            Some(table) => table,
            None => {
                let name = format!("{:06}.ldb", self.next_number());
                TableWriter::new(self.dir.create_file(&name)?, self.config)
            }
        };
        self.sequence += 1;
        table.put(internal_key(key, self.sequence, VALUE), value)?;
        let is_full = table.is_full();
        self.table = Some(table);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if is_full { self.finish_table() } else { Ok(()) }
    }

    fn finish_table(&mut self) -> Result<()> {
        let Some(table) = self.table.take() else { return Ok(()) };
        let finished = table.finish()?;
        self.tables.push(NewTable {
            // The tables follow each other, so they may be on any level but the first. LevelDB moves tables from a level that has too
            // many bytes to the next one; from the last there is none.
            level: LEVELS - 1,
            number: self.next_number(),
            bytes: finished.bytes,
            smallest: finished.smallest,
            largest: finished.largest,
        });
        Ok(())
    }
}

impl Transaction for LevelWriter<'_> {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        let appended = self.append(key, &value);
        self.failed |= appended.is_err();
        appended
    }
}
