//! db_type `gs`: one pack per db, an object in Google Cloud Storage.
//!
//! The prefix is `bucket/path` or `gs://bucket/path`. Credentials and endpoint come from the `GOOGLE_*` variables. Settings:
//! `concurrency` (requests under way at once, 16) and `part_bytes` (the least length of a part of an upload, 8 MiB).

use ckpt_engine::Result;
use ckpt_engine::db::DriverOptions;

use crate::pack::PackDriver;
use crate::store::object::{ObjectStores, Provider};

/// The backend's name.
pub(crate) const DB_TYPE: &str = "gs";

/// Makes the driver.
pub(crate) fn driver(options: DriverOptions) -> Result<PackDriver<ObjectStores>> {
    Ok(PackDriver::new(ObjectStores::new(Provider::Gs, options)?))
}
