//! Pickles of arrays: Detectron's `model_final.pkl`, the playground's `.pkl`, and their like.
//!
//! A pickle is a program for Python's unpickler. It is not run here: the opcodes that put data together are followed ([`machine`]), the
//! few functions that data is made with (numpy's arrays, sets, ordered dicts) are known by name and done here ([`calls`]), and any
//! other is refused. What comes of it is a heap of plain values ([`value`]), which then become blobs ([`blobs`]).
//!
//! Nothing that is read is trusted. Lengths are compared with what is left of the file. Objects live in one list and refer to each other
//! by number, so that no nesting and no cycle is ever followed by a recursion, but for the dicts whose keys become a name, to a fixed
//! depth. Whatever takes memory is counted against a [`Budget`](value::Budget) of a few times the file, which also ends what refers to
//! the same data over and over.

mod arrays;
mod blobs;
mod calls;
mod machine;
mod reader;
#[cfg(test)]
mod tests;
mod text;
mod value;

use std::collections::BTreeMap;

use bytes::Bytes;
use ckpt_engine::Result;
use ckpt_engine::blob::Workspace;

/// Reads a pickled dict. The entries of its dict `blobs`, if it has one, get their own names; others are named by their keys, with `/`
/// between those of dicts in dicts. Arrays, numbers and lists of numbers or strings are tensors, and strings are metadata.
pub(super) fn read(file: &Bytes) -> Result<(Workspace, BTreeMap<String, String>)> {
    let (heap, root) = machine::run(file)?;
    blobs::of(&heap, root)
}
