//! The command `ckpt`.
fn main() {}
