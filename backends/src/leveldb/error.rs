//! The system's errors as ours.

use std::io;
use std::path::Path;

use ckpt_engine::Error;

/// The error of a call to the system.
pub(super) fn io_error(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    Error::io(format!("{what} path=`{}`", path.display()), error.into())
}

/// The error for a part of a database that is not there. Asked for only where the database is.
pub(super) fn missing(path: &Path) -> Error {
    Error::corrupt(format!("a file of the database is missing path=`{}`", path.display()))
}
