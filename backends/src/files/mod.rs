//! db_type `files`: one pack per db, a file on a local or network file system.
//!
//! The prefix is a path. A db is the file `<prefix>/<name>`; a write is staged beside it and commits by a rename.

use ckpt_engine::Result;
use ckpt_engine::db::DriverOptions;

use crate::pack::PackDriver;
use crate::store::fs::FsStore;

/// The backend's name.
pub(crate) const DB_TYPE: &str = "files";

/// Makes the driver. It has no settings.
pub(crate) fn driver(options: DriverOptions) -> Result<PackDriver<FsStore>> {
    options.finish(DB_TYPE)?;
    Ok(PackDriver::new(FsStore::new(DB_TYPE)))
}
