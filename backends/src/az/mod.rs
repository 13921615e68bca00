//! db_type `az`: one pack per db, a blob in Azure Blob Storage.
//!
//! The prefix is `container/path` or `az://container/path`. Credentials and endpoint come from the `AZURE_*` variables. Settings:
//! `concurrency` (requests under way at once, 16) and `part_bytes` (the least length of a part of an upload, 8 MiB).

use ckpt_engine::Result;
use ckpt_engine::db::DriverOptions;

use crate::pack::PackDriver;
use crate::store::object::{ObjectStores, Provider};

/// The backend's name.
pub(crate) const DB_TYPE: &str = "az";

/// Makes the driver.
pub(crate) fn driver(options: DriverOptions) -> Result<PackDriver<ObjectStores>> {
    Ok(PackDriver::new(ObjectStores::new(Provider::Az, options)?))
}
