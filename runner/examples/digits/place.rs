//! Stores by name.

use ckpt_engine::db::{DriverOptions, Registry};
use ckpt_engine::{Checkpoints, Error, Result};

/// The backends of this build.
pub fn registry() -> Registry {
    let mut registry = Registry::new();
    ckpt_backends::register_all(&mut registry);
    registry
}

/// The place that `<db_type>:<prefix>` names.
pub fn open(store: &str) -> Result<Checkpoints> {
    let (db_type, prefix) = store.split_once(':').ok_or_else(|| {
        Error::invalid(format!("a store is `<db_type>:<prefix>`, such as `files:./ckpts` store=`{store}`"))
    })?;
    Ok(Checkpoints::new(registry().driver(db_type, DriverOptions::new())?, prefix))
}
