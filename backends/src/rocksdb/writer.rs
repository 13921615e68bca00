//! Writing: sorted tables, then one ingestion.

use std::path::{Path, PathBuf};

use ::rocksdb::DB;
use ckpt_engine::db::{WriteBody, WritePlan};
use ckpt_engine::{Error, Result};

use super::config::{Config, ingest_options};
use super::error;
use super::table::{FAMILY, TABLES};
use crate::store::fs::StagedDir;
use crate::table::TablesWriter;

/// Writes a db into `staged`, which is empty.
pub(super) fn write(
    staged: &StagedDir,
    config: &Config,
    plan: &WritePlan,
    body: &mut WriteBody<'_>,
) -> Result<()> {
    let dir = staged.path();
    let tables = dir.join(TABLES);
    std::fs::create_dir(&tables)
        .map_err(|error| Error::io(format!("cannot create directory path=`{}`", tables.display()), error))?;
    let options = config.tables();
    let mut writer = TablesWriter::new(staged, &options, plan);
    body(&mut writer)?;
    let tables: Vec<PathBuf> =
        (0..writer.finish()?.len()).map(|number| dir.join((FAMILY.table_name)(number))).collect();
    let db = DB::open(&config.write_options(), dir)
        .map_err(|error| error::map("cannot create database", dir, error))?;
    if !tables.is_empty() {
        db.ingest_external_file_opts(&ingest_options(), tables)
            .map_err(|error| error::map("cannot ingest tables", dir, error))?;
    }
    db.cancel_all_background_work(true);
    drop(db);
    remove_what_holds_nothing(dir)
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
