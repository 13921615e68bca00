//! Settings, and the environment that is made with them.

use std::path::Path;

use ::lmdb::{Environment, EnvironmentFlags};
use ckpt_engine::Result;
use ckpt_engine::db::{DriverOptions, WritePlan};

use super::error;

/// The backend's name.
pub(super) const DB_TYPE: &str = "lmdb";

/// As liblmdb is compiled by default.
pub(super) const MAX_KEY_LEN: usize = 511;

/// liblmdb keeps a value's length in 32 bits, but writes the pages of one in a single call, and Linux moves less than 2 GiB
/// in a call.
pub(super) const MAX_VALUE_LEN: u64 = (1 << 31) - (1 << 17);

/// No first map is larger: it grows where it must.
const MAX_FIRST_MAP: u64 = 1 << 40;

/// What `--db-option` can set.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// `transaction_bytes`: a transaction is committed when it holds so many bytes. Until then they are in memory.
    pub(super) transaction_bytes: u64,
}

impl Config {
    pub(super) fn from_options(mut options: DriverOptions) -> Result<Self> {
        let config = Self { transaction_bytes: options.take("transaction_bytes")?.unwrap_or(32 << 20) };
        options.finish(DB_TYPE)?;
        Ok(config)
    }
}

/// Makes an environment in `dir`, which is staged: nobody else knows of it, so nothing is locked, and nothing needs to be
/// durable before it is published.
pub(super) fn create(dir: &Path, plan: &WritePlan) -> Result<Environment> {
    let flags = EnvironmentFlags::NO_LOCK | EnvironmentFlags::NO_SYNC | EnvironmentFlags::NO_META_SYNC;
    Environment::new()
        .set_flags(flags)
        .set_map_size(first_map_size(plan))
        .open(dir)
        .map_err(|error| error::map("cannot create environment", dir, error))
}

/// Room for what is planned: values, a page header and the rounding to pages for each, and the tree.
fn first_map_size(plan: &WritePlan) -> usize {
    let per_record = 4096 + 1024;
    let bytes = plan.records.saturating_mul(per_record).saturating_add(plan.bytes).saturating_add(1 << 20);
    let whole = bytes.min(MAX_FIRST_MAP).next_multiple_of(1 << 16);
    usize::try_from(whole).unwrap_or(usize::MAX)
}
