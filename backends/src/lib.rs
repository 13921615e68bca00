//! The stores of `ckpt`: one folder per `db_type`.
//!
//! `files`, `s3`, `gs` and `az` keep a db as one pack (`pack`) in one file or object (`store`); `rocksdb`, `lmdb` and
//! `leveldb` keep it as a directory that their library opens, staged and published by `store::fs`. `memory` is the engine's own.
//!
//! A `db_type` is selected by name: fill a [`Registry`] with [`register_all`] and ask it for a driver.

#[cfg(feature = "az")]
mod az;
mod files;
#[cfg(feature = "gs")]
mod gs;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(feature = "lmdb")]
mod lmdb;
mod minidb;
mod pack;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "s3")]
mod s3;
mod scratch;
mod store;
#[cfg(any(feature = "leveldb", feature = "rocksdb"))]
mod table;

use std::sync::Arc;

use ckpt_engine::db::{MemoryDriver, Registry};

pub use scratch::{Scratch, scratch};
#[cfg(feature = "faults")]
pub use store::fs::faults;
pub use store::fs::leftovers;

/// Makes every backend of this build selectable by its `db_type`, and notes for each one left out what brings it.
///
/// All `memory` drivers that this registry makes share one store.
pub fn register_all(registry: &mut Registry) {
    let memory = MemoryDriver::new();
    registry.register(MemoryDriver::DB_TYPE, move |options| {
        options.finish(MemoryDriver::DB_TYPE)?;
        Ok(Arc::new(memory.clone()))
    });
    registry.register(files::DB_TYPE, |options| Ok(Arc::new(files::driver(options)?)));
    registry.register("minidb", |options| Ok(Arc::new(minidb::MiniDriver::from_options(options)?)));
    #[cfg(feature = "rocksdb")]
    registry.register("rocksdb", |options| Ok(Arc::new(rocksdb::RocksDriver::from_options(options)?)));
    #[cfg(not(feature = "rocksdb"))]
    registry.register_absent("rocksdb", "build with feature `rocksdb`");
    #[cfg(feature = "lmdb")]
    registry.register("lmdb", |options| Ok(Arc::new(lmdb::LmdbDriver::from_options(options)?)));
    #[cfg(not(feature = "lmdb"))]
    registry.register_absent("lmdb", "build with feature `lmdb`");
    #[cfg(feature = "leveldb")]
    registry.register("leveldb", |options| Ok(Arc::new(leveldb::LevelDriver::from_options(options)?)));
    #[cfg(not(feature = "leveldb"))]
    registry.register_absent("leveldb", "build with feature `leveldb`");
    #[cfg(feature = "s3")]
    registry.register(s3::DB_TYPE, |options| Ok(Arc::new(s3::driver(options)?)));
    #[cfg(not(feature = "s3"))]
    registry.register_absent("s3", "build with feature `s3`");
    #[cfg(feature = "gs")]
    registry.register(gs::DB_TYPE, |options| Ok(Arc::new(gs::driver(options)?)));
    #[cfg(not(feature = "gs"))]
    registry.register_absent("gs", "build with feature `gs`");
    #[cfg(feature = "az")]
    registry.register(az::DB_TYPE, |options| Ok(Arc::new(az::driver(options)?)));
    #[cfg(not(feature = "az"))]
    registry.register_absent("az", "build with feature `az`");
}
