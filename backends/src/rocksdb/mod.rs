//! db_type `rocksdb`: a RocksDB database per db, in a directory that any RocksDB opens.
//!
//! A db is written once, so nothing of RocksDB's machinery for changing data runs: records go in order into sorted tables, which are
//! made here because RocksDB's writer only goes through the page cache; RocksDB takes them in by moving them, and there is no
//! write-ahead log, no memtable and no compaction. The directory is staged beside its final name and published in one step. Reading
//! opens it read-only: no lock is taken and nothing is written.
//!
//! The crate `rocksdb` is named only in this folder. Records of tables that are as ours are read without it ([`direct`]), all else by
//! it. Blocks are checked by their checksums either way; the engine checks the chunks in them again. What RocksDB's readers trust too
//! far is checked before they see it ([`logs`]).

mod config;
mod cursor;
mod direct;
mod driver;
mod error;
mod logs;
mod reader;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use driver::RocksDriver;
