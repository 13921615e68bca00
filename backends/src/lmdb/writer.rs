//! Writing: the pages of the file from its front to its end, then the meta pages.

use ckpt_engine::db::{Payload, Transaction, WritePlan, check_order};
use ckpt_engine::{Error, ErrorKind, Result};

use super::build::{PAGE_SIZE, Tree};
use super::config::{MAX_KEY_LEN, MAX_VALUE_LEN};
use super::driver::DATA;
use crate::store::Expected;
use crate::store::fs::{FileInStagedDir, StagedDir};

/// One write of a db into an empty staged directory.
#[derive(Debug)]
pub(super) struct LmdbWriter {
    file: FileInStagedDir,
    tree: Tree,
    last_key: Vec<u8>,
    /// A write failed: a part of the records may be lost and the rest must not be published.
    failed: bool,
}

impl LmdbWriter {
    pub(super) fn new(staged: &StagedDir, plan: &WritePlan) -> Result<Self> {
        let mut file = staged.create_file(DATA, Expected { bytes: most_bytes(plan), limits: plan.limits })?;
        file.append(Tree::placeholder())?;
        Ok(Self { file, tree: Tree::new(), last_key: Vec::new(), failed: false })
    }

    /// Writes what is left. It becomes durable with the directory.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.failed {
            return Err(Error::new(ErrorKind::Closed, "write failed before, so it cannot be committed"));
        }
        let (pieces, meta) = self.tree.finish();
        self.file.append(pieces)?;
        self.file.finish_with_front(&meta)
    }

    fn append(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        check_order(Some(&self.last_key), key)?;
        if key.len() > MAX_KEY_LEN || value.len() as u64 > MAX_VALUE_LEN {
            return Err(Error::invalid(format!(
                "record is too large for LMDB key_bytes=`{}` value_bytes=`{}`",
                key.len(),
                value.len()
            )));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        match self.tree.add(key, value.pieces()) {
            pieces if pieces.is_empty() => Ok(()),
            pieces => self.file.append(pieces),
        }
    }
}

impl Transaction for LmdbWriter {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        let appended = self.append(key, &value);
        self.failed |= appended.is_err();
        appended
    }
}

/// No more than this is written: values, the rounding to pages for each, keys, and the tree.
fn most_bytes(plan: &WritePlan) -> u64 {
    let per_record = (PAGE_SIZE + 2 * (MAX_KEY_LEN + 1)) as u64;
    plan.records.saturating_mul(per_record).saturating_add(plan.bytes).saturating_add(1 << 20)
}
