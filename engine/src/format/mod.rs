//! The bytes of a checkpoint. Native: keys, chunks, the manifest; `docs/FORMAT.md` is their description. And those of Caffe2. Pure functions.

pub mod caffe2;
pub mod codec;
pub mod keys;
pub mod layout;
pub mod manifest;
pub mod shuffle;
