//! Where it is measured: in a folder, and under a prefix of each object store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ckpt_backends::Scratch;
use ckpt_engine::db::Locality;
use ckpt_engine::{Error, ErrorKind, Result};
use tempfile::TempDir;

use super::super::{Context, Failure};
use super::machine;
use super::payload::Payload;
use crate::cli::{BenchArgs, DirArg};
use crate::output::size;

/// A db_type to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) db_type: String,
    /// The prefix, of one that is not on a disk.
    pub(super) remote: Option<String>,
}

/// The db_types to measure, each once and known, and where each of them goes; and the folder of those on a disk.
pub(super) fn targets(
    context: &Context,
    args: &BenchArgs,
) -> Result<(Vec<Target>, Option<PathBuf>), Failure> {
    let (folder, remotes) = dirs(&args.dirs)?;
    let mut targets: Vec<Target> = Vec::new();
    for name in &args.db_types {
        let driver = context.registry.driver(name, context.driver_options.clone()).map_err(Failure::Usage)?;
        let db_type = driver.db_type().to_owned();
        let remote = match driver.capabilities().locality {
            Locality::Local => None,
            Locality::Remote => Some(remotes.get(&db_type).cloned().ok_or_else(|| {
                Failure::usage(format!(
                    "say where to measure: add --dir {db_type}://BUCKET/PREFIX db_type=`{db_type}`"
                ))
            })?),
            Locality::Process => {
                return Err(Failure::usage(format!(
                    "bench measures db_types that outlive a process db_type=`{db_type}`"
                )));
            }
        };
        if !targets.iter().any(|target| target.db_type == db_type) {
            targets.push(Target { db_type, remote });
        }
    }
    let has_local = targets.iter().any(|target| target.remote.is_none());
    if let Some(folder) = folder.as_ref().filter(|_| !has_local) {
        let message = "no db_type to measure is on a disk: leave out --dir or extend --db-type";
        return Err(Failure::usage(format!("{message} dir=`{}`", folder.display())));
    }
    if let Some((db_type, prefix)) =
        remotes.iter().find(|(db_type, _)| !targets.iter().any(|target| target.db_type == **db_type))
    {
        let message = format!("nothing is to be measured there: add {db_type} to --db-type");
        return Err(Failure::usage(format!("{message} dir=`{db_type}://{prefix}`")));
    }
    Ok((targets, has_local.then(|| folder.unwrap_or_else(|| PathBuf::from(".")))))
}

/// The folder and the prefixes by their db_types, at most one each.
fn dirs(given: &[DirArg]) -> Result<(Option<PathBuf>, BTreeMap<String, String>), Failure> {
    let (mut folder, mut remotes) = (None, BTreeMap::new());
    for dir in given {
        let is_second = match dir {
            DirArg::Folder(path) => folder.replace(path.clone()).is_some(),
            DirArg::Url(store) => {
                remotes.insert(store.db_type.to_ascii_lowercase(), store.prefix.clone()).is_some()
            }
        };
        if is_second {
            return Err(Failure::usage(format!("more than one --dir of a kind: leave out one dir=`{dir}`")));
        }
    }
    Ok((folder, remotes))
}

/// Fresh folders to measure in. Dropped, they are removed with all that is in them.
pub(super) struct Places {
    disk: Option<TempDir>,
    remotes: BTreeMap<String, Box<dyn Scratch>>,
}

impl Places {
    pub(super) fn make(
        context: &Context,
        targets: &[Target],
        folder: Option<&Path>,
        payload: &Payload,
    ) -> Result<Self> {
        let disk = folder.map(|folder| make_folder(folder, payload)).transpose()?;
        let remote = |target: &Target| {
            let prefix = target.remote.as_ref()?;
            let made = ckpt_backends::scratch(&target.db_type, prefix, context.driver_options.clone());
            Some(made.map(|scratch| (target.db_type.clone(), scratch)))
        };
        Ok(Self { disk, remotes: targets.iter().filter_map(remote).collect::<Result<_>>()? })
    }

    pub(super) fn disk(&self) -> Option<&Path> {
        self.disk.as_ref().map(TempDir::path)
    }

    pub(super) fn remotes(&self) -> impl Iterator<Item = (&str, &dyn Scratch)> {
        self.remotes.iter().map(|(db_type, scratch)| (db_type.as_str(), scratch.as_ref()))
    }

    /// The STORE that a db_type is measured in.
    pub(super) fn store(&self, db_type: &str) -> Result<String> {
        if let Some(scratch) = self.remotes.get(db_type) {
            return Ok(format!("{db_type}:{}", scratch.prefix()));
        }
        let path = self.folder_of(db_type)?;
        let path = path.to_str().ok_or_else(|| Error::invalid("--dir must be UTF-8"))?;
        Ok(format!("{db_type}:{path}"))
    }

    /// Removes what a db_type left.
    pub(super) fn clear(&self, db_type: &str) -> Result<()> {
        if let Some(scratch) = self.remotes.get(db_type) {
            return scratch.clear();
        }
        let path = self.folder_of(db_type)?;
        std::fs::remove_dir_all(&path).map_err(|error| folder_error("cannot remove", &path, error))
    }

    /// Removes all of it, and tells where that fails.
    pub(super) fn close(self) -> Result<()> {
        self.remotes.values().try_for_each(|scratch| scratch.clear())?;
        let Some(disk) = self.disk else { return Ok(()) };
        let path = disk.path().to_owned();
        disk.close().map_err(|error| folder_error("cannot remove what was measured in", &path, error))
    }

    fn folder_of(&self, db_type: &str) -> Result<PathBuf> {
        let disk = self.disk().ok_or_else(|| Error::internal("no folder was made for what is on a disk"))?;
        Ok(disk.join(db_type))
    }
}

fn make_folder(dir: &Path, payload: &Payload) -> Result<TempDir> {
    std::fs::create_dir_all(dir).map_err(|error| folder_error("cannot create", dir, error))?;
    check_room(dir, payload)?;
    let folder = tempfile::Builder::new().prefix("ckpt-bench-").tempdir_in(dir);
    folder.map_err(|error| folder_error("cannot create a folder in", dir, error))
}

/// Room for a probe and a checkpoint, with something to spare.
fn check_room(dir: &Path, payload: &Payload) -> Result<()> {
    let free = machine::free_bytes(dir)?;
    let needed = payload.bytes.saturating_mul(2) + payload.bytes / 8 + (64 << 20);
    if free < needed {
        return Err(Error::new(
            ErrorKind::Full,
            format!(
                "not enough room: {} are needed and {} are free; choose another --dir or a smaller --size path=`{}`",
                size(needed),
                size(free),
                dir.display()
            ),
        ));
    }
    Ok(())
}

pub(super) fn folder_error(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("{what} path=`{}`", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folder_and_one_prefix_of_each_db_type() {
        let parse = |given: &[&str]| {
            let given: Vec<DirArg> = given.iter().map(|dir| dir.parse().unwrap()).collect();
            dirs(&given).map_err(|failure| failure.error().to_string())
        };
        assert_eq!(parse(&[]).unwrap(), (None, BTreeMap::new()));
        let (folder, remotes) = parse(&["S3://bucket/a", "/data", "gs://b"]).unwrap();
        assert_eq!(folder.as_deref(), Some(Path::new("/data")));
        assert_eq!((remotes["s3"].as_str(), remotes["gs"].as_str()), ("bucket/a", "b"));
        for twice in [["a", "file:///b"], ["s3://a", "s3://b"]] {
            assert!(parse(&twice).unwrap_err().contains(twice[1].trim_start_matches("file://")), "{twice:?}");
        }
    }
}
