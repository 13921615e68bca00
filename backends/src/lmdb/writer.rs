//! Writing: records appended to the main database in a few transactions, then one sync.

use std::path::Path;

use ::lmdb::{Database, Environment, RwTransaction, Transaction as _, WriteFlags};
use ckpt_engine::db::{Payload, Transaction, check_order};
use ckpt_engine::{Error, ErrorKind, Result};

use super::config::{Config, MAX_KEY_LEN, MAX_VALUE_LEN};
use super::error;
use super::pages::{NODE_HEADER, PAGE_HEADER};

/// Pages that a transaction may take beside those for its records: copies of the path to the last leaf, and the list of the
/// pages that these replace.
const SPARE_PAGES: u64 = 64;

/// One write of a db into an environment that belongs to nobody else.
pub(super) struct LmdbWriter<'e> {
    dir: &'e Path,
    environment: &'e Environment,
    database: Database,
    page: u64,
    transaction_bytes: u64,
    transaction: Option<RwTransaction<'e>>,
    /// The bytes of the records in the transaction.
    pending: u64,
    /// The bytes of the map that the transaction cannot have taken yet.
    room: u64,
    last_key: Vec<u8>,
    /// A write failed: a part of the records may be lost and the rest must not be published.
    failed: bool,
}

impl<'e> LmdbWriter<'e> {
    /// Writes into `environment`, which is empty and lies in `dir`.
    pub(super) fn new(dir: &'e Path, environment: &'e Environment, config: &Config) -> Result<Self> {
        let failed = |error| error::map("cannot create database", dir, error);
        let database = environment.open_db(None).map_err(failed)?;
        let page = u64::from(environment.stat().map_err(failed)?.page_size());
        Ok(Self {
            dir,
            environment,
            database,
            page,
            transaction_bytes: config.transaction_bytes,
            transaction: None,
            pending: 0,
            room: 0,
            last_key: Vec::new(),
            failed: false,
        })
    }

    /// Commits what is left and makes all of it durable.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.failed {
            return Err(Error::new(ErrorKind::Closed, "write failed before, so it cannot be committed"));
        }
        self.commit()?;
        // Through the handle that wrote: the system tells it of a page that could not be written in the meantime.
        self.environment.sync(true).map_err(|error| error::map("cannot sync environment", self.dir, error))
    }

    fn append(&mut self, key: &[u8], value: &Payload) -> Result<()> {
        check_order(Some(&self.last_key), key)?;
        let len = value.len() as u64;
        if key.len() > MAX_KEY_LEN || len > MAX_VALUE_LEN {
            return Err(Error::invalid(format!(
                "record is too large for LMDB key_bytes=`{}` value_bytes=`{len}`",
                key.len()
            )));
        }
        let bytes = most_bytes(key.len() as u64, len, self.page);
        let mut transaction = self.transaction_with_room(bytes)?;
        let failed = |error| error::map("cannot write environment", self.dir, error);
        let place = transaction.reserve(self.database, &key, value.len(), WriteFlags::APPEND);
        fill(place.map_err(failed)?, value)?;
        self.transaction = Some(transaction);
        self.room -= bytes;
        self.pending += len + key.len() as u64;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if self.pending >= self.transaction_bytes { self.commit() } else { Ok(()) }
    }

    /// The transaction that is under way, or a new one if that has not so much room. So the map is never full: a transaction
    /// that meets its end is lost, and the map can grow only between two.
    fn transaction_with_room(&mut self, bytes: u64) -> Result<RwTransaction<'e>> {
        if let Some(transaction) = self.transaction.take_if(|_| bytes <= self.room) {
            return Ok(transaction);
        }
        self.commit()?;
        self.make_room(bytes).map_err(|error| error::map("cannot grow map", self.dir, error))?;
        let begun = self.environment.begin_rw_txn();
        begun.map_err(|error| error::map("cannot begin transaction", self.dir, error))
    }

    fn make_room(&mut self, bytes: u64) -> ::lmdb::Result<()> {
        let info = self.environment.info()?;
        let taken = (info.last_pgno() as u64 + 1 + SPARE_PAGES).saturating_mul(self.page);
        let wanted = taken.saturating_add(bytes);
        let mut size = info.map_size() as u64;
        if size < wanted {
            size = wanted.max(size.saturating_add(size / 2)).next_multiple_of(self.page);
            self.environment.set_map_size(usize::try_from(size).unwrap_or(usize::MAX))?;
        }
        self.room = size - taken;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.pending = 0;
        match self.transaction.take() {
            Some(transaction) => {
                transaction.commit().map_err(|error| error::map("cannot write environment", self.dir, error))
            }
            None => Ok(()),
        }
    }
}

impl Transaction for LmdbWriter<'_> {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        let appended = self.append(key, &value);
        self.failed |= appended.is_err();
        appended
    }
}

/// Copies a value to its place, which is as long.
fn fill(mut place: &mut [u8], value: &Payload) -> Result<()> {
    for piece in value.pieces() {
        let parts = place.split_at_mut_checked(piece.len());
        let (here, rest) = parts.ok_or_else(|| Error::internal("place of a value is too short"))?;
        here.copy_from_slice(piece);
        place = rest;
    }
    Ok(())
}

/// No more bytes of the map are taken by appending a record.
///
/// A large value has pages of its own. A node is at most half a page, so a leaf that is left is at least half full: twice
/// the node. A branch page is split in the middle, but a node of it is at most an eighth of a page: another node at most.
/// One more is for what liblmdb may do otherwise.
fn most_bytes(key: u64, value: u64, page: u64) -> u64 {
    let header = PAGE_HEADER as u64;
    let largest_node = (page - header) / 2 - 4;
    let node = NODE_HEADER as u64 + key + value;
    if node <= largest_node {
        return 4 * (node + 4);
    }
    (value + header).next_multiple_of(page) + 4 * (NODE_HEADER as u64 + key + 8 + 4)
}
