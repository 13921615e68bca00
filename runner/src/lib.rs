//! Jobs, sessions and commands of `ckpt`.

pub mod cli;
pub mod commands;
pub mod formats;
pub mod job;
pub mod multi_node;
mod output;
pub mod session;
pub mod upload;
