//! Jobs, sessions and commands of `ckpt`.

pub mod job;
pub mod session;
