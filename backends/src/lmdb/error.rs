//! liblmdb's errors as ours.

use std::io;
use std::path::Path;

use ::lmdb::Error as Lmdb;
use ckpt_engine::{Error, ErrorKind};
use rustix::io::Errno;

/// A file system with less space left than this is full: what did not fit was larger.
const NEARLY_NOTHING: u64 = 1 << 20;

/// The error of an operation of liblmdb on the environment in `dir`.
pub(super) fn map(what: &str, dir: &Path, error: Lmdb) -> Error {
    let message = |hint: &str| format!("{what}{hint} path=`{}`", dir.display());
    match error {
        Lmdb::Other(code) if code > 0 => {
            let mapped = io_error(what, dir, io::Error::from_raw_os_error(code));
            // A write that was cut short, mostly by a full disk, is EIO to liblmdb.
            if code == Errno::IO.raw_os_error() && is_full(dir) {
                return mapped.with_kind(ErrorKind::Full).context("no space left");
            }
            mapped
        }
        error => Error::new(kind(error), message("")).with_source(error),
    }
}

/// The error of a call to the system.
pub(super) fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("{what} path=`{}`", path.display()), error)
}

fn kind(error: Lmdb) -> ErrorKind {
    match error {
        Lmdb::MapFull | Lmdb::TxnFull | Lmdb::DbsFull | Lmdb::ReadersFull | Lmdb::TlsFull => ErrorKind::Full,
        Lmdb::Corrupted | Lmdb::PageNotFound | Lmdb::Invalid | Lmdb::VersionMismatch => ErrorKind::Corrupt,
        Lmdb::BadValSize => ErrorKind::InvalidInput,
        Lmdb::Incompatible => ErrorKind::Unsupported,
        Lmdb::MapResized => ErrorKind::Conflict,
        // The environment refuses all work after a failed write of its meta page.
        Lmdb::Panic => ErrorKind::Closed,
        _ => ErrorKind::Internal,
    }
}

fn is_full(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) < NEARLY_NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_map_to_kinds() {
        let errno = |errno: Errno| Lmdb::Other(errno.raw_os_error());
        let cases = [
            (Lmdb::MapFull, ErrorKind::Full),
            (Lmdb::TxnFull, ErrorKind::Full),
            (errno(Errno::NOSPC), ErrorKind::Full),
            (errno(Errno::DQUOT), ErrorKind::Full),
            (errno(Errno::NOMEM), ErrorKind::Full),
            (errno(Errno::FBIG), ErrorKind::Full),
            (errno(Errno::IO), ErrorKind::Unavailable),
            (errno(Errno::ACCESS), ErrorKind::Unavailable),
            (errno(Errno::ROFS), ErrorKind::Unavailable),
            (errno(Errno::NOTDIR), ErrorKind::InvalidInput),
            (errno(Errno::NOENT), ErrorKind::NotFound),
            (Lmdb::Corrupted, ErrorKind::Corrupt),
            (Lmdb::PageNotFound, ErrorKind::Corrupt),
            (Lmdb::Invalid, ErrorKind::Corrupt),
            (Lmdb::VersionMismatch, ErrorKind::Corrupt),
            (Lmdb::BadValSize, ErrorKind::InvalidInput),
            (Lmdb::Incompatible, ErrorKind::Unsupported),
            (Lmdb::MapResized, ErrorKind::Conflict),
            (Lmdb::Panic, ErrorKind::Closed),
            (Lmdb::KeyExist, ErrorKind::Internal),
            (Lmdb::BadTxn, ErrorKind::Internal),
            (Lmdb::Other(-30779), ErrorKind::Internal),
        ];
        let dir = tempfile::tempdir().unwrap();
        for (error, expected) in cases {
            let mapped = map("cannot write", dir.path(), error);
            assert_eq!(mapped.kind(), expected, "{error:?}");
            assert!(mapped.to_string().contains(dir.path().to_str().unwrap()), "{mapped}");
        }
    }
}
