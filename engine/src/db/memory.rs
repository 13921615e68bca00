//! db_type `memory`: dbs in this process, for tests, dry runs and staging.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{
    Capabilities, Cursor, Db, Driver, Layout, Limits, Locality, Order, Payload, PutMode, Read, ReadSink,
    Records, Source, Transaction, Values, WriteBody, WritePlan, copy_value, past_the_end,
};
use crate::error::{Error, ErrorKind, Result};

type Entries = BTreeMap<Vec<u8>, Bytes>;

#[derive(Debug, Default)]
struct Store {
    dbs: BTreeMap<Source, Arc<Entries>>,
    records: BTreeMap<(String, String), Bytes>,
}

/// Dbs in memory. Clones share them; they are gone with the last clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryDriver {
    store: Arc<Mutex<Store>>,
}

impl MemoryDriver {
    /// The backend's name.
    pub const DB_TYPE: &'static str = "memory";

    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // Every change is one insert or remove, so a store whose holder panicked is whole.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for MemoryDriver {
    fn db_type(&self) -> &'static str {
        Self::DB_TYPE
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_key_len: usize::MAX,
            max_value_len: u64::MAX,
            locality: Locality::Process,
            values: Values::Mapped,
            order: Order::Ascending,
            layout: Layout::Native,
        }
    }

    fn write(&self, source: &Source, _plan: &WritePlan, body: &mut WriteBody<'_>) -> Result<()> {
        let mut staged = Staged(Entries::new());
        body(&mut staged)?;
        self.lock().dbs.insert(source.clone(), Arc::new(staged.0));
        Ok(())
    }

    fn open(&self, source: &Source) -> Result<Arc<dyn Db>> {
        match self.lock().dbs.get(source) {
            Some(entries) => {
                Ok(Arc::new(MemoryDb { entries: Arc::clone(entries), bytes_read: AtomicU64::new(0) }))
            }
            None => Err(Error::not_found(format!("no such db db=`memory:{source}`"))),
        }
    }

    fn exists(&self, source: &Source) -> Result<bool> {
        Ok(self.lock().dbs.contains_key(source))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let store = self.lock();
        let names = store.dbs.keys().filter(|source| source.prefix() == prefix);
        Ok(names.map(|source| source.name().to_owned()).collect())
    }

    fn destroy(&self, source: &Source) -> Result<()> {
        self.lock().dbs.remove(source);
        Ok(())
    }

    fn records(&self, prefix: &str) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(MemoryRecords { driver: self.clone(), prefix: prefix.to_owned() }))
    }
}

struct Staged(Entries);

impl Transaction for Staged {
    fn put(&mut self, key: &[u8], value: Payload) -> Result<()> {
        super::check_order(self.0.last_key_value().map(|(key, _)| key.as_slice()), key)?;
        // The pieces may be slices of a tensor that its owner goes on to change only by copying it, so they can be kept.
        self.0.insert(key.to_owned(), value.into_bytes());
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryDb {
    entries: Arc<Entries>,
    bytes_read: AtomicU64,
}

impl Db for MemoryDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.entries.get(key).cloned();
        let len = value.as_ref().map_or(0, Bytes::len);
        self.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(value)
    }

    fn read(&self, reads: Vec<Read<'_>>, _limits: &Limits, sink: &ReadSink<'_>) -> Result<()> {
        for (index, read) in reads.into_iter().enumerate() {
            let len = read.len()?;
            let value = self.entries.get(read.key).map(|value| value.as_ref());
            let found = super::slice_value(value, read.range.clone(), read.key);
            if found.is_ok() {
                self.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
            }
            match (found, read.into) {
                (Ok(found), Some(into)) => {
                    into.copy_from_slice(found);
                    sink(index, Ok(into))?;
                }
                (found, _) => sink(index, found)?,
            }
        }
        Ok(())
    }

    fn map(&self, first: &[u8], last: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.entries.get(first).filter(|_| first == last).cloned())
    }

    fn cursor(&self) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(MemoryCursor { entries: &self.entries, at: self.entries.first_key_value() }))
    }

    fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

struct MemoryCursor<'a> {
    entries: &'a Entries,
    at: Option<(&'a Vec<u8>, &'a Bytes)>,
}

impl Cursor for MemoryCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.at.map(|(key, _)| key.as_slice())
    }

    fn value(&self) -> Result<Bytes> {
        self.at.map(|(_, value)| value.clone()).ok_or_else(past_the_end)
    }

    fn value_len(&self) -> Result<u64> {
        self.at.map(|(_, value)| value.len() as u64).ok_or_else(past_the_end)
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let (key, value) = self.at.ok_or_else(past_the_end)?;
        copy_value(value, start, into, key)
    }

    fn next(&mut self) -> Result<()> {
        if let Some((key, _)) = self.at {
            let after = (Bound::Excluded(key.as_slice()), Bound::Unbounded);
            self.at = self.entries.range::<[u8], _>(after).next();
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let from = (Bound::Included(key), Bound::Unbounded);
        self.at = self.entries.range::<[u8], _>(from).next();
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryRecords {
    driver: MemoryDriver,
    prefix: String,
}

impl MemoryRecords {
    fn key(&self, name: &str) -> (String, String) {
        (self.prefix.clone(), name.to_owned())
    }
}

impl Records for MemoryRecords {
    fn get(&self, name: &str) -> Result<Option<Bytes>> {
        Ok(self.driver.lock().records.get(&self.key(name)).cloned())
    }

    fn put(&self, name: &str, value: Bytes, mode: PutMode) -> Result<()> {
        let mut store = self.driver.lock();
        let key = self.key(name);
        if mode == PutMode::Create && store.records.contains_key(&key) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("record exists already record=`{name}`"),
            ));
        }
        store.records.insert(key, value);
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        let store = self.driver.lock();
        let keys = store.records.keys();
        Ok(keys.filter(|(prefix, _)| *prefix == self.prefix).map(|(_, name)| name.clone()).collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.driver.lock().records.remove(&self.key(name));
        Ok(())
    }
}
