//! A file that is written beside its final name and published in one step.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ckpt_engine::{Error, ErrorKind, Result};
use rustix::io::Errno;

use super::{
    Discard, Wanted, file_exists, io_error, is_any, make_parent, staged_path, steps, sync_parent, wrong_type,
};

/// A file on its way. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct StagedFile {
    staged: Discard,
    target: PathBuf,
    file: File,
}

impl StagedFile {
    /// Makes an empty file that will be `target`, and the parents of it that are missing.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        make_parent(target)?;
        // Better an answer now than after all is written.
        file_exists(target)?;
        let staged = staged_path(target)?;
        let file =
            steps::create_file(&staged).map_err(|error| io_error("cannot create file", &staged, error))?;
        Ok(Self { staged: Discard::new(staged, steps::remove_file), target: target.to_owned(), file })
    }

    /// Where it is until it is published.
    pub(super) fn path(&self) -> &Path {
        &self.staged.path
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Appends all of `pieces`.
    pub(super) fn write(&mut self, pieces: &[Bytes]) -> Result<()> {
        steps::write(&self.staged.path, &self.file, pieces)
            .map_err(|error| io_error("cannot write file", &self.staged.path, error))
    }

    /// Makes the file durable and gives it its final name, in place of an older one.
    ///
    /// After `Err` the older one is as it was, unless the error says that it may have happened.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.sync()?;
        steps::rename(&self.staged.path, &self.target).map_err(|error| self.cannot_publish(error))?;
        self.staged.keep();
        sync_parent(&self.target).map_err(Error::may_have_happened)
    }

    /// The same, but fails with `AlreadyExists` if there is one: of several callers one wins.
    pub(crate) fn publish_new(mut self) -> Result<()> {
        self.sync()?;
        match steps::link(&self.staged.path, &self.target) {
            // The drop removes the staged name; the file lives on under the final one.
            Ok(()) => {}
            // Over NFS a link whose answer was lost is asked for again and then "exists": the count tells that it is ours.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !self.file.metadata().is_ok_and(|file| file.nlink() == 2) {
                    return Err(self.cannot_publish(error));
                }
            }
            // A file system without hard links.
            Err(error) if is_any(&error, &[Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS]) => {
                steps::rename_new(&self.staged.path, &self.target)
                    .map_err(|error| self.cannot_publish(error))?;
                self.staged.keep();
            }
            Err(error) => return Err(self.cannot_publish(error)),
        }
        sync_parent(&self.target).map_err(Error::may_have_happened)
    }

    fn sync(&self) -> Result<()> {
        steps::sync_file(&self.staged.path, &self.file)
            .map_err(|error| io_error("cannot sync file", &self.staged.path, error))
    }

    fn cannot_publish(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::IsADirectory => wrong_type(&self.target, Wanted::File),
            io::ErrorKind::AlreadyExists => {
                let message = format!("file exists already path=`{}`", self.target.display());
                Error::new(ErrorKind::AlreadyExists, message).with_source(error)
            }
            _ => io_error("cannot publish file", &self.target, error),
        }
    }
}

/// Removes a file. `Ok` if it is absent.
pub(crate) fn destroy_file(path: &Path) -> Result<()> {
    if !file_exists(path)? {
        return Ok(());
    }
    match steps::remove_file(path) {
        Ok(()) => sync_parent(path).map_err(Error::may_have_happened),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("cannot remove file", path, error)),
    }
}
