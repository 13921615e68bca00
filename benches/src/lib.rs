//! Measurements of single steps in the life of a blob: `cargo bench -p ckpt-benches`. The benches are in `benches/`; whole saves and
//! loads are measured by the command, against limits taken in the same run.
