//! The native layout: chunks, each with its checksum, and a manifest.

mod copy;
mod map;
mod read;
mod verify;
mod write;

pub(super) use copy::copy_records;
pub(super) use read::Native;
pub(super) use write::stage;
