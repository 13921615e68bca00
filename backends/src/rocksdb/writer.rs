//! Writing: sorted tables, then one ingestion.

use std::path::{Path, PathBuf};

use ::rocksdb::{DB, Options, SstFileWriter};
use ckpt_engine::db::{Payload, Transaction, check_order};
use ckpt_engine::{Error, Result};

use super::config::{Config, MAX_KEY_LEN, MAX_VALUE_LEN, ingest_options};
use super::error;

/// Where the tables lie until they are ingested, within the staged directory.
const TABLES: &str = "tables";

/// One write of a db into an empty directory.
pub(super) struct RocksWriter<'a> {
    dir: &'a Path,
    config: &'a Config,
    options: &'a Options,
    table: Option<SstFileWriter<'a>>,
    tables: Vec<PathBuf>,
    last_key: Vec<u8>,
    /// Where the pieces of a value are put together: RocksDB takes it in one.
    value: Vec<u8>,
}

impl<'a> RocksWriter<'a> {
    /// Writes into `dir`, which is empty and belongs to nobody else.
    pub(super) fn new(dir: &'a Path, config: &'a Config, options: &'a Options) -> Result<Self> {
        let tables = dir.join(TABLES);
        std::fs::create_dir(&tables).map_err(|error| {
            Error::io(format!("cannot create directory path=`{}`", tables.display()), error)
        })?;
        Ok(Self {
            dir,
            config,
            options,
            table: None,
            tables: Vec::new(),
            last_key: Vec::new(),
            value: Vec::new(),
        })
    }

    /// Makes the database of all that was put.
    pub(super) fn finish(mut self) -> Result<()> {
        self.finish_table()?;
        let failed = |error| error::map("cannot create database", self.dir, error);
        let db = DB::open(self.options, self.dir).map_err(failed)?;
        if !self.tables.is_empty() {
            db.ingest_external_file_opts(&ingest_options(), self.tables)
                .map_err(|error| error::map("cannot ingest tables", self.dir, error))?;
        }
        db.cancel_all_background_work(true);
        drop(db);
        remove_what_holds_nothing(self.dir)
    }

    fn finish_table(&mut self) -> Result<()> {
        match self.table.take() {
            Some(mut table) => {
                table.finish().map_err(|error| error::map("cannot finish table", self.dir, error))
            }
            None => Ok(()),
        }
    }

    fn begin_table(&mut self) -> Result<SstFileWriter<'a>> {
        let path = self.dir.join(TABLES).join(format!("{:06}.sst", self.tables.len()));
        let table = SstFileWriter::create(self.options);
        table.open(&path).map_err(|error| error::map("cannot create table", &path, error))?;
        self.tables.push(path);
        Ok(table)
    }
}

impl Transaction for RocksWriter<'_> {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        check_order(Some(&self.last_key), key)?;
        if key.len() > MAX_KEY_LEN || value.len() as u64 > MAX_VALUE_LEN {
            return Err(Error::invalid(format!(
                "record is too large for RocksDB key_bytes=`{}` value_bytes=`{}`",
                key.len(),
                value.len()
            )));
        }
        let mut table = match self.table.take() {
            Some(table) => table,
            None => self.begin_table()?,
        };
        let value = match value.pieces() {
            [] => &[][..],
            [piece] => piece,
            pieces => {
                self.value.clear();
                pieces.iter().for_each(|piece| self.value.extend_from_slice(piece));
                &self.value
            }
        };
        table.put(key, value).map_err(|error| error::map("cannot write table", self.dir, error))?;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let is_full = table.file_size() >= self.config.table_bytes;
        self.table = Some(table);
        if is_full { self.finish_table() } else { Ok(()) }
    }
}

/// What opening left behind and no reader needs: the emptied folder of the tables and the lock.
fn remove_what_holds_nothing(dir: &Path) -> Result<()> {
    let failed = |path: PathBuf| {
        move |error| Error::io(format!("cannot remove what is not needed path=`{}`", path.display()), error)
    };
    // Moved by linking: the old names are gone unless the file system could only copy.
    let tables = dir.join(TABLES);
    std::fs::remove_dir_all(&tables).map_err(failed(tables))?;
    let lock = dir.join("LOCK");
    std::fs::remove_file(&lock).map_err(failed(lock))
}
