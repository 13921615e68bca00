//! The tables of a database. On opening, only their indexes are read.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use ckpt_engine::{Error, Result, ResultExt};

use super::dir::{Dir, DirFile};
use super::error::missing;
use super::format::edit::{LEVELS, NewTable};
use super::format::table::{FOOTER, decode_footer, open_block};
use crate::table::{Block, Handle, Index, key_order, split_key};

/// So many files are kept open. A database of ours has few tables, one of LevelDB's has one for every 2 MiB: a process may not have
/// so many open files.
const KEPT_OPEN: usize = 256;

/// All tables.
#[derive(Debug)]
pub(super) struct Tables {
    tables: Vec<Table>,
    /// The numbers of those of each level. Those of level 0 overlap; those of another one follow each other.
    levels: Vec<Range<usize>>,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    name: String,
    /// If it is kept open.
    file: Option<DirFile>,
    index: Index,
    /// The user's keys of its first and last record.
    smallest: Bytes,
    largest: Bytes,
}

impl Tables {
    /// Opens these tables and reads their indexes.
    pub(super) fn open(dir: &Dir, new: BTreeMap<(u32, u64), NewTable>) -> Result<Self> {
        let mut new: Vec<NewTable> = new.into_values().collect();
        new.sort_by(|a, b| (a.level, key_order(&a.smallest)).cmp(&(b.level, key_order(&b.smallest))));
        let levels = (0..LEVELS).map(|level| {
            let start = new.partition_point(|table| table.level < level);
            start..new.partition_point(|table| table.level <= level)
        });
        let levels: Vec<_> = levels.collect();
        for level in levels.iter().skip(1) {
            check_order(new.get(level.clone()).unwrap_or_default())?;
        }
        let opened = new.iter().enumerate().map(|(number, new)| Table::open(dir, new, number < KEPT_OPEN));
        Ok(Self { tables: opened.collect::<Result<_>>()?, levels })
    }

    /// The table of this number.
    pub(super) fn get(&self, number: usize) -> Option<&Table> {
        self.tables.get(number)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter()
    }

    /// The blocks that can hold a key, each with the number of its table.
    pub(super) fn blocks_of(&self, key: &[u8]) -> Result<Vec<(usize, Handle)>> {
        let mut blocks = Vec::new();
        for (level, numbers) in self.levels.iter().enumerate() {
            let tables = self.tables.get(numbers.clone()).unwrap_or_default();
            let skipped = if level == 0 { 0 } else { tables.partition_point(|table| *table.largest < *key) };
            let tables = tables.iter().enumerate().skip(skipped);
            for (number, table) in tables.take(if level == 0 { usize::MAX } else { 1 }) {
                if table.smallest <= key && key <= table.largest {
                    let block = table.index.seek(key)?.map(|walk| table.index.handle(&walk)).transpose()?;
                    blocks.extend(block.map(|block| (numbers.start + number, block)));
                }
            }
        }
        Ok(blocks)
    }
}

impl Table {
    fn open(dir: &Dir, new: &NewTable, is_kept_open: bool) -> Result<Self> {
        // LevelDB gave them another name until 2013.
        let names = ["ldb", "sst"].map(|extension| format!("{:06}.{extension}", new.number));
        for name in names {
            if let Some(file) = dir.file(&name)? {
                let index = read_index(dir, &file, new.bytes)
                    .context(|| format!("cannot open table path=`{}`", dir.path().join(&name).display()))?;
                let user_key = |key| Bytes::copy_from_slice(split_key(key).unwrap_or_default().0);
                let (smallest, largest) = (user_key(&new.smallest), user_key(&new.largest));
                return Ok(Self { name, file: is_kept_open.then_some(file), index, smallest, largest });
            }
        }
        Err(missing(&dir.path().join(format!("{:06}.ldb", new.number))))
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The user's keys of its first and last record.
    pub(super) fn keys(&self) -> (&Bytes, &Bytes) {
        (&self.smallest, &self.largest)
    }

    /// Reads a block of it.
    pub(super) fn read(&self, dir: &Dir, block: Handle) -> Result<Block> {
        let path = || dir.path().join(&self.name);
        let opened;
        let file = match &self.file {
            Some(file) => file,
            None => {
                opened = dir.file(&self.name)?.ok_or_else(|| missing(&path()))?;
                &opened
            }
        };
        read_block(dir, file, block)
            .context(|| format!("cannot read table path=`{}` offset=`{}`", path().display(), block.offset))
    }
}

/// Reads the index of a table that is so many bytes long. Its file may be longer.
fn read_index(dir: &Dir, file: &DirFile, bytes: u64) -> Result<Index> {
    let at =
        bytes.checked_sub(FOOTER as u64).filter(|_| bytes <= file.len()).ok_or_else(|| file.too_short())?;
    let index = decode_footer(&dir.read(file, at, FOOTER)?, at)?;
    Index::new(read_block(dir, file, index)?, at)
}

fn read_block(dir: &Dir, file: &DirFile, block: Handle) -> Result<Block> {
    let len = block.end().and_then(|end| usize::try_from(end - block.offset).ok());
    let stored = dir.read(file, block.offset, len.ok_or_else(|| file.too_short())?)?;
    Block::new(open_block(stored)?)
}

/// Tables of a level other than 0 must follow each other.
fn check_order(tables: &[NewTable]) -> Result<()> {
    let follow = tables.is_sorted_by(|a, b| key_order(&a.largest) < key_order(&b.smallest));
    let sound = tables.iter().all(|table| key_order(&table.smallest) <= key_order(&table.largest));
    if follow && sound { Ok(()) } else { Err(Error::corrupt("LevelDB tables of one level overlap")) }
}
