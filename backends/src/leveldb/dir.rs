//! The directory of a database, open: its files are those of this directory, even if another one takes its name.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ckpt_engine::{Error, ErrorKind, Result};
use rustix::buffer::spare_capacity;
use rustix::fs::{Dir as Listing, Mode, OFlags, open, openat};
use rustix::io::{Errno, pread};

use super::error::{io_error, missing};
use super::format::log::BLOCK;

/// An open directory.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    /// What tells it from another directory, and from what it was before a file was added or removed.
    state: (u64, u64, i64, i64),
    /// From all files of it.
    bytes_read: AtomicU64,
}

impl Dir {
    /// Fails with `NotFound` if there is none.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => Error::not_found(format!("no such db path=`{}`", path.display())),
            _ => io_error("cannot open directory", path, error),
        })?;
        let file = File::from(fd);
        let found = file.metadata().map_err(|error| io_error("cannot look at", path, error))?;
        let (fd, path, state) = (OwnedFd::from(file), path.to_owned(), state(&found));
        Ok(Self { fd, path, state, bytes_read: AtomicU64::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes of its files were read.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Whether files of it were added or removed since it was opened, or another directory has its name, or none.
    pub(super) fn has_changed(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(found) => state(&found) != self.state,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// The names of what is in it. One that is not UTF-8 is nothing of LevelDB's.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let failed = |error: Errno| io_error("cannot list directory", &self.path, error);
        let mut names = Vec::new();
        for entry in Listing::read_from(&self.fd).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().to_str().map(str::to_owned));
        }
        Ok(names)
    }

    /// Opens a file of it. `None` if there is no such.
    pub(super) fn file(&self, name: &str) -> Result<Option<DirFile>> {
        let path = self.path.join(name);
        // Without waiting for somebody to write into what is no file.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(io_error("cannot open file", &path, error)),
        };
        let found = file.metadata().map_err(|error| io_error("cannot look at", &path, error))?;
        if !found.is_file() {
            return Err(Error::corrupt(format!("is not a file path=`{}`", path.display())));
        }
        Ok(Some(DirFile { file, path, len: found.len() }))
    }

    /// Hands out a log of it in the pieces that a log is read in.
    pub(super) fn read_log(&self, name: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let DirFile { mut file, path, .. } =
            self.file(name)?.ok_or_else(|| missing(&self.path.join(name)))?;
        let mut block = Vec::with_capacity(BLOCK);
        loop {
            block.clear();
            let len = (&mut file).take(BLOCK as u64).read_to_end(&mut block);
            let len = len.map_err(|error| io_error("cannot read file", &path, error))?;
            self.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
            each(&block)?;
            // Somebody may be writing: what comes after the end is not asked for.
            if len < BLOCK {
                return Ok(());
            }
        }
    }

    /// Reads a part of a file of it, which must be within.
    pub(super) fn read(&self, file: &DirFile, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|error| {
            let message = format!("out of memory for a read bytes=`{len}`");
            Error::new(ErrorKind::Full, message).with_source(error)
        })?;
        while bytes.len() < len {
            let at = offset.saturating_add(bytes.len() as u64);
            match pread(&file.file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(file.too_short()),
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(error) => return Err(io_error("cannot read file", &file.path, error)),
            }
        }
        // The memory may be a little larger than was asked for.
        bytes.truncate(len);
        self.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

fn state(found: &Metadata) -> (u64, u64, i64, i64) {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

/// An open file of a directory.
#[derive(Debug)]
pub(super) struct DirFile {
    file: File,
    path: PathBuf,
    len: u64,
}

impl DirFile {
    /// How long it was when it was opened.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The error for one that ends too early.
    pub(super) fn too_short(&self) -> Error {
        Error::corrupt(format!("file is shorter than it should be path=`{}`", self.path.display()))
    }
}
