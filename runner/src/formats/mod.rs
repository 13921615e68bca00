//! Files that others write and read: `.safetensors`, `.npz`, `.npy`, `.pkl`, to and from a workspace.

mod npy;
mod npz;
mod pickle;
mod safetensors;
mod staged;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use ckpt_engine::blob::{Blob, Buffer, Workspace};
use ckpt_engine::checkpoint::caffe2::init_net_weights;
use ckpt_engine::{Error, Result};
use memmap2::Mmap;

/// What a file holds.
#[derive(Debug)]
pub struct Imported {
    /// The tensors.
    pub workspace: Workspace,
    /// What the file says besides; only `.safetensors` and `.pkl` files do.
    pub metadata: BTreeMap<String, String>,
    /// The length of the file.
    pub file_bytes: u64,
}

enum Format {
    Safetensors,
    Npz,
    Npy,
    Pickle,
    InitNet,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "safetensors" => Ok(Self::Safetensors),
            "npz" => Ok(Self::Npz),
            "npy" => Ok(Self::Npy),
            "pkl" => Ok(Self::Pickle),
            "pb" => Ok(Self::InitNet),
            _ => Err(Error::invalid(format!(
                "unknown kind of file; known ones: .safetensors, .npz, .npy, .pb, .pkl file=`{}`",
                path.display()
            ))),
        }
    }
}

/// Reads a file, of the kind that its name ends in. Tensors that need no change share the mapped file, which must not be
/// changed as long as they live.
pub fn read(path: &Path) -> Result<Imported> {
    let format = Format::of(path)?;
    let file = map(path)?;
    let file_bytes = file.len() as u64;
    let (workspace, metadata) = match format {
        Format::Safetensors => safetensors::read(&file)?,
        Format::Npz => (npz::read(&file)?, BTreeMap::new()),
        Format::Pickle => pickle::read(&file)?,
        Format::InitNet => (init_net_weights(&file)?, BTreeMap::new()),
        Format::Npy => {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let wrong = || Error::invalid(format!("file name is not UTF-8 path=`{}`", path.display()));
            let name = stem.ok_or_else(wrong)?;
            let mut workspace = Workspace::new();
            workspace.insert(name, npy::read(&file)?);
            (workspace, BTreeMap::new())
        }
    };
    Ok(Imported { workspace, metadata, file_bytes })
}

/// Fails unless [`write()`] knows the kind of file that the name ends in.
pub fn check_writable_extension(path: &Path) -> Result<()> {
    match Format::of(path) {
        Ok(Format::Safetensors | Format::Npz) => Ok(()),
        _ => Err(Error::invalid(format!(
            "cannot write this kind of file; known ones: .safetensors, .npz file=`{}`",
            path.display()
        ))),
    }
}

/// Fails with `Unsupported` and the reason if a file of the kind that the name ends in cannot hold a blob.
pub fn check_blob(path: &Path, name: &str, blob: &Blob) -> Result<()> {
    match Format::of(path)? {
        Format::Safetensors => safetensors::check_blob(name, blob),
        _ => npz::check_blob(name, blob),
    }
}

/// Whether a file of the kind that the name ends in holds texts beside its tensors.
pub fn holds_metadata(path: &Path) -> bool {
    matches!(Format::of(path), Ok(Format::Safetensors))
}

/// Writes a workspace as a file, of the kind that its name ends in, and returns its length. It appears under its name when it is
/// whole and durable, in place of an older one.
pub fn write(path: &Path, workspace: &Workspace, metadata: &BTreeMap<String, String>) -> Result<u64> {
    check_writable_extension(path)?;
    staged::write(path, |file| match Format::of(path)? {
        Format::Safetensors => safetensors::write(file, workspace, metadata),
        _ => npz::write(file, workspace),
    })
}

/// The bytes of bools: any byte but 0 is true, and true is 1. Shared if they are so already.
fn bools(data: Bytes) -> Result<Buffer> {
    if data.iter().all(|&byte| byte <= 1) {
        return Ok(Buffer::from(data));
    }
    let mut ones = Buffer::copy_from(&data)?;
    ones.as_mut()?.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    Ok(ones)
}

fn map(path: &Path) -> Result<Bytes> {
    let failed = |error| Error::io(format!("cannot read file path=`{}`", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(Error::invalid(format!("is not a file path=`{}`", path.display())));
    }
    if about.len() == 0 {
        return Err(Error::invalid(format!("file is empty path=`{}`", path.display())));
    }
    // SAFETY: the map is read-only. That nobody changes the file meanwhile is asked of the caller, as of every program that maps
    // one; a change could give other values, which the save would store, but no reference outlives the map.
    let mapped = unsafe { Mmap::map(&file) }.map_err(failed)?;
    Ok(Bytes::from_owner(mapped))
}
