//! Reading records of tables that are as ours, without RocksDB: straight to their place.
//!
//! RocksDB reads a block into memory of its own, which is new each time, and from there it is copied to where it belongs. Here the
//! value of a large record is read to its place, because it begins on a page, and the rest of its block is compared with what it must
//! be. The checksum of the block is checked all the same.
//!
//! Nothing depends on it: only what is surely the one record of its key is read, from tables that have nothing but records, while
//! nothing of the database is in a log. All else, and all that is not as it should be, is left to RocksDB, which says what is wrong.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ::rocksdb::{DB, properties};
use ckpt_engine::db::{Limits, ReadSink};
use ckpt_engine::{Error, Result};

use super::table::{FOOTER, PROPERTIES, decode_footer};
use crate::store::Segment;
use crate::store::fs::FileReader;
use crate::store::wanted::Wanted;
use crate::table::{
    Block, Handle, Index, LONE_END, RAW, TRAILER, VALUE, Walk, check, lone_header, lone_value_len, trailer,
    unseal,
};

/// So many tables are kept open. A database of ours has one for every GiB; RocksDB keeps open its own.
const KEPT_OPEN: usize = 256;

/// From this length on values begin on a page, and are read to their place.
const LEAST_STRAIGHT: u64 = 64 << 10;

/// The tables that can be read, in the order of their keys, which do not overlap.
#[derive(Debug)]
pub(super) struct DirectTables {
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    file: FileReader,
    index: Index,
    smallest: Vec<u8>,
    largest: Vec<u8>,
}

/// Where a record is that has a block of its own.
#[derive(Debug)]
struct Place {
    block: Handle,
    /// What must be before the value.
    header: Vec<u8>,
    value_len: u64,
}

impl DirectTables {
    /// The tables of an open database that lies at `path`.
    pub(super) fn open(db: &DB, path: &Path) -> Self {
        let tables = Self::find(db, path).unwrap_or_default();
        tracing::debug!(tables = tables.len(), path = %path.display(), "tables that are read without RocksDB");
        Self { tables }
    }

    fn find(db: &DB, path: &Path) -> Option<Vec<Table>> {
        let unsorted = [properties::NUM_ENTRIES_ACTIVE_MEM_TABLE, properties::NUM_ENTRIES_IMM_MEM_TABLES];
        if unsorted.iter().any(|name| !matches!(db.property_int_value(*name), Ok(Some(0)))) {
            return None;
        }
        let mut live = Vec::new();
        for file in db.live_files().ok()? {
            live.push((file.start_key?, file.end_key?, file.name));
        }
        live.sort_unstable();
        // Where tables overlap, one may have what replaces a record of another.
        if !live.is_sorted_by(|a, b| a.1 < b.0) {
            return None;
        }
        let open = |(smallest, largest, name): (_, _, String)| {
            Table::open(&path.join(name.trim_start_matches('/')), smallest, largest)
        };
        Some(live.into_iter().take(KEPT_OPEN).filter_map(open).collect())
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.tables.iter().map(|table| table.file.bytes_read()).sum()
    }

    /// Reads what it can of these records, which are in the order of their keys, and returns the others.
    pub(super) fn read<'a>(
        &self,
        records: Vec<Wanted<'a>>,
        limits: &Limits,
        sink: &ReadSink<'_>,
    ) -> Result<Vec<Wanted<'a>>> {
        let mut left = Vec::new();
        let mut records = records.into_iter().peekable();
        for table in &self.tables {
            let mut found = Vec::new();
            while let Some(record) = records.next_if(|record| record.key <= &table.largest[..]) {
                match table.locate(record.key) {
                    Some(place) => found.push((place, record)),
                    None => left.push(record),
                }
            }
            left.extend(table.read(found, limits, sink)?);
        }
        left.extend(records);
        Ok(left)
    }
}

impl Table {
    /// `None` for a table that is not as ours, or is damaged: RocksDB knows what it is.
    fn open(path: &Path, smallest: Vec<u8>, largest: Vec<u8>) -> Option<Self> {
        let file = File::open(path).ok()?;
        let end = file.metadata().ok()?.len().checked_sub(FOOTER as u64)?;
        let file = FileReader::new(file, path.to_owned());
        let mut footer = [0; FOOTER];
        file.read_at(&mut footer, end).ok()?;
        let (names, index) = decode_footer(&footer, end)?;
        // A filter is no harm, a deletion of whole ranges of keys is one: there must be nothing but what ours have.
        let names = read_block(&file, names)?;
        let mut walk = Walk::default();
        let is_alone = names.next(&mut walk).ok()? && walk.key() == PROPERTIES.as_bytes();
        if !is_alone || names.next(&mut walk).ok()? {
            return None;
        }
        let index = Index::new(read_block(&file, index)?, end).ok()?;
        Some(Self { file, index, smallest, largest })
    }

    /// Where a record is, if it has a block of its own.
    fn locate(&self, key: &[u8]) -> Option<Place> {
        if key < &self.smallest[..] {
            return None;
        }
        // The first of its key is the newest.
        let walk = self.index.seek(key).ok()??;
        let block = self.index.handle(&walk).ok()?;
        let is_value = walk.user_key() == key && walk.kind() == Some(VALUE);
        let value_len = lone_value_len(walk.key(), usize::try_from(block.len).ok()?).filter(|_| is_value)?;
        Some(Place { block, header: lone_header(walk.key(), value_len), value_len: value_len as u64 })
    }

    /// Reads records, and returns those that are not as they should be.
    fn read<'a>(
        &self,
        found: Vec<(Place, Wanted<'a>)>,
        limits: &Limits,
        sink: &ReadSink<'_>,
    ) -> Result<Vec<Wanted<'a>>> {
        let (mut straight, mut lent) = (Vec::new(), Vec::new());
        for (place, mut record) in found {
            let is_straight = place.value_len >= LEAST_STRAIGHT && record.whole(place.value_len).is_some();
            if is_straight { &mut straight } else { &mut lent }.push((place, record));
        }
        let mut left = self.read_straight(straight, limits, sink)?;
        left.extend(self.read_lent(lent, limits, sink)?);
        Ok(left)
    }

    /// Reads the values of records that are wanted whole to their places.
    fn read_straight<'a>(
        &self,
        found: Vec<(Place, Wanted<'a>)>,
        limits: &Limits,
        sink: &ReadSink<'_>,
    ) -> Result<Vec<Wanted<'a>>> {
        let (places, mut records): (Vec<Place>, Vec<Wanted<'a>>) = found.into_iter().unzip();
        let done: Vec<AtomicBool> = records.iter().map(|_| AtomicBool::new(false)).collect();
        let (mut segments, mut indexes) = (Vec::new(), Vec::new());
        for (number, (place, record)) in places.iter().zip(&mut records).enumerate() {
            let whole = record.whole(place.value_len);
            let (index, into) = whole.ok_or_else(|| Error::internal("record is not wanted whole"))?;
            let start = place.block.offset + place.header.len() as u64;
            let (range, len) = (start..start + place.value_len, into.len());
            segments.push(Segment { index: number, range, len, into: Some(into) });
            indexes.push(index);
        }
        self.file.read(segments, limits, &|number, read| {
            let asked = places.get(number).zip(indexes.get(number)).zip(done.get(number));
            let ((place, &index), done) = asked.ok_or_else(nobody_asked)?;
            match read.and_then(|value| self.check_around(place, value).map(|()| value)) {
                Ok(value) => {
                    done.store(true, Ordering::Relaxed);
                    sink(index, Ok(value))
                }
                Err(error) => {
                    tracing::debug!(%error, "left to RocksDB");
                    Ok(())
                }
            }
        })?;
        let left = records.into_iter().zip(done).filter(|(_, done)| !done.load(Ordering::Relaxed));
        Ok(left.map(|(record, _)| record).collect())
    }

    /// Reads whole blocks, and hands out what is wanted of them.
    fn read_lent<'a>(
        &self,
        found: Vec<(Place, Wanted<'a>)>,
        limits: &Limits,
        sink: &ReadSink<'_>,
    ) -> Result<Vec<Wanted<'a>>> {
        let mut segments = Vec::new();
        for (number, (place, _)) in found.iter().enumerate() {
            let (start, len) = (place.block.offset, place.block.len + TRAILER as u64);
            let bytes = usize::try_from(len).map_err(|_| Error::internal("block is longer than memory"))?;
            segments.push(Segment { index: number, range: start..start + len, len: bytes, into: None });
        }
        let slots: Vec<_> =
            found.into_iter().map(|(place, record)| (place, Mutex::new(Some(record)))).collect();
        self.file.read(segments, limits, &|number, read| {
            let (place, slot) = slots.get(number).ok_or_else(nobody_asked)?;
            match read.and_then(|stored| place.check_whole(stored)) {
                Ok(value) => {
                    let record = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                    record.ok_or_else(nobody_asked)?.hand_out(&Ok(Some(value)), sink)
                }
                Err(error) => {
                    tracing::debug!(%error, "left to RocksDB");
                    Ok(())
                }
            }
        })?;
        let left = slots
            .into_iter()
            .filter_map(|(_, slot)| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(left.collect())
    }

    /// Reads what is around a value that was read, and checks all of the block.
    fn check_around(&self, place: &Place, value: &[u8]) -> Result<()> {
        let mut header = vec![0; place.header.len()];
        self.file.read_at(&mut header, place.block.offset)?;
        let mut end = [0; LONE_END.len() + TRAILER];
        self.file.read_at(&mut end, place.block.offset + (place.header.len() + value.len()) as u64)?;
        let crc = [&header[..], value, &LONE_END].into_iter().fold(0, crc32c::crc32c_append);
        let is_as_ours = header == place.header && end[..] == [&LONE_END[..], &trailer(crc, RAW)].concat();
        if is_as_ours { Ok(()) } else { Err(place.differs()) }
    }
}

impl Place {
    /// The value in a block that was read with what comes after it.
    fn check_whole<'b>(&self, stored: &'b [u8]) -> Result<&'b [u8]> {
        let is_raw = check(stored)? == RAW;
        let end = stored.len().checked_sub(LONE_END.len() + TRAILER);
        let parts =
            end.and_then(|end| stored.get(..end)?.split_at_checked(self.header.len()).zip(stored.get(end..)));
        match parts {
            Some(((header, value), end)) if is_raw && header == self.header && end.starts_with(&LONE_END) => {
                Ok(value)
            }
            _ => Err(self.differs()),
        }
    }

    fn differs(&self) -> Error {
        Error::corrupt(format!("block of a table is not as it should be offset=`{}`", self.block.offset))
    }
}

fn nobody_asked() -> Error {
    Error::internal("answer to a read nobody made")
}

fn read_block(file: &FileReader, block: Handle) -> Option<Block> {
    let stored = file.fetch(block.offset..block.end()?).ok()?;
    let (kind, contents) = unseal(stored.into()).ok()?;
    (kind == RAW).then(|| Block::new(contents.into()).ok())?
}
