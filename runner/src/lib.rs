//! Jobs, sessions and commands of `ckpt`.

pub mod job;
pub mod multi_node;
pub mod session;
pub mod upload;
