//! Selection of a backend by its `db_type` string.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Driver, DriverOptions};
use crate::error::{Error, Result};

/// Makes a driver from its settings.
pub type DriverFactory = Box<dyn Fn(DriverOptions) -> Result<Arc<dyn Driver>> + Send + Sync>;

enum Entry {
    Present(DriverFactory),
    Absent { reason: String },
}

/// The known backends by `db_type`, case-insensitively. A plain value: there is no global one.
#[derive(Default)]
pub struct Registry {
    entries: BTreeMap<String, Entry>,
}

impl Registry {
    /// A registry that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `db_type` selectable. A later call for the same name replaces the earlier.
    pub fn register<F>(&mut self, db_type: &str, factory: F)
    where
        F: Fn(DriverOptions) -> Result<Arc<dyn Driver>> + Send + Sync + 'static,
    {
        self.entries.insert(db_type.to_ascii_lowercase(), Entry::Present(Box::new(factory)));
    }

    /// Notes a `db_type` that this build leaves out, and why: choosing it gives an error that says so.
    pub fn register_absent(&mut self, db_type: &str, reason: impl Into<String>) {
        let entry = Entry::Absent { reason: reason.into() };
        self.entries.insert(db_type.to_ascii_lowercase(), entry);
    }

    /// The selectable `db_type`s, sorted.
    pub fn db_types(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|(name, entry)| match entry {
            Entry::Present(_) => Some(name.as_str()),
            Entry::Absent { .. } => None,
        })
    }

    /// Makes the driver of `db_type`.
    ///
    /// Fails with `InvalidInput` for an unknown name (listing the known ones) or setting, and with `Unsupported` for a
    /// backend that this build leaves out.
    pub fn driver(&self, db_type: &str, options: DriverOptions) -> Result<Arc<dyn Driver>> {
        match self.entries.get(&db_type.to_ascii_lowercase()) {
            Some(Entry::Present(factory)) => factory(options),
            Some(Entry::Absent { reason }) => Err(Error::unsupported(format!(
                "this build has no such backend: {reason} db_type=`{db_type}`"
            ))),
            None => {
                let known: Vec<_> = self.db_types().collect();
                Err(Error::invalid(format!(
                    "unknown db_type; known ones: {} db_type=`{db_type}`",
                    known.join(", ")
                )))
            }
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.db_types()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::MemoryDriver;
    use crate::error::ErrorKind;

    fn registry() -> Registry {
        let mut registry = Registry::new();
        registry.register("memory", |options| {
            options.finish("memory")?;
            Ok(Arc::new(MemoryDriver::new()))
        });
        registry.register_absent("lmdb", "build with feature `lmdb`");
        registry
    }

    #[test]
    fn names_are_case_insensitive() {
        let driver = registry().driver("MeMory", DriverOptions::new()).unwrap();
        assert_eq!(driver.db_type(), "memory");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = registry().driver("redis", DriverOptions::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("known ones: memory"), "{error}");
    }

    #[test]
    fn one_left_out_says_what_brings_it() {
        let error = registry().driver("lmdb", DriverOptions::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature `lmdb`"), "{error}");
    }
}
