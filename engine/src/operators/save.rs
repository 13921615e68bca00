//! Save: some blobs of a workspace into a db.

use super::{repeated, strip};
use crate::blob::Workspace;
use crate::checkpoint::caffe2::{BlobOptions, ChunkSize, SaveOptions};
use crate::checkpoint::{Checkpoints, Options, SaveReport};
use crate::db::Source;
use crate::error::{Error, Result};

/// Caffe2's operator Save. The default saves the inputs under their own names.
#[derive(Clone, Debug, Default)]
pub struct Save {
    /// A blob is saved under what follows the first occurrence of this in its name.
    pub strip_prefix: String,
    /// The names to save under, one per input. Excludes `strip_prefix`.
    pub blob_name_overrides: Vec<String>,
    /// Elements of a chunk, for blobs that no entry of `options` matches.
    pub chunk_size: ChunkSize,
    /// By name; the first that matches counts.
    pub options: Vec<BlobOptions>,
}

impl Save {
    /// Saves the blobs `inputs` of `workspace` to the db `source` of `place`, in this order where the store keeps it. As any save it
    /// replaces an older db of that name, in one step.
    ///
    /// Fails with `InvalidInput` without inputs, for arguments that exclude each other, and for two blobs of one name; with
    /// `NotFound` for an input that the workspace has not.
    pub fn run(
        &self,
        workspace: &Workspace,
        inputs: &[&str],
        place: &Checkpoints,
        source: &Source,
    ) -> Result<SaveReport> {
        let names = self.names(inputs)?;
        let mut blobs = Vec::with_capacity(inputs.len());
        for (name, input) in names.iter().zip(inputs) {
            let blob = workspace.get(input).ok_or_else(|| crate::blob::no_such_blob(input))?;
            blobs.push((*name, blob));
        }
        let caffe2 = SaveOptions {
            chunk_size: self.chunk_size,
            blobs: self.options.clone(),
            ..place.options().caffe2.clone()
        };
        let place = place.clone().with_options(Options { caffe2, ..place.options().clone() });
        place.save_blobs(blobs.into_iter(), source)
    }

    /// The names to save under.
    fn names<'a>(&'a self, inputs: &[&'a str]) -> Result<Vec<&'a str>> {
        if inputs.is_empty() {
            return Err(Error::invalid("nothing is to be saved: name at least one input"));
        }
        let names: Vec<&str> = if self.blob_name_overrides.is_empty() {
            inputs.iter().map(|input| strip(input, &self.strip_prefix)).collect()
        } else if !self.strip_prefix.is_empty() {
            return Err(Error::invalid("blob_name_overrides and strip_prefix exclude each other: give one"));
        } else if self.blob_name_overrides.len() != inputs.len() {
            return Err(Error::invalid(format!(
                "blob_name_overrides must be as many as the inputs overrides=`{}` inputs=`{}`",
                self.blob_name_overrides.len(),
                inputs.len()
            )));
        } else {
            self.blob_name_overrides.iter().map(String::as_str).collect()
        };
        match repeated(names.iter().copied()) {
            Some(name) => {
                Err(Error::invalid(format!("two blobs would be saved under one name blob=`{name}`")))
            }
            None => Ok(names),
        }
    }
}
