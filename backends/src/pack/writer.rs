//! Writing a pack: values as they come, then index and footer.

use bytes::Bytes;
use ckpt_engine::db::{Payload, Transaction, check_order};
use ckpt_engine::{Error, ErrorKind, Result};

use super::format::{self, IndexBuilder};
use crate::store::Writer;

/// A pack on its way. Dropped, it is discarded.
pub(super) struct PackWriter {
    writer: Box<dyn Writer>,
    index: IndexBuilder,
    last_key: Vec<u8>,
    /// How many bytes were written.
    end: u64,
    /// A write failed: what is staged has a hole and must not be published.
    failed: bool,
}

impl PackWriter {
    /// Begins a pack.
    pub(super) fn new(mut writer: Box<dyn Writer>) -> Result<Self> {
        writer.append(vec![format::encode_header()])?;
        let (index, last_key) = (IndexBuilder::default(), Vec::new());
        Ok(Self { writer, index, last_key, end: format::BLOCK, failed: false })
    }

    /// Ends the pack and publishes it.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.failed {
            return Err(Error::new(ErrorKind::Closed, "write failed before, so it cannot be committed"));
        }
        let padding = format::padding_before_index(self.end);
        let (index, footer) = self.index.finish(self.end + padding.len() as u64);
        self.writer.append(vec![padding, index, footer])?;
        self.writer.commit()
    }

    fn append(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        check_order(Some(&self.last_key).filter(|last| !last.is_empty()).map(Vec::as_slice), key)?;
        let len = value.len() as u64;
        let padding = format::padding_before_value(self.end, len);
        let offset = self.end + padding.len() as u64;
        self.index.push(key, offset, len)?;
        let pieces: Vec<Bytes> = std::iter::once(padding).chain(value.pieces().iter().cloned()).collect();
        self.writer.append(pieces)?;
        self.end = offset + len;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }
}

impl Transaction for PackWriter {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        let appended = self.append(key, &value);
        self.failed |= appended.is_err();
        appended
    }
}
