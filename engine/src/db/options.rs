//! What reaches a driver from `--db-option KEY=VALUE`.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Settings of a driver by name. A driver [`take`](Self::take)s those it knows; one that is left is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverOptions {
    given: BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl DriverOptions {
    /// No settings: the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one. The last of a repeated name counts.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.given.insert(name.into(), value.into());
        self
    }

    /// What was given, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.given.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Takes the setting `name`, if given, and notes that the driver knows it.
    pub fn take<T: FromStr>(&mut self, name: &'static str) -> Result<Option<T>> {
        self.known.push(name);
        let Some(value) = self.given.remove(name) else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| {
            Error::invalid(format!(
                "db option has a value that does not parse option=`{name}` value=`{value}`"
            ))
        })
    }

    /// Ends the taking: a setting that is left is an error that lists the known ones.
    pub fn finish(self, db_type: &str) -> Result<()> {
        let Some(unknown) = self.given.keys().next() else {
            return Ok(());
        };
        let known = if self.known.is_empty() {
            "it has none".to_owned()
        } else {
            format!("known ones: {}", self.known.join(", "))
        };
        Err(Error::invalid(format!(
            "unknown db option for this db_type; {known} option=`{unknown}` db_type=`{db_type}`"
        )))
    }
}

impl FromIterator<(String, String)> for DriverOptions {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(options: I) -> Self {
        Self { given: options.into_iter().collect(), known: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_lists_the_known_ones() {
        let mut options = DriverOptions::new().with("block", "1").with("blok", "2");
        assert_eq!(options.take::<u32>("block").unwrap(), Some(1));
        assert_eq!(options.take::<u32>("depth").unwrap(), None);
        let error = options.finish("rocksdb").unwrap_err().to_string();
        assert!(error.contains("`blok`") && error.contains("block, depth"), "{error}");
    }

    #[test]
    fn a_value_that_does_not_parse_is_named() {
        let mut options = DriverOptions::new().with("block", "many");
        let error = options.take::<u32>("block").unwrap_err().to_string();
        assert!(error.contains("`block`") && error.contains("`many`"), "{error}");
    }
}
