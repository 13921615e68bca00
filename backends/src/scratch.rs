//! What a remote place does without a checkpoint: plain transfers through the client of its backend. `ckpt bench` compares with them.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use ckpt_engine::db::DriverOptions;
use ckpt_engine::{Error, Result};

/// A folder of our own in a remote place, for measuring. Dropped, it is removed with all that is in it.
pub trait Scratch: Debug {
    /// The folder, as the driver takes it for a prefix.
    fn prefix(&self) -> &str;

    /// How [`Self::put`] and [`Self::get`] transfer: the length of an object and how many requests are under way at once.
    fn way(&self) -> (u64, usize);

    /// Writes the first bytes of `block` as plain objects, `bytes` in all. Returns how long it took.
    ///
    /// Fails with `InvalidInput` if `block` is shorter than an object.
    fn put(&self, bytes: u64, block: &Bytes) -> Result<Duration>;

    /// Reads what `put` wrote, `bytes` in all, and keeps none of it. Returns how long it took.
    fn get(&self, bytes: u64) -> Result<Duration>;

    /// Removes all that is in the folder, whoever put it there.
    fn clear(&self) -> Result<()>;
}

/// A fresh folder under `prefix`. Sends nothing yet.
///
/// `options` are those of the driver: as many requests are under way at once, and an object is as long as a part of an upload there.
/// Fails with `Unsupported` for a db_type that is not an object store of this build.
#[cfg_attr(not(feature = "object-store"), expect(unused_variables))]
pub fn scratch(db_type: &str, prefix: &str, options: DriverOptions) -> Result<Box<dyn Scratch>> {
    #[cfg(feature = "object-store")]
    if let Some(provider) = crate::store::object::Provider::of(db_type) {
        return Ok(Box::new(crate::store::object::ObjectScratch::new(provider, prefix, options)?));
    }
    Err(Error::unsupported(format!("not an object store of this build db_type=`{db_type}`")))
}
