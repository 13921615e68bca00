//! The bytes of a native checkpoint: keys, chunks, the manifest. Pure functions; `docs/FORMAT.md` is their description.

pub mod codec;
pub mod keys;
pub mod layout;
pub mod manifest;
