//! What a db holds and where: all keys in order, with the places of their values in the file.
//!
//! Opening walks the tree once, branches and leaves only. Keys must ascend strictly over the whole walk and no page is
//! empty, so a leaf that is reached again is an error at its first key: no damage makes the walk longer than the file. The
//! pages of values, whose headers are checked when they are read, must be in nobody else's use.

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
        let index = Self { meta, keys: Vec::new(), entries: Vec::new() };
        let mut walk = Walk { index, pages: Vec::new(), fetch: &mut fetch };
        if let Some(root) = meta.root {
            walk.visit(root, 1)?;
        }
        walk.finish()
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

/// An index on its way.
struct Walk<'f> {
    index: Index,
    /// The pages seen: the first, and how many.
    pages: Vec<(u64, u64)>,
    fetch: &'f mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
}

impl Walk<'_> {
    fn visit(&mut self, number: u64, level: u16) -> Result<()> {
        let mut page = zeroed(self.index.meta.page_size)?;
        (self.fetch)(self.index.meta.locate(number, 1)?, &mut page)?;
        self.pages.push((number, 1));
        if level == self.index.meta.depth {
            return self.take_leaf(&page, number);
        }
        for (at, node) in nodes(&page, number, Kind::Branch)?.iter().enumerate() {
            let before = self.index.entries.len();
            self.visit(node.child(), level + 1)?;
            // The first child has all that is less than the second's key: its own key is not used.
            let between = self.index.last_key(before) < node.key && Some(node.key) <= self.index.key(before);
            if at > 0 && !between {
                return Err(damaged(number, "a key does not lie between the children that it divides"));
            }
        }
        Ok(())
    }

    fn take_leaf(&mut self, page: &[u8], number: u64) -> Result<()> {
        for node in nodes(page, number, Kind::Leaf)? {
            let value = self.index.meta.value(page, number, &node)?;
            if let Some(first) = value.overflow {
                self.pages.push((first, self.index.meta.overflow_pages(value.len)));
            }
            if self.index.last_key(self.index.entries.len()) >= node.key {
                return Err(damaged(number, "its keys do not ascend"));
            }
            self.index.keys.extend_from_slice(node.key);
            self.index.entries.push(Entry { key_end: self.index.keys.len(), value });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Index> {
        let (found, expected) = (self.index.entries.len() as u64, self.index.meta.entries);
        if found != expected {
            return Err(Error::corrupt(format!(
                "LMDB file has not the entries that it should found=`{found}` expected=`{expected}`"
            )));
        }
        self.pages.sort_unstable();
        let mut free = 0;
        for (first, count) in self.pages {
            if first < free {
                return Err(damaged(first, "it is used twice"));
            }
            free = first + count;
        }
        Ok(self.index)
    }
}
