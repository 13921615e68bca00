//! Names in a store: what may be one, and the names of what is not published yet.
//!
//! A db is `<prefix>/<name>`. What is being written is `<prefix>/.<name>.<random>.tmp` until it is published, and the small
//! records of a place are `<prefix>/.ckpt/<record>`. So whatever begins with a dot is ours and not a db.

use ckpt_engine::{Error, Result};

/// The folder of a place's records.
pub(crate) const RECORDS: &str = ".ckpt";

const STAGED_SUFFIX: &str = ".tmp";

/// Checks the name of a db: one part of a path, not hidden.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let why = if name.is_empty() {
        "is empty"
    } else if name.starts_with('.') {
        "begins with a dot"
    } else if name.contains(['/', '\0']) {
        "holds a slash or a NUL"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("db name {why} name=`{}`", name.escape_debug())))
}

/// Checks the name of a record: letters, digits, `.`, `_`, `-`, not hidden.
pub(crate) fn check_record_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "record name is not made of letters, digits, `.`, `_`, `-` or begins with a dot name=`{}`",
        name.escape_debug()
    )))
}

/// A name for something that will be `name` once it is published.
pub(crate) fn staged_name(name: &str) -> Result<String> {
    Ok(format!(".{name}.{}{STAGED_SUFFIX}", random()?))
}

/// Sixteen hexadecimal digits that nobody else has.
pub(crate) fn random() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Error::internal("the system gives no random bytes").with_source(error))?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}

/// The inverse of [`staged_name`]: the name that it would have got, or `None` for a name of another making.
pub(crate) fn parse_staged_name(staged: &str) -> Option<&str> {
    let inner = staged.strip_prefix('.')?.strip_suffix(STAGED_SUFFIX)?;
    let (name, random) = inner.rsplit_once('.')?;
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (!name.is_empty() && random.len() == 16 && random.bytes().all(hex)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_names_are_hidden_unique_and_parse_back() {
        for name in ["trainer:0.7", "a", "Größe.1", "a b.2"] {
            let staged = staged_name(name).unwrap();
            assert!(check_name(&staged).is_err());
            assert_eq!(parse_staged_name(&staged), Some(name));
            assert_ne!(staged, staged_name(name).unwrap());
        }
        for other in ["", ".tmp", "a.1", ".a.1.tmp", "..0123456789abcdef.tmp", ".a.0123456789ABCDEF.tmp"] {
            assert_eq!(parse_staged_name(other), None, "{other}");
        }
    }

    #[test]
    fn names_that_would_leave_the_place_are_refused() {
        for name in ["", ".", "..", ".a", "a/b", "/a", "a\0b"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["trainer:0.7", "a b", "Größe.1"] {
            check_name(name).unwrap();
            assert!(check_record_name(name).is_err(), "{name:?}");
        }
        check_record_name("epoch.3_x-Y").unwrap();
        assert!(check_record_name(".epoch").is_err());
    }
}
