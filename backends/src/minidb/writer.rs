//! Writing: entries as they come.

use bytes::Bytes;
use ckpt_engine::db::{Payload, Transaction};
use ckpt_engine::{Error, ErrorKind, Result};

use super::format::{self, HEADER_LEN};
use crate::store::Writer;

/// One write of a file.
pub(super) struct MiniWriter {
    writer: Box<dyn Writer>,
    /// A put failed: a part of its entry may be written.
    failed: bool,
}

impl MiniWriter {
    /// Writes through `writer`.
    pub(super) fn new(writer: Box<dyn Writer>) -> Self {
        Self { writer, failed: false }
    }

    /// Makes the file durable and publishes it.
    pub(super) fn finish(self) -> Result<()> {
        if self.failed {
            return Err(Error::new(ErrorKind::Closed, "write failed before, so it cannot be committed"));
        }
        self.writer.commit()
    }

    fn append(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        let mut head = Vec::with_capacity(HEADER_LEN + key.len());
        head.extend_from_slice(&format::header(key.len(), value.len())?);
        head.extend_from_slice(key);
        let mut pieces = Vec::with_capacity(1 + value.pieces().len());
        pieces.push(Bytes::from(head));
        pieces.extend_from_slice(value.pieces());
        self.writer.append(pieces)
    }
}

impl Transaction for MiniWriter {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        let appended = self.append(key, &value);
        self.failed |= appended.is_err();
        appended
    }
}
