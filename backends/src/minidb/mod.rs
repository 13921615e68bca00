//! db_type `minidb`: Caffe2's own format, one file per db, which holds nothing but its entries:
//!
//! ```text
//! entry := key_len i32, value_len i32 (little-endian), key, value
//! ```
//!
//! There is no header, no index, no checksum, and no end but that of the file. Entries keep the order in which they were put, and a
//! key can come again. Opening reads the lengths and keys and skips over the values; from then on a read is a read of a range.
//!
//! What differs from Caffe2: a file appears under its name when it is whole and durable, and in place of an older one in one step;
//! what Caffe2 writes and cannot read again (empty keys and values) is refused when it is put; one to three stray bytes at the end,
//! which it does not notice, are damage.

mod cursor;
mod driver;
mod format;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use driver::MiniDriver;
