//! A file that appears when it is whole.

use std::fs::{File, Permissions};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ckpt_engine::{Error, Result};

/// Writes a file beside `path`, makes it durable and gives it that name. Returns its length.
pub(super) fn write(path: &Path, body: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<u64> {
    let failed = |error| Error::io(format!("cannot write file path=`{}`", path.display()), error);
    if path.is_dir() {
        return Err(Error::invalid(format!("is a directory, not a file path=`{}`", path.display())));
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    // Readable as any new file is: the system takes away what the user's mask says.
    let staged = tempfile::Builder::new()
        .prefix(".ckpt-export.")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)
        .map_err(failed)?;
    let mut writer = BufWriter::new(staged.as_file().try_clone().map_err(failed)?);
    body(&mut writer)?;
    let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    staged.persist(path).map_err(|error| failed(error.error))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| failed(error).may_have_happened())?;
    Ok(bytes)
}
