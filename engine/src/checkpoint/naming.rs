//! Names on disk, as inverse pairs: dbs and the records beside them.

use crate::error::{Error, Result};

/// The longest node name, in bytes: it leaves room for the epoch and for a staged file's suffix in the 255 that file systems give.
const MAX_NODE_LEN: usize = 190;

/// A db's name in its two parts. Ordered by epoch, then node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DbName {
    /// Number of completed passes; 0 is initialised, untrained.
    pub epoch: u64,
    /// The member of the job, such as `trainer:0`.
    pub node: String,
}

/// Checks that a node's name can be part of a db's name on every store.
pub fn check_node(node: &str) -> Result<()> {
    let why = if node.is_empty() {
        "is empty"
    } else if node.len() > MAX_NODE_LEN {
        "is longer than 190 bytes"
    } else if node.starts_with('.') {
        "begins with a dot"
    } else if node.contains(['/', '\\']) || node.contains(char::is_control) {
        "holds a slash, a backslash or a control character"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("node name {why} node=`{}`", node.escape_debug())))
}

/// `<node>.<epoch>`.
pub fn db_name(node: &str, epoch: u64) -> Result<String> {
    check_node(node)?;
    Ok(format!("{node}.{epoch}"))
}

/// The inverse of [`db_name`]: `None` for a name that it does not make.
pub fn parse_db_name(name: &str) -> Option<DbName> {
    let (node, epoch) = name.rsplit_once('.')?;
    check_node(node).ok()?;
    Some(DbName { epoch: parse_number(epoch)?, node: node.to_owned() })
}

/// What the name of a db that keeps no other says: `<node>.<epoch>`, also with leading zeros, as Caffe2 wrote them before August
/// 2017; else the name without its extension is the node, and the epoch is 0.
pub fn guess_db_name(name: &str) -> DbName {
    if let Some(name) = parse_db_name(name) {
        return name;
    }
    let (stem, extension) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).unwrap_or((name, ""));
    let digits = extension.bytes().all(|byte| byte.is_ascii_digit());
    DbName { epoch: extension.parse().ok().filter(|_| digits).unwrap_or(0), node: stem.to_owned() }
}

/// The name of the record that says that an epoch is complete.
pub fn epoch_record_name(epoch: u64) -> String {
    format!("epoch.{epoch}")
}

/// The inverse of [`epoch_record_name`].
pub fn parse_epoch_record_name(name: &str) -> Option<u64> {
    parse_number(name.strip_prefix("epoch.")?)
}

/// The name of the record that says that a save of an epoch in the caffe2 layout has begun and its epoch record is not there yet.
pub fn begun_record_name(epoch: u64) -> String {
    format!("begun.{epoch}")
}

/// The inverse of [`begun_record_name`].
pub fn parse_begun_record_name(name: &str) -> Option<u64> {
    parse_number(name.strip_prefix("begun.")?)
}

/// A number as `Display` writes it: no sign, no leading zeros.
fn parse_number(digits: &str) -> Option<u64> {
    let canonical = digits == "0" || !digits.starts_with(['0', '+']);
    digits.parse().ok().filter(|_| canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_inverse_pairs() {
        for node in ["trainer:0", "a.1", "local", "Größe", "a b", "x.y.z"] {
            for epoch in [0, 1, 10, u64::MAX] {
                let name = db_name(node, epoch).unwrap();
                assert_eq!(parse_db_name(&name), Some(DbName { epoch, node: node.to_owned() }));
                assert_eq!(parse_epoch_record_name(&epoch_record_name(epoch)), Some(epoch));
                assert_eq!(parse_begun_record_name(&begun_record_name(epoch)), Some(epoch));
            }
        }
    }

    #[test]
    fn names_of_others_are_guessed() {
        for (name, node, epoch) in [
            ("trainer_0.000003", "trainer_0", 3),
            ("trainer_0.3", "trainer_0", 3),
            ("model.minidb", "model", 0),
            ("model", "model", 0),
            (".hidden", ".hidden", 0),
            ("m.99999999999999999999", "m", 0),
        ] {
            assert_eq!(guess_db_name(name), DbName { epoch, node: node.to_owned() }, "{name}");
        }
    }

    #[test]
    fn what_we_do_not_write_is_not_ours() {
        for name in
            ["", "a", "a.", ".1", "a.01", "a.+1", "a.-1", "a.1x", "a.18446744073709551616", ".a.1.tmp"]
        {
            assert_eq!(parse_db_name(name), None, "{name}");
        }
        for name in ["epoch", "epoch.", "epoch.00", "pin.1", "epoch.1.tmp"] {
            assert_eq!(parse_epoch_record_name(name), None, "{name}");
        }
    }

    #[test]
    fn node_names_that_no_store_can_hold_are_refused() {
        let long = "n".repeat(191);
        for node in ["", "a/b", "/abs", "..", ".a", "a\\b", "a\nb", "a\0b", &long] {
            assert!(check_node(node).is_err(), "{node:?}");
        }
    }
}
