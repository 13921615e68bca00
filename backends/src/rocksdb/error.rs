//! RocksDB's errors as ours.

use std::path::Path;

use ::rocksdb::ErrorKind as Rocks;
use ckpt_engine::{Error, ErrorKind};

/// The error of an operation on the database at `path`.
pub(super) fn map(what: &str, path: &Path, error: ::rocksdb::Error) -> Error {
    Error::new(kind(&error), format!("{what} path=`{}`", path.display())).with_source(error)
}

fn kind(error: &::rocksdb::Error) -> ErrorKind {
    match error.kind() {
        // Asked for only where the database is known to be there: a part of it is missing.
        Rocks::Corruption | Rocks::NotFound => ErrorKind::Corrupt,
        Rocks::IOError => io_kind(error.as_ref()),
        Rocks::NotSupported => ErrorKind::Unsupported,
        Rocks::InvalidArgument => ErrorKind::InvalidInput,
        Rocks::Busy | Rocks::TimedOut | Rocks::TryAgain | Rocks::Incomplete => ErrorKind::Unavailable,
        Rocks::ShutdownInProgress | Rocks::Aborted => ErrorKind::Closed,
        _ => ErrorKind::Internal,
    }
}

/// RocksDB hands out the system's error as text only.
fn io_kind(message: &str) -> ErrorKind {
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if says(&["No space left", "Disk quota exceeded", "File too large"]) {
        ErrorKind::Full
    } else if says(&["No such file or directory", "file is too short"]) {
        ErrorKind::Corrupt
    } else {
        ErrorKind::Unavailable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_map_to_kinds() {
        let cases = [
            ("IO error: No space left on device: While appending to file: /x", ErrorKind::Full),
            ("IO error: Disk quota exceeded: While appending to file: /x", ErrorKind::Full),
            (
                "IO error: No such file or directory: While open a file for random read: /x.sst",
                ErrorKind::Corrupt,
            ),
            (
                "IO error: Permission denied: While opening a file for sequentially reading: /x",
                ErrorKind::Unavailable,
            ),
            ("IO error: Too many open files: While open a file for random read: /x", ErrorKind::Unavailable),
            ("IO error: Input/output error: While pread: /x", ErrorKind::Unavailable),
        ];
        for (message, expected) in cases {
            assert_eq!(io_kind(message), expected, "{message}");
        }
    }
}
