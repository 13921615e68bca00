//! The index of a table: a block whose values say where the data blocks are.
//!
//! The key of each is not less than the last of its block and less than the first of the next one.

use ckpt_engine::Result;

use super::block::damaged;
use super::{Block, Handle, Input, Walk};

/// The index of a table. Every record of it was looked at.
#[derive(Debug)]
pub(crate) struct Index {
    block: Block,
}

impl Index {
    /// Checks the index of a table whose data blocks end at or before `end`.
    pub(crate) fn new(block: Block, end: u64) -> Result<Self> {
        let index = Self { block };
        let (mut walk, mut full_keys) = (Walk::default(), 0);
        loop {
            // A search begins at any of these: each must be a record, and its key full.
            if index.block.full_key_at(full_keys) == Some(walk.next_at()) && !index.block.is_empty() {
                index.block.full_key(walk.next_at())?;
                full_keys += 1;
            }
            if !index.block.next(&mut walk)? {
                break;
            }
            if index.handle(&walk)?.end().is_none_or(|block_end| block_end > end) {
                return Err(damaged("points outside of the table"));
            }
        }
        if full_keys != index.block.full_keys() && !index.block.is_empty() {
            return Err(damaged("has full keys where there are none"));
        }
        Ok(index)
    }

    /// At the only block that can hold a key, or `None` if it comes after all of them.
    pub(crate) fn seek(&self, user: &[u8]) -> Result<Option<Walk>> {
        let (mut low, mut high) = (0, if self.block.is_empty() { 0 } else { self.block.full_keys() });
        // The first full key that is not less.
        while low < high {
            let middle = low + (high - low) / 2;
            let at = self.block.full_key_at(middle).unwrap_or_default();
            if super::split_key(self.block.full_key(at)?).is_some_and(|(found, _)| found < user) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let at = low.checked_sub(1).and_then(|before| self.block.full_key_at(before));
        let mut walk = Walk::at(at.unwrap_or_default());
        Ok(self.block.advance(&mut walk, user)?.then_some(walk))
    }

    /// Goes to the next block; `false` if there is none.
    pub(crate) fn next(&self, walk: &mut Walk) -> Result<bool> {
        self.block.next(walk)
    }

    /// Where the block at the position is.
    pub(crate) fn handle(&self, walk: &Walk) -> Result<Handle> {
        let handle = Handle::decode(&mut Input(self.block.value(walk)));
        handle.ok_or_else(|| damaged("points to no block"))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::table::{BlockBuilder, VALUE, internal_key};

    fn build(interval: usize, count: u64) -> Bytes {
        let mut builder = BlockBuilder::new(interval);
        for number in 0..count {
            let handle = Handle { offset: number * 100, len: 95 };
            let key = internal_key(format!("k{:03}", number * 2).as_bytes(), 1, VALUE);
            builder.add(&key, &[handle.encode().into()]);
        }
        builder.finish().into()
    }

    fn index(interval: usize, count: u64) -> Index {
        Index::new(Block::new(build(interval, count)).unwrap(), count * 100).unwrap()
    }

    #[test]
    fn the_block_of_a_key_is_found() {
        for interval in [1, 2, 16] {
            for count in [0, 1, 2, 40] {
                let index = index(interval, count);
                for number in 0..2 * count + 2 {
                    let found = index.seek(format!("k{number:03}").as_bytes()).unwrap();
                    let found = found.map(|walk| index.handle(&walk).unwrap().offset);
                    let expected = Some(number.div_ceil(2) * 100).filter(|offset| *offset < count * 100);
                    assert_eq!(found, expected, "interval {interval}, key {number} of {count}");
                }
                assert_eq!(index.seek(b"").unwrap().is_some(), count > 0);
            }
        }
    }

    #[test]
    fn blocks_follow_each_other() {
        let index = index(16, 40);
        let mut walk = index.seek(b"k037").unwrap().unwrap();
        for number in 19..40 {
            assert_eq!(index.handle(&walk).unwrap(), Handle { offset: number * 100, len: 95 });
            assert_eq!(index.next(&mut walk).unwrap(), number < 39);
        }
    }

    #[test]
    fn what_points_elsewhere_is_refused() {
        let bytes = build(2, 10);
        assert!(Index::new(Block::new(bytes.clone()).unwrap(), 999).is_err());
        // No places of full keys but the right ones.
        let places = bytes.len() - 4 * 6..bytes.len() - 4;
        for at in places {
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                let block = Block::new(damaged.into()).unwrap();
                assert!(Index::new(block, 1000).is_err(), "byte {at} bit {bit}");
            }
        }
        let mut builder = BlockBuilder::new(1);
        builder.add(&internal_key(b"k", 1, VALUE), &[Bytes::from_static(b"\x80")]);
        assert!(Index::new(Block::new(builder.finish().into()).unwrap(), 1000).is_err());
    }
}
