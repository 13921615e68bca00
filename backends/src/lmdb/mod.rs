//! db_type `lmdb`: an LMDB environment per db, in a directory that any LMDB opens.
//!
//! A db is written once: the pages of its file from front to end, past the page cache, in key order, into a staged directory that is
//! then published in one step. It holds just `data.mdb`. liblmdb would write the same through the page cache, each value once more in
//! memory of its own; here [`build`] makes the pages. The tests read all through liblmdb.
//!
//! It is not read by liblmdb either, which trusts its pages: one flipped bit in a page header makes it read outside the map, and the
//! process dies. Here damage is an error, so [`pages`] and [`index`] walk the tree themselves and keep where each value lies. They
//! check every number before it is used: page numbers and types, bounds, that nodes fill their page, that keys ascend over the
//! whole tree, that no page is used twice, how many entries there are. From then on a read is a read of the file or a slice of its
//! mapping. Nothing is locked and nothing is written, so read-only media and any number of readers are fine, and a db that is
//! replaced stays readable to who has it open.
//!
//! LMDB has no checksums. The engine checks the chunks; and a meta page whose damage brings back the state before the last
//! transaction shows an empty db: without a manifest, which is an error.
//!
//! The crate `lmdb` is named only in the tests of this folder.

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "db_type `lmdb` reads and writes the layout of 64-bit machines: build without the feature `lmdb`"
);

mod build;
mod config;
mod cursor;
mod driver;
mod error;
mod index;
mod pages;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use driver::LmdbDriver;
