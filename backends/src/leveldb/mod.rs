//! db_type `leveldb`: a LevelDB database per db, in a directory that any LevelDB opens. Without LevelDB: all is read and written here.
//!
//! A LevelDB opens a database to read and write, takes its lock, and tidies up. Here reading takes no lock and writes nothing, so that
//! read-only media, and a database that somebody else has open, are fine; and nothing that is read is trusted. The checksum of every
//! block and every record of a log is checked each time, every number before it is used.
//!
//! A db is written once, so nothing of LevelDB's machinery for changing data runs: records go in order into sorted tables, then a
//! manifest names these. They are on the last level, which is never tidied up by itself. The directory is staged beside its final name
//! and published in one step.
//!
//! A database that LevelDB wrote has its newest records in a log and its tables on several levels, with older values of a key below
//! newer ones. [`version`] finds out which files count, [`recent`] holds what is in logs, [`tables`] the indexes of tables, and
//! [`cursor`] and [`reader`] look through all of them for what is newest. [`format`] is the bytes.

mod config;
mod cursor;
mod dir;
mod driver;
mod error;
mod format;
mod reader;
mod recent;
mod tables;
#[cfg(test)]
mod tests;
mod version;
mod writer;

pub(crate) use driver::LevelDriver;
