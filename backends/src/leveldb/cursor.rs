//! A position among the keys of a database, which are in logs and tables: each of these gives its keys in order, and of a key that
//! several have, the newest counts.
//!
//! A table is looked at when its turn comes. To know a key, its block must be read; the value is a part of that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::db::{Cursor, copy_value, past_the_end};

use super::dir::Dir;
use super::format::Stored;
use super::reader::LevelDb;
use super::recent::Recent;
use super::tables::Table;
use crate::table::{Block, Walk};

/// A cursor over an open database.
pub(super) struct LevelCursor<'a> {
    sources: Vec<Source<'a>>,
    /// No key that a source has yet to give is less than this one, with the source's number. A source that is not here has no more.
    next: BinaryHeap<Reverse<(Bytes, usize)>>,
    current: Option<(Bytes, Bytes)>,
}

/// What gives keys in order.
enum Source<'a> {
    Recent { recent: &'a Recent, number: usize },
    Table(InTable<'a>),
}

/// A position in a table.
struct InTable<'a> {
    dir: &'a Dir,
    table: &'a Table,
    /// Where in the index, if anywhere yet.
    index: Option<Walk>,
    /// The block that was read last, and its offset.
    block: Option<(u64, Block)>,
    walk: Walk,
}

impl<'a> LevelCursor<'a> {
    /// At the first record.
    pub(super) fn new(db: &'a LevelDb) -> Result<Self> {
        let tables = db.tables().iter().map(|table| {
            let (index, block, walk) = (None, None, Walk::default());
            Source::Table(InTable { dir: db.dir(), table, index, block, walk })
        });
        let recent = Source::Recent { recent: db.recent(), number: 0 };
        let sources = std::iter::once(recent).chain(tables).collect();
        let mut cursor = Self { sources, next: BinaryHeap::new(), current: None };
        cursor.seek(&[])?;
        Ok(cursor)
    }

    /// Goes to the least key that the sources have yet to give and that is not deleted. After an error it is past the end: what is
    /// after the key is not to be taken for what is at it.
    fn settle(&mut self) -> Result<()> {
        self.current = None;
        let settled = self.find();
        if settled.is_err() {
            self.next.clear();
        }
        self.current = settled?;
        Ok(())
    }

    fn find(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let mut found: Option<(Bytes, Stored)> = None;
        while let Some(Reverse((least, number))) = self.next.pop() {
            if let Some((key, stored)) = found.take_if(|(key, _)| *key < least) {
                self.next.push(Reverse((least, number)));
                if let Some(value) = stored.value {
                    return Ok(Some((key, value)));
                }
                continue;
            }
            let Some(source) = self.sources.get_mut(number) else { continue };
            let Some((key, stored)) = source.advance(&least)? else { continue };
            if key > least {
                self.next.push(Reverse((key, number)));
                continue;
            }
            self.next.push(Reverse((successor(&key), number)));
            found = Some((key, Stored::newer(found.map(|(_, stored)| stored), stored)));
        }
        Ok(found.and_then(|(key, stored)| Some((key, stored.value?))))
    }

    fn at(&self) -> Result<(&Bytes, &Bytes)> {
        self.current.as_ref().map(|(key, value)| (key, value)).ok_or_else(past_the_end)
    }
}

impl Source<'_> {
    /// Goes on, or stays, to the first key that is not less.
    fn advance(&mut self, least: &Bytes) -> Result<Option<(Bytes, Stored)>> {
        match self {
            Self::Recent { recent, number } => {
                while recent.get(*number).is_some_and(|(key, _)| key < least) {
                    *number += 1;
                }
                Ok(recent.get(*number).cloned())
            }
            Self::Table(table) => table.advance(least),
        }
    }

    /// The least key that it may give from `key` on, or `None` if it has none.
    fn seek(&mut self, key: &[u8]) -> Option<Bytes> {
        match self {
            Self::Recent { recent, number } => {
                *number = recent.lower_bound(key);
                recent.get(*number).map(|(key, _)| key.clone())
            }
            Self::Table(position) => {
                position.index = None;
                let (smallest, largest) = position.table.keys();
                (key <= largest)
                    .then(|| if key > smallest { Bytes::copy_from_slice(key) } else { smallest.clone() })
            }
        }
    }
}

impl InTable<'_> {
    fn advance(&mut self, least: &Bytes) -> Result<Option<(Bytes, Stored)>> {
        let index = self.table.index();
        if self.index.is_none() {
            self.index = index.seek(least)?;
            self.enter()?;
        }
        while let (Some(at), Some((_, block))) = (&mut self.index, &self.block) {
            if block.advance(&mut self.walk, least)? {
                // A key that was given before goes on in memory that is its own.
                return Ok(Some((
                    Bytes::copy_from_slice(self.walk.user_key()),
                    Stored::at(block, &self.walk)?,
                )));
            }
            if !index.next(at)? {
                break;
            }
            self.enter()?;
        }
        Ok(None)
    }

    /// To the front of the block that the index is at, which is read unless it was read last.
    fn enter(&mut self) -> Result<()> {
        self.walk = Walk::default();
        let Some(at) = &self.index else { return Ok(()) };
        let handle = self.table.index().handle(at)?;
        if self.block.as_ref().is_none_or(|(offset, _)| *offset != handle.offset) {
            // One block at a time.
            self.block = None;
            self.block = Some((handle.offset, self.table.read(self.dir, handle)?));
        }
        Ok(())
    }
}

/// The first key after another one.
fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

impl Cursor for LevelCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().map(|(key, _)| &key[..])
    }

    fn value(&self) -> Result<Bytes> {
        self.at().map(|(_, value)| value.clone())
    }

    fn value_len(&self) -> Result<u64> {
        self.at().map(|(_, value)| value.len() as u64)
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let (key, value) = self.at()?;
        copy_value(value, start, into, key)
    }

    fn next(&mut self) -> Result<()> {
        self.settle()
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.next.clear();
        for (number, source) in self.sources.iter_mut().enumerate() {
            self.next.extend(source.seek(key).map(|least| Reverse((least, number))));
        }
        self.settle()
    }
}
