//! db_type `s3`: one pack per db, an object in Amazon S3 or in a store that speaks its protocol.
//!
//! The prefix is `bucket/path` or `s3://bucket/path`. Credentials and endpoint come from the `AWS_*` variables. Settings:
//! `concurrency` (requests under way at once, 16) and `part_bytes` (the least length of a part of an upload, 8 MiB).

use ckpt_engine::Result;
use ckpt_engine::db::DriverOptions;

use crate::pack::PackDriver;
use crate::store::object::{ObjectStores, Provider};

/// The backend's name.
pub(crate) const DB_TYPE: &str = "s3";

/// Makes the driver.
pub(crate) fn driver(options: DriverOptions) -> Result<PackDriver<ObjectStores>> {
    Ok(PackDriver::new(ObjectStores::new(Provider::S3, options)?))
}
