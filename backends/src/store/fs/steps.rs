//! The steps that change a disk. Nothing else does, so that a fault test sees every one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{CWD, FallocateFlags, OFlags, RenameFlags, fallocate, renameat_with};

#[cfg(any(test, feature = "faults"))]
use super::faults::check as gate;

#[cfg(not(any(test, feature = "faults")))]
fn gate(_step: Step, _path: &Path) -> io::Result<()> {
    Ok(())
}

/// The kinds of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new file is made.
    CreateFile,
    /// A new directory is made.
    CreateDir,
    /// Bytes are written to a staged file.
    Write,
    /// A file's bytes are made durable.
    SyncFile,
    /// A directory's entries are made durable.
    SyncDir,
    /// A staged name becomes the final one, or a final one is hidden to be removed.
    Rename,
    /// A staged and a final name change places.
    Exchange,
    /// A staged file gets the final name as well.
    Link,
    /// A file or a directory is removed.
    Remove,
}

/// Makes a file that must not exist yet.
pub(super) fn create_file(path: &Path) -> io::Result<File> {
    gate(Step::CreateFile, path)?;
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Makes a directory that must not exist yet.
pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    gate(Step::CreateDir, path)?;
    DirBuilder::new().create(path)
}

/// Appends all of `pieces`.
pub(super) fn write(path: &Path, mut file: &File, pieces: &[Bytes]) -> io::Result<()> {
    gate(Step::Write, path)?;
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut pieces = &mut slices[..];
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match file.write_vectored(pieces) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut pieces, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens a staged file once more, for writes past the page cache.
pub(super) fn reopen_direct(path: &Path) -> io::Result<File> {
    // As wide as what the platform's flags are given in.
    let flags = OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

/// Takes room for a file of `len` bytes; where it cannot, writing will tell.
pub(super) fn preallocate(file: &File, len: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), 0, len)?)
}

/// Writes all of `bytes` at `offset`.
pub(super) fn write_at(path: &Path, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    gate(Step::Write, path)?;
    file.write_all_at(bytes, offset)
}

/// Cuts a file to its length.
pub(super) fn truncate(path: &Path, file: &File, len: u64) -> io::Result<()> {
    gate(Step::Write, path)?;
    file.set_len(len)
}

/// Makes a file's bytes and length durable. Must not be called again after it failed: the system may have dropped the bytes.
pub(super) fn sync_file(path: &Path, file: &File) -> io::Result<()> {
    gate(Step::SyncFile, path)?;
    file.sync_data()
}

/// Makes the entries of a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    gate(Step::SyncDir, path)?;
    File::open(path)?.sync_all()
}

/// Gives `from` the name `to`, in place of a file or an empty directory of that name.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    gate(Step::Rename, to)?;
    fs::rename(from, to)
}

/// Gives `from` the name `to`, unless that exists.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    gate(Step::Rename, to)?;
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Exchanges two names in one step.
pub(super) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    gate(Step::Exchange, b)?;
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

/// Gives the file `from` the name `to` as well, unless that exists.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    gate(Step::Link, to)?;
    fs::hard_link(from, to)
}

/// Removes a file.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    gate(Step::Remove, path)?;
    fs::remove_file(path)
}

/// Removes a directory and what is in it.
pub(super) fn remove_dir_all(path: &Path) -> io::Result<()> {
    gate(Step::Remove, path)?;
    fs::remove_dir_all(path)
}
