//! A directory that is written beside its final name and published in one step: for the backends whose library wants a
//! directory of its own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

#[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
use bytes::Bytes;
use ckpt_engine::{Error, Result};
use rustix::io::Errno;

#[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
use super::behind::Behind;
use super::{
    Discard, Wanted, dir_exists, io_error, is_any, make_parent, staged_path, steps, sync_parent, wrong_type,
};
#[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
use crate::store::Expected;

/// A directory on its way. Dropped, it is removed with all that is in it.
#[derive(Debug)]
pub(crate) struct StagedDir {
    staged: Discard,
    target: PathBuf,
}

impl StagedDir {
    /// Makes an empty directory that will be `target`, and the parents of it that are missing.
    ///
    /// Where `target` exists, this also tries whether the file system can exchange two names: better an answer now than
    /// after all is written.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        make_parent(target)?;
        let replaces = dir_exists(target)?;
        let staged = Self { staged: make(target)?, target: target.to_owned() };
        if replaces {
            exchange(&staged.staged.path, &make(target)?.path, target)?;
        }
        Ok(staged)
    }

    /// Where to write.
    #[cfg(any(test, feature = "rocksdb"))]
    pub(crate) fn path(&self) -> &Path {
        &self.staged.path
    }

    /// Makes an empty file of this name in it, or in a directory that is in it.
    #[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
    pub(crate) fn create_file(&self, name: &str, expected: Expected) -> Result<FileInStagedDir> {
        let path = self.staged.path.join(name);
        let file = steps::create_file(&path).map_err(|error| io_error("cannot create file", &path, error))?;
        Ok(FileInStagedDir { behind: Behind::start(&path, &file, expected)?, path, file })
    }

    /// Makes the directory and all in it durable and gives it its final name, in place of an older one.
    ///
    /// After `Err` the older one is as it was, unless the error says that it may have happened.
    pub(crate) fn publish(mut self) -> Result<()> {
        sync_tree(&self.staged.path)?;
        let renamed = steps::rename(&self.staged.path, &self.target);
        let replaced = match renamed {
            Ok(()) => false,
            Err(error) if is_any(&error, &[Errno::NOTEMPTY, Errno::EXIST]) => {
                exchange(&self.staged.path, &self.target, &self.target)?;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(wrong_type(&self.target, Wanted::Directory));
            }
            Err(error) => return Err(io_error("cannot publish directory", &self.target, error)),
        };
        let synced = sync_parent(&self.target).map_err(Error::may_have_happened);
        // Where the names were exchanged, the staged one now holds the older db, and the drop removes it. Not if the sync
        // failed: then nobody knows which of the two a crash would leave under the final name.
        if !replaced || synced.is_err() {
            self.staged.keep();
        }
        synced
    }
}

/// A file of a staged directory. It becomes durable with that.
#[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
#[derive(Debug)]
pub(crate) struct FileInStagedDir {
    behind: Option<Behind>,
    path: PathBuf,
    file: File,
}

#[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
impl FileInStagedDir {
    /// Appends all of `pieces`. It may be written later and its failure told by a later call.
    pub(crate) fn append(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        match &mut self.behind {
            Some(behind) => behind.append(pieces),
            None => steps::write(&self.path, &self.file, &pieces)
                .map_err(|error| io_error("cannot write file", &self.path, error)),
        }
    }

    /// Writes what is not written yet.
    #[cfg(any(feature = "leveldb", feature = "rocksdb"))]
    pub(crate) fn finish(self) -> Result<()> {
        self.behind.map_or(Ok(()), Behind::finish)
    }

    /// The same, then `front` in place of what is at the begin.
    #[cfg(feature = "lmdb")]
    pub(crate) fn finish_with_front(self, front: &[u8]) -> Result<()> {
        self.behind.map_or(Ok(()), Behind::finish)?;
        steps::write_at(&self.path, &self.file, front, 0)
            .map_err(|error| io_error("cannot write file", &self.path, error))
    }
}

/// Removes a directory with all that is in it: invisible from the first step on. `Ok` if it is absent.
pub(crate) fn destroy_dir(path: &Path) -> Result<()> {
    if !dir_exists(path)? {
        return Ok(());
    }
    let hidden = staged_path(path)?;
    match steps::rename(path, &hidden) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("cannot hide directory", path, error)),
    }
    sync_parent(path).map_err(Error::may_have_happened)?;
    steps::remove_dir_all(&hidden)
        .map_err(|error| io_error("cannot remove hidden directory", &hidden, error).may_have_happened())
}

fn make(target: &Path) -> Result<Discard> {
    let path = staged_path(target)?;
    steps::create_dir(&path).map_err(|error| io_error("cannot create directory", &path, error))?;
    Ok(Discard::new(path, steps::remove_dir_all))
}

fn exchange(a: &Path, b: &Path, target: &Path) -> Result<()> {
    steps::exchange(a, b).map_err(|error| {
        if !is_any(&error, &[Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP]) {
            return io_error("cannot exchange directories", target, error);
        }
        Error::unsupported(format!(
            "this file system cannot exchange two directories in one step, so the db cannot be replaced safely; destroy \
             it first or save elsewhere path=`{}`",
            target.display()
        ))
        .with_source(error)
    })
}

/// Makes a directory and all in it durable, innermost first.
fn sync_tree(dir: &Path) -> Result<()> {
    let failed = |error| io_error("cannot list directory", dir, error);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            sync_tree(&path)?;
        } else if kind.is_file() {
            let synced = File::open(&path).and_then(|file| steps::sync_file(&path, &file));
            synced.map_err(|error| io_error("cannot sync file", &path, error))?;
        }
    }
    steps::sync_dir(dir).map_err(|error| io_error("cannot sync directory", dir, error))
}
