//! A file system as a store. The only place that writes files.
//!
//! What is written is staged beside its final name as `.<name>.<random>.tmp`, made durable, renamed, and the directory is
//! made durable too. Dropped before that, it is removed. So under a final name there is always one whole thing, the older
//! or the newer, whenever the machine stops. A sync that failed is not tried again: the system may have dropped the bytes
//! and would then call it a success.

mod behind;
#[cfg(any(test, feature = "faults"))]
#[cfg_attr(not(feature = "faults"), expect(unreachable_pub, reason = "public with the feature"))]
pub mod faults;
mod reading;
mod records;
mod staged_dir;
mod staged_file;
#[cfg_attr(not(feature = "faults"), expect(unreachable_pub, reason = "public with the feature"))]
mod steps;
mod store;
#[cfg(test)]
mod tests;

use std::fs::{self, FileType};
use std::io;
use std::path::{Path, PathBuf};

use ckpt_engine::{Error, Result};
use rustix::io::Errno;

#[cfg(any(feature = "lmdb", feature = "rocksdb"))]
pub(crate) use reading::FileReader;
pub(crate) use records::FsRecords;
#[cfg(any(feature = "leveldb", feature = "lmdb", feature = "rocksdb"))]
pub(crate) use staged_dir::FileInStagedDir;
pub(crate) use staged_dir::{StagedDir, destroy_dir};
use staged_file::StagedFile;
use staged_file::destroy_file;
pub(crate) use store::FsStore;

use super::names::{RECORDS, check_name, parse_staged_name, staged_name};

/// The path of the db `name` under `prefix`.
pub(crate) fn db_path(prefix: &str, name: &str) -> Result<PathBuf> {
    check_name(name)?;
    Ok(Path::new(prefix).join(name))
}

/// Whether there is a file. A directory in its place is an error, as is whatever keeps us from looking.
pub(crate) fn file_exists(path: &Path) -> Result<bool> {
    match look(path)? {
        None => Ok(false),
        Some(kind) if kind.is_file() => Ok(true),
        Some(_) => Err(wrong_type(path, Wanted::File)),
    }
}

/// Whether there is a directory. A file in its place is an error, as is whatever keeps us from looking.
pub(crate) fn dir_exists(path: &Path) -> Result<bool> {
    match look(path)? {
        None => Ok(false),
        Some(kind) if kind.is_dir() => Ok(true),
        Some(_) => Err(wrong_type(path, Wanted::Directory)),
    }
}

/// The names of the files in a directory that are not hidden. Fails with `NotFound` if there is no such directory.
pub(crate) fn list_files(dir: &Path) -> Result<Vec<String>> {
    list(dir, FileType::is_file)
}

/// The names of the directories in a directory that are not hidden. Fails with `NotFound` if there is no such directory.
pub(crate) fn list_dirs(dir: &Path) -> Result<Vec<String>> {
    list(dir, FileType::is_dir)
}

/// What saves that were killed left under the place `prefix`: staged files and directories that nobody will publish.
/// A save that is running has such a one too.
pub fn leftovers(prefix: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for dir in [prefix.to_owned(), prefix.join(RECORDS)] {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_error("cannot list directory", &dir, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| io_error("cannot list directory", &dir, error))?;
            if entry.file_name().to_str().is_some_and(|name| parse_staged_name(name).is_some()) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Whether there is a db that is a directory, known by the file `mark` in it. One call if there is. A directory without the file is
/// no `what`, and that is not "no": something else is in its place.
pub(crate) fn dir_db_exists(path: &Path, mark: &str, what: &str) -> Result<bool> {
    if file_exists(&path.join(mark))? {
        return Ok(true);
    }
    if !dir_exists(path)? {
        return Ok(false);
    }
    Err(Error::corrupt(format!("directory is not {what} path=`{}`", path.display())))
}

/// The names of the dbs in a directory that are directories known by the file `mark`. Fails as [`list_dirs`] does.
pub(crate) fn list_dir_dbs(dir: &Path, mark: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for name in list_dirs(dir)? {
        if file_exists(&dir.join(&name).join(mark))? {
            names.push(name);
        }
    }
    Ok(names)
}

/// What tells the directory at a path from another one that takes its name. `None` if there is none.
#[cfg(feature = "rocksdb")]
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Whether most of the files of a directory that have this extension are in the page cache. What cannot be told is not.
#[cfg(feature = "rocksdb")]
pub(crate) fn is_mostly_cached(dir: &Path, extension: &str) -> bool {
    const PARTS: u64 = 16;
    const LOOKED_AT: usize = 64 << 10;
    let (mut cached, mut all) = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(file) = fs::File::open(&path) else { continue };
        let Ok(len) = file.metadata().map(|found| found.len()) else { continue };
        if path.extension().is_some_and(|found| found == extension) {
            let reader = reading::FileReader::new(file, path);
            // To ask for all of a large file would take milliseconds.
            for part in 0..PARTS {
                all += len / PARTS;
                cached += if reader.is_cached(len / PARTS * part, LOOKED_AT) { len / PARTS } else { 0 };
            }
        }
    }
    cached * 2 > all
}

/// What a caller wants a path to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    File,
    Directory,
}

/// What is at a path, through links; `None` if there is nothing.
fn look(path: &Path) -> Result<Option<FileType>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("cannot look at", path, error)),
    }
}

/// A name that is not UTF-8 was not made by us and is passed over, as hidden ones are.
fn list(dir: &Path, wanted: fn(&FileType) -> bool) -> Result<Vec<String>> {
    let failed = |error| io_error("cannot list directory", dir, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let mut kind = entry.file_type().map_err(failed)?;
        if kind.is_symlink() {
            match look(&entry.path())? {
                Some(behind) => kind = behind,
                None => continue,
            }
        }
        if wanted(&kind) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The directory that holds `path`.
fn parent(path: &Path) -> Result<&Path> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(parent) => Ok(parent),
        None => Err(Error::invalid(format!("path has no parent path=`{}`", path.display()))),
    }
}

/// Makes the directory that holds `path` and those above it that are missing, each durable in the one that holds it.
fn make_parent(path: &Path) -> Result<()> {
    let mut missing = Vec::new();
    let mut dir = parent(path)?;
    while !dir_exists(dir)? {
        missing.push(dir);
        dir = parent(dir)?;
    }
    for dir in missing.into_iter().rev() {
        match steps::create_dir(dir) {
            Ok(()) => {}
            // Another process was faster, but it may not have made it durable yet.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("cannot create directory", dir, error)),
        }
        sync_parent(dir)?;
    }
    Ok(())
}

fn sync_parent(path: &Path) -> Result<()> {
    let parent = parent(path)?;
    steps::sync_dir(parent).map_err(|error| io_error("cannot sync directory", parent, error))
}

/// A fresh hidden path beside `target`.
fn staged_path(target: &Path) -> Result<PathBuf> {
    let name = target.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Error::invalid(format!("path has no usable name path=`{}`", target.display())))?;
    Ok(target.with_file_name(staged_name(name)?))
}

/// Removes what is staged when it is dropped.
#[derive(Debug)]
struct Discard {
    path: PathBuf,
    remove: fn(&Path) -> io::Result<()>,
    armed: bool,
}

impl Discard {
    fn new(path: PathBuf, remove: fn(&Path) -> io::Result<()>) -> Self {
        Self { path, remove, armed: true }
    }

    /// Leaves it where it is.
    fn keep(&mut self) {
        self.armed = false;
    }
}

impl Drop for Discard {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Err(error) = (self.remove)(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove what was staged");
        }
    }
}

fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ": no permission",
        io::ErrorKind::NotADirectory => ": a parent is not a directory",
        io::ErrorKind::NotFound => ": no such file or directory",
        io::ErrorKind::StorageFull => ": no space left",
        io::ErrorKind::QuotaExceeded => ": quota exceeded",
        io::ErrorKind::ReadOnlyFilesystem => ": the file system is read-only",
        _ => "",
    };
    Error::io(format!("{what}{hint} path=`{}`", path.display()), error)
}

fn wrong_type(path: &Path, wanted: Wanted) -> Error {
    let path = path.display();
    Error::invalid(match wanted {
        Wanted::File => {
            format!("is not a file; perhaps a db of db_type `rocksdb`, `lmdb` or `leveldb` path=`{path}`")
        }
        Wanted::Directory => {
            format!("is not a directory; perhaps a db of db_type `files` or `minidb` path=`{path}`")
        }
    })
}

fn is_any(error: &io::Error, kinds: &[Errno]) -> bool {
    kinds.iter().any(|kind| error.raw_os_error() == Some(kind.raw_os_error()))
}
