//! The bytes of LevelDB's files, decoded and encoded. Pure; nothing that it reads is trusted.
//!
//! Numbers are little-endian, or varints: seven bits a byte, the lowest first. A record of a table has an internal key: the user's,
//! then eight bytes with a sequence number and what became of the key. All orders are of internal keys: ascending by the user's key,
//! and of one key the newest first.

pub(super) mod batch;
pub(super) mod edit;
pub(super) mod log;
pub(super) mod table;

use bytes::Bytes;
use ckpt_engine::Result;

#[cfg(test)]
pub(super) use crate::table::internal_key;
pub(super) use crate::table::{BYTEWISE, DELETION, Input, TAG, VALUE, mask, put_varints};
use crate::table::{Block, Walk, split_key};
use table::damaged;

/// Sequence numbers share their eight bytes with the kind.
pub(super) const MAX_SEQUENCE: u64 = (1 << 56) - 1;

/// What a key was set to, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// Later ones are greater.
    pub(super) sequence: u64,
    /// `None` if the key was deleted.
    pub(super) value: Option<Bytes>,
}

impl Stored {
    /// What the key at a position of a block was set to. The value is a part of the block, not a copy.
    pub(super) fn at(block: &Block, walk: &Walk) -> Result<Self> {
        let (_, tag) = split_key(walk.key()).unwrap_or_default();
        let [kind, ..] = tag.to_le_bytes();
        let value = match kind {
            DELETION => None,
            VALUE => Some(block.lend(walk)),
            _ => return Err(damaged("has a record of an unknown type")),
        };
        Ok(Self { sequence: tag >> 8, value })
    }

    /// The newer of the two. Of equal ones, which are copies, the first.
    pub(super) fn newer(first: Option<Self>, other: Self) -> Self {
        match first {
            Some(first) if first.sequence >= other.sequence => first,
            _ => other,
        }
    }
}

/// Adds bytes with their length before them.
pub(super) fn put_prefixed(bytes: &mut Vec<u8>, prefixed: &[u8]) {
    put_varints(bytes, [prefixed.len() as u64]);
    bytes.extend_from_slice(prefixed);
}
