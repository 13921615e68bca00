//! A db in one file or object, the same bytes on every store.
//!
//! Values are appended in key order; an index of all keys follows them and a footer of fixed size ends the pack, so that a
//! reader needs the end of the file, then just the ranges it wants. [`format`] has the bytes.

mod cursor;
mod driver;
mod format;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use driver::PackDriver;
