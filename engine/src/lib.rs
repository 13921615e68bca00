//! One checkpoint engine for every store: the engine itself.
//!
//! It knows blobs ([`blob`]), the contract with a backend ([`db`]), the bytes of a checkpoint, and the verbs that work on
//! checkpoints. It knows no backend, no path syntax and no async runtime.

pub mod blob;
pub mod checkpoint;
pub mod db;
pub mod error;
pub mod format;
pub mod manager;
pub mod observer;
pub mod operators;
pub mod pipeline;

pub use checkpoint::{Checkpoint, Checkpoints, Options};
pub use error::{Effect, Error, ErrorKind, Result, ResultExt};
