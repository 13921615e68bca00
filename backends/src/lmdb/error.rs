//! The system's errors as ours.

use std::io;
use std::path::Path;

use ckpt_engine::Error;

/// The error of a call to the system.
pub(super) fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("{what} path=`{}`", path.display()), error)
}
