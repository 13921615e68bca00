//! Write-once bytes under a name: what the backends stand on.

pub(crate) mod fs;
pub(crate) mod names;

/// The longest record of a place that is read: records are kilobytes, and what is longer was not written by us.
pub(crate) const MAX_RECORD_LEN: u64 = 16 << 20;
