//! Jobs, sessions and commands of `ckpt`.
