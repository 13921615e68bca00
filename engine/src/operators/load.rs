//! Load: blobs of one or several dbs into a workspace.

use std::collections::{HashMap, HashSet};

use super::{repeated, strip};
use crate::blob::{Selection, Workspace};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result, ResultExt};

/// Caffe2's operator Load. The default loads the outputs by their own names, and fails if one is missing.
///
/// `keep_device` has no counterpart: data comes to the CPU, whatever device wrote it.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// A stored name is cut to what follows the first occurrence of this. Excludes `source_blob_names`.
    pub strip_prefix: String,
    /// Put before a stored name, after `strip_prefix`. Outputs, or `source_blob_names`, carry it.
    pub add_prefix: String,
    /// The names to look for, one per output, where they differ from the outputs. Excludes `strip_prefix` and `load_all`.
    pub source_blob_names: Vec<String>,
    /// Load every blob there is, under its (changed) name. Outputs must be among them.
    pub load_all: bool,
    /// An output that is nowhere is no error.
    pub allow_incomplete: bool,
}

/// What a load did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The names in the workspace, in order.
    pub names: Vec<String>,
    /// Outputs that are in none of the sources: only with `allow_incomplete`.
    pub missing: Vec<String>,
}

/// A blob of a source by its changed name.
struct Found<'s> {
    source: usize,
    stored: &'s str,
}

impl Load {
    /// Loads from the dbs `sources`, all of them looked at in order, into `workspace`: all or nothing.
    ///
    /// Fails with `InvalidInput` for arguments that exclude each other and for repeated outputs or sources; with `AlreadyExists` for
    /// a wanted name that several blobs of the sources have; with `NotFound` for an output that none has.
    pub fn run(&self, sources: &[Checkpoint], outputs: &[&str], workspace: &mut Workspace) -> Result<Loaded> {
        self.check(sources, outputs)?;
        let wanted: Vec<&str> = if self.source_blob_names.is_empty() {
            outputs.to_vec()
        } else {
            self.source_blob_names.iter().map(String::as_str).collect()
        };
        let found = self.find(sources, &wanted)?;
        let mut loaded = Loaded::default();
        let mut plan: Vec<(String, &Found<'_>)> = Vec::new();
        for (output, name) in outputs.iter().zip(&wanted) {
            match found.get(*name) {
                Some(found) if !self.load_all => plan.push(((*output).to_owned(), found)),
                Some(_) => {}
                None => loaded.missing.push((*output).to_owned()),
            }
        }
        if let Some(name) = loaded.missing.first().filter(|_| !self.allow_incomplete) {
            return Err(Error::not_found(format!(
                "blobs are in none of the dbs; allow_incomplete would pass them over missing=`{}` first=`{name}`",
                loaded.missing.len()
            )));
        }
        if self.load_all {
            plan.extend(found.iter().map(|(name, found)| (name.clone(), found)));
        }
        let staged = fetch(sources, &plan)?;
        loaded.names = staged.names().map(str::to_owned).collect();
        workspace.extend(staged);
        Ok(loaded)
    }

    /// Arguments that cannot go together.
    fn check(&self, sources: &[Checkpoint], outputs: &[&str]) -> Result<()> {
        let names = &self.source_blob_names;
        if !names.is_empty() {
            if !self.strip_prefix.is_empty() || self.load_all {
                return Err(Error::invalid("source_blob_names excludes strip_prefix and load_all: give one"));
            }
            if names.len() != outputs.len() {
                return Err(Error::invalid(format!(
                    "source_blob_names must be as many as the outputs names=`{}` outputs=`{}`",
                    names.len(),
                    outputs.len()
                )));
            }
        }
        let labels = repeated(sources.iter().map(Checkpoint::label));
        let named = repeated(names.iter().map(String::as_str)).or_else(|| repeated(outputs.iter().copied()));
        match (labels, named) {
            (Some(db), _) => Err(Error::invalid(format!("a db is given twice db=`{db}`"))),
            (_, Some(name)) => Err(Error::invalid(format!("a blob is asked for twice blob=`{name}`"))),
            _ => Ok(()),
        }
    }

    /// The wanted blobs of all sources by their changed names; all of them with `load_all`.
    fn find<'s>(&self, sources: &'s [Checkpoint], wanted: &[&str]) -> Result<HashMap<String, Found<'s>>> {
        let wanted: HashSet<&str> = wanted.iter().copied().collect();
        let mut found: HashMap<String, Found<'s>> = HashMap::new();
        for (source, checkpoint) in sources.iter().enumerate() {
            for stored in checkpoint.names() {
                let name = format!("{}{}", self.add_prefix, strip(stored, &self.strip_prefix));
                if !self.load_all && !wanted.contains(name.as_str()) {
                    continue;
                }
                let here = Found { source, stored };
                if let Some(earlier) = found.insert(name.clone(), here) {
                    let earlier = sources.get(earlier.source).map(Checkpoint::label).unwrap_or_default();
                    return Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!(
                            "a blob is there twice under one name blob=`{name}` dbs=`{earlier}`, `{}`",
                            checkpoint.label()
                        ),
                    ));
                }
            }
        }
        Ok(found)
    }
}

/// Loads what is planned, from each source at once.
fn fetch(sources: &[Checkpoint], plan: &[(String, &Found<'_>)]) -> Result<Workspace> {
    let mut staged = Workspace::new();
    for (source, checkpoint) in sources.iter().enumerate() {
        let here = || plan.iter().filter(move |(_, found)| found.source == source);
        let names: Vec<&str> = here().map(|(_, found)| found.stored).collect();
        if names.is_empty() {
            continue;
        }
        let loaded = checkpoint.load(&Selection::names(names)).context(|| "cannot load blobs")?;
        for (name, found) in here() {
            let blob = loaded.get(found.stored).ok_or_else(|| Error::internal("blob was not loaded"))?;
            staged.insert(name.clone(), blob.clone());
        }
    }
    Ok(staged)
}
