//! What a db holds and where: all keys in order, with the places of their values in the file.
//!
//! Opening walks the tree once, branches and leaves only. Keys must ascend strictly over the whole walk and no page is
//! empty, so a page that is reached twice is an error at its first key, and no damage makes the walk longer than the file.

use ckpt_engine::{Error, Result};

use super::pages::{Extent, Kind, Meta, damaged, nodes};
use crate::store::zeroed;

/// All keys and the places of their values.
#[derive(Debug)]
pub(super) struct Index {
    meta: Meta,
    /// All keys, one after the other.
    keys: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    key_end: usize,
    value: Extent,
}

impl Index {
    /// Walks the newest tree of a file of this length.
    pub(super) fn load(file_len: u64, mut fetch: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Self> {
        let meta = Meta::read(file_len, &mut fetch)?;
        let mut index = Self { meta, keys: Vec::new(), entries: Vec::new() };
        if let Some(root) = meta.root {
            index.visit(root, 1, &mut fetch)?;
        }
        if index.entries.len() as u64 != meta.entries {
            return Err(Error::corrupt(format!(
                "LMDB file has not the entries that it should found=`{}` expected=`{}`",
                index.entries.len(),
                meta.entries
            )));
        }
        Ok(index)
    }

    fn visit(
        &mut self,
        number: u64,
        level: u16,
        fetch: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut page = zeroed(self.meta.page_size)?;
        fetch(self.meta.locate(number, 1)?, &mut page)?;
        if level == self.meta.depth {
            for node in nodes(&page, number, Kind::Leaf)? {
                let value = self.meta.value(&page, number, &node)?;
                self.push(number, node.key, value)?;
            }
            return Ok(());
        }
        for (at, node) in nodes(&page, number, Kind::Branch)?.iter().enumerate() {
            let before = self.entries.len();
            self.visit(node.child(), level + 1, fetch)?;
            // The first child has all that is less than the second's key: its own key is not used.
            let between = self.last_key(before) < node.key && Some(node.key) <= self.key(before);
            if at > 0 && !between {
                return Err(damaged(number, "a key does not lie between the children that it divides"));
            }
        }
        Ok(())
    }

    fn push(&mut self, number: u64, key: &[u8], value: Extent) -> Result<()> {
        if self.last_key(self.entries.len()) >= key {
            return Err(damaged(number, "its keys do not ascend"));
        }
        self.keys.extend_from_slice(key);
        self.entries.push(Entry { key_end: self.keys.len(), value });
        Ok(())
    }

    /// The key before entry `number`; the empty one, which no record has, before the first.
    fn last_key(&self, number: usize) -> &[u8] {
        number.checked_sub(1).and_then(|last| self.key(last)).unwrap_or_default()
    }

    fn key(&self, number: usize) -> Option<&[u8]> {
        let start = match number.checked_sub(1) {
            Some(before) => self.entries.get(before)?.key_end,
            None => 0,
        };
        self.keys.get(start..self.entries.get(number)?.key_end)
    }

    /// What the meta page says.
    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The entry of this number, in key order.
    pub(super) fn entry(&self, number: usize) -> Option<(&[u8], Extent)> {
        Some((self.key(number)?, self.entries.get(number)?.value))
    }

    /// The number of the first entry whose key is not less.
    pub(super) fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.entries.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) < Some(key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Where the value of a key is.
    pub(super) fn find(&self, key: &[u8]) -> Option<Extent> {
        let (found, value) = self.entry(self.lower_bound(key))?;
        (found == key).then_some(value)
    }
}
