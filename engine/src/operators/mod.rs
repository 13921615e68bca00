//! Caffe2's operators on dbs, with their arguments by their own names: [`Save`], [`Load`], [`Checkpoint`]. They work on every
//! db_type and on both layouts.
//!
//! The places where the original corrupts in silence are errors here: two blobs under one name, a blob in two sources, chunks that
//! overlap, leave holes or contradict each other. A load that fails changes nothing. docs/CAFFE2.md has the mapping, argument by
//! argument.

mod checkpoint;
mod load;
mod save;
#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use load::{Load, Loaded};
pub use save::Save;

/// What follows the first occurrence of `prefix`; everything before it goes too. A name without it stays as it is.
fn strip<'n>(name: &'n str, prefix: &str) -> &'n str {
    match name.split_once(prefix) {
        Some((_, rest)) if !prefix.is_empty() => rest,
        _ => name,
    }
}

/// The first name that is there twice.
fn repeated<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut seen = std::collections::HashSet::new();
    let mut names = names;
    names.find(|name| !seen.insert(*name))
}
