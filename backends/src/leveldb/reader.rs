//! Reading: the log in memory, the blocks of tables as they are wanted, each of them once.

use std::path::Path;

use bytes::Bytes;
use ckpt_engine::db::{Cursor, Db, Limits, Read, ReadSink};
use ckpt_engine::{Error, Result, ResultExt};

use super::cursor::LevelCursor;
use super::dir::Dir;
use super::format::Stored;
use super::recent::Recent;
use super::tables::Tables;
use super::version::Version;
use crate::store::again;
use crate::store::parallel;
use crate::store::wanted::Wanted;
use crate::table::{Block, Handle, Walk};

/// Openings that are tried anew because the database was changed under them.
const MAX_CHANGED: u32 = 1000;

/// An open database.
#[derive(Debug)]
pub(super) struct LevelDb {
    dir: Dir,
    recent: Recent,
    tables: Tables,
}

/// Records that are looked for in the same blocks, by their keys.
struct Together<'a> {
    blocks: Vec<(usize, Handle)>,
    records: Vec<Wanted<'a>>,
}

impl LevelDb {
    /// Opens the database in the directory at `path`. Fails with `NotFound` if there is none.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut changed = 0;
        loop {
            let dir = Dir::open(path)?;
            match Self::load(&dir) {
                // An older one is removed as soon as a newer one has its name; one that is destroyed is not found then. A LevelDB
                // that has it open makes tables of its log, and removes that.
                Err(_) if changed < MAX_CHANGED && dir.has_changed() => changed += 1,
                loaded => {
                    let context = || format!("cannot open LevelDB database path=`{}`", path.display());
                    let (recent, tables) = loaded.context(context)?;
                    return Ok(Self { dir, recent, tables });
                }
            }
        }
    }

    fn load(dir: &Dir) -> Result<(Recent, Tables)> {
        let version = Version::load(dir)?;
        Ok((Recent::load(dir, &version.logs)?, Tables::open(dir, version.tables)?))
    }

    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    pub(super) fn recent(&self) -> &Recent {
        &self.recent
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    fn read_block(&self, (table, block): (usize, Handle)) -> Result<Block> {
        let table = self.tables.get(table).ok_or_else(|| Error::internal("no table has this number"))?;
        table.read(&self.dir, block)
    }

    /// What a key was set to last, of the log and some blocks. Of each block the records before the key were passed already.
    fn newest<'b>(
        &self,
        key: &[u8],
        blocks: impl Iterator<Item = (&'b Block, &'b mut Walk)>,
    ) -> Result<Option<Bytes>> {
        let mut newest = self.recent.find(key).cloned();
        for (block, walk) in blocks {
            if block.advance(walk, key)? && walk.user_key() == key {
                newest = Some(Stored::newer(newest, Stored::at(block, walk)?));
            }
        }
        Ok(newest.and_then(|stored| stored.value))
    }

    /// Groups records by the blocks they are in.
    fn group<'a>(&self, records: Vec<Wanted<'a>>) -> Result<Vec<Together<'a>>> {
        let mut groups: Vec<Together<'a>> = Vec::new();
        for record in records {
            let blocks = self.tables.blocks_of(record.key)?;
            match groups.last_mut().filter(|group| group.blocks == blocks && !blocks.is_empty()) {
                Some(group) => group.records.push(record),
                None => groups.push(Together { blocks, records: vec![record] }),
            }
        }
        Ok(groups)
    }

    /// Reads blocks and hands out what is wanted of the records in them.
    fn read_together(&self, group: Together<'_>, sink: &ReadSink<'_>) -> Result<()> {
        let blocks: Result<Vec<_>> = group.blocks.into_iter().map(|block| self.read_block(block)).collect();
        let mut blocks =
            blocks.map(|blocks| blocks.into_iter().map(|block| (block, Walk::default())).collect::<Vec<_>>());
        for record in group.records {
            let value = match &mut blocks {
                Ok(blocks) => self.newest(record.key, blocks.iter_mut().map(|(block, walk)| (&*block, walk))),
                Err(error) => Err(again(error)),
            };
            record.hand_out(&value, sink)?;
        }
        Ok(())
    }
}

impl Db for LevelDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let blocks = self.tables.blocks_of(key)?.into_iter().map(|block| self.read_block(block));
        let mut blocks = blocks.map(|block| Ok((block?, Walk::default()))).collect::<Result<Vec<_>>>()?;
        let value = self.newest(key, blocks.iter_mut().map(|(block, walk)| (&*block, walk)))?;
        // A small one must not keep its block in memory.
        let kept: usize = blocks.iter().map(|(block, _)| block.len()).sum();
        Ok(value.map(|value| if value.len() < kept / 2 { Bytes::copy_from_slice(&value) } else { value }))
    }

    fn read(&self, reads: Vec<Read<'_>>, limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        let groups = self.group(Wanted::group(reads)?)?;
        // So many of the largest fit; how large a compressed one will be is not known before it is read.
        let bytes = |group: &Together<'_>| group.blocks.iter().map(|(_, block)| block.len).sum();
        let most: u64 = groups.iter().map(bytes).max().unwrap_or(0);
        let threads = limits.memory / usize::try_from(most).unwrap_or(usize::MAX).max(1);
        parallel::for_each(limits.threads.min(threads).max(1), groups, |(), group| {
            self.read_together(group, sink)
        })
    }

    fn map(&self, _first: &[u8], _last: &[u8]) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(LevelCursor::new(self)?))
    }

    fn bytes_read(&self) -> u64 {
        self.dir.bytes_read()
    }
}
