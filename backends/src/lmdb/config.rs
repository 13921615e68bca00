//! What LMDB can hold.

/// The backend's name.
pub(super) const DB_TYPE: &str = "lmdb";

/// As liblmdb is compiled by default.
pub(super) const MAX_KEY_LEN: usize = 511;

/// LMDB keeps a value's length in 32 bits, but liblmdb writes the pages of one in a single call, and Linux moves less than 2 GiB in a
/// call: a longer one could be read, but not copied by LMDB's own tools.
pub(super) const MAX_VALUE_LEN: u64 = (1 << 31) - (1 << 17);
