//! Names of objects, and their inverse.
//!
//! A prefix is `bucket`, `bucket/path` or either as a URL. A db is the object `path/<name>`, its name as it is: what needs
//! escaping in a request is escaped there and nowhere else.

use ckpt_engine::{Error, Result};
use object_store::path::Path;

use crate::store::names::{RECORDS, check_name, check_record_name};

/// A prefix in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    bucket: String,
    path: String,
}

impl Place {
    /// Parses a prefix.
    pub(super) fn parse(prefix: &str) -> Result<Self> {
        let wrong =
            |why: &str| Error::invalid(format!("place {why}; it should be `bucket/path` prefix=`{prefix}`"));
        let rest = match prefix.split_once("://") {
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => rest,
            _ => prefix,
        };
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong("names no bucket"));
        }
        if bucket.contains(|c: char| c.is_whitespace() || c.is_control() || "?#\\@:".contains(c)) {
            return Err(wrong("has no valid bucket"));
        }
        if path.starts_with('/') {
            return Err(wrong("has two slashes after the bucket"));
        }
        let path = Path::parse(path).map_err(|error| wrong("has no valid path").with_source(error))?;
        Ok(Self { bucket: bucket.to_owned(), path: path.to_string() })
    }

    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// What all dbs are directly under.
    pub(super) fn folder(&self) -> Path {
        // It was parsed before; joining what is valid gives what is valid.
        Path::parse(&self.path).unwrap_or_default()
    }

    /// The object of a db.
    pub(super) fn object(&self, name: &str) -> Result<Path> {
        check_name(name)?;
        self.join(name)
    }

    /// What all records are directly under.
    pub(super) fn record_folder(&self) -> Result<Path> {
        self.join(RECORDS)
    }

    /// The object of a record.
    pub(super) fn record(&self, name: &str) -> Result<Path> {
        check_record_name(name)?;
        self.join(&format!("{RECORDS}/{name}"))
    }

    fn join(&self, name: &str) -> Result<Path> {
        let joined = if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) };
        Path::parse(&joined).map_err(|error| {
            let name = name.escape_debug();
            Error::invalid(format!("name cannot be that of an object name=`{name}`")).with_source(error)
        })
    }
}

/// The inverse of [`Place::object`] and [`Place::record`]: the last part of an object's path. `None` for what neither makes.
pub(super) fn parse_name(object: &Path) -> Option<&str> {
    object.filename().filter(|name| check_name(name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_with_and_without_scheme() {
        let cases = [
            ("bucket", "bucket", ""),
            ("bucket/", "bucket", ""),
            ("bucket/a/b", "bucket", "a/b"),
            ("s3://bucket/a/b/", "bucket", "a/b"),
            ("gs://bucket", "bucket", ""),
            ("bucket/a://b", "", ""),
        ];
        for (prefix, bucket, path) in cases {
            match Place::parse(prefix) {
                Ok(place) => {
                    assert_eq!((place.bucket.as_str(), place.path.as_str()), (bucket, path), "{prefix}")
                }
                Err(_) => assert_eq!(bucket, "", "{prefix}"),
            }
        }
        for prefix in
            ["", "/", "s3://", "s3:///a", "b//a", "b/../c", "b/a\nb", "b c/d", "user@host/a", "b?x/a"]
        {
            assert_eq!(
                Place::parse(prefix).unwrap_err().kind(),
                ckpt_engine::ErrorKind::InvalidInput,
                "{prefix}"
            );
        }
    }

    #[test]
    fn names_and_objects_are_inverse() {
        let names = [
            "trainer:0.7",
            "a b.1",
            "Größe.2",
            "100%.3",
            "a%2Fb.4",
            "x~y+z=w&v#u?t*[s].5",
            "back\\slash.6",
            "e.é.7",
        ];
        for prefix in ["bucket", "s3://bucket/run 1/deep%20er"] {
            let place = Place::parse(prefix).unwrap();
            for name in names {
                let object = place.object(name).unwrap();
                assert_eq!(parse_name(&object), Some(name));
                assert_eq!(
                    object.as_ref(),
                    if place.path.is_empty() { name.to_owned() } else { format!("{}/{name}", place.path) }
                );
            }
            let record = place.record("epoch.1").unwrap();
            assert_eq!(parse_name(&record), Some("epoch.1"));
            assert!(record.as_ref().ends_with(".ckpt/epoch.1"));
        }
    }

    #[test]
    fn what_is_no_db_has_no_name() {
        let place = Place::parse("bucket/run").unwrap();
        for name in ["", ".", "..", ".hidden", "a/b", "a\0b", "a\nb"] {
            assert!(place.object(name).is_err(), "{name:?}");
        }
        assert_eq!(parse_name(&Path::parse("run/.ckpt").unwrap()), None);
        assert_eq!(parse_name(&Path::ROOT), None);
    }
}
