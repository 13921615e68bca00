//! The small records of a place as files in `<prefix>/.ckpt/`.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use bytes::Bytes;
use ckpt_engine::db::{PutMode, Records};
use ckpt_engine::{Error, ErrorKind, Result};

use super::{StagedFile, destroy_file, io_error, list_files};
use crate::store::MAX_RECORD_LEN;
use crate::store::names::{self, check_record_name};

/// [`Records`] on a file system.
#[derive(Debug)]
pub(crate) struct FsRecords {
    dir: PathBuf,
}

impl FsRecords {
    /// The records of the place `prefix`. Touches nothing.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { dir: PathBuf::from(prefix).join(names::RECORDS) }
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        check_record_name(name)?;
        Ok(self.dir.join(name))
    }
}

impl Records for FsRecords {
    fn get(&self, name: &str) -> Result<Option<Bytes>> {
        let path = self.path(name)?;
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("cannot open record", &path, error)),
        };
        let mut value = Vec::new();
        let read = file.take(MAX_RECORD_LEN + 1).read_to_end(&mut value);
        read.map_err(|error| io_error("cannot read record", &path, error))?;
        if value.len() as u64 > MAX_RECORD_LEN {
            return Err(Error::corrupt(format!(
                "record is longer than {MAX_RECORD_LEN} bytes path=`{}`",
                path.display()
            )));
        }
        Ok(Some(value.into()))
    }

    fn put(&self, name: &str, value: Bytes, mode: PutMode) -> Result<()> {
        let path = self.path(name)?;
        let mut staged = StagedFile::create(&path)?;
        staged.write(&[value])?;
        match mode {
            PutMode::Replace => staged.publish(),
            PutMode::Create => staged.publish_new(),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        match list_files(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    }

    fn delete(&self, name: &str) -> Result<()> {
        destroy_file(&self.path(name)?)
    }
}
