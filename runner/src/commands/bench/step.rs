//! One timed part, in a process of its own: so that its peak of memory is its own, and nothing is left over from the part before it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use ckpt_engine::blob::Selection;
use ckpt_engine::checkpoint::{Loading, Options};
use ckpt_engine::db::Locality;
use ckpt_engine::{Error, Result};
use serde::{Deserialize, Serialize};

use super::super::Context;
use super::limits::drop_cache;
use super::payload::Payload;
use crate::cli::StoreArg;

/// The node and the epoch that are saved.
const NODE: &str = "bench:0";
const EPOCH: u64 = 1;
/// A call of `exists` is short: the mean of so many.
const EXISTS_CALLS: u32 = 20;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// A save until it is durable and published.
    Save,
    /// A load of all blobs, nothing of them in the page cache. From a remote store it is simply a load.
    LoadCold,
    /// A load of all blobs from the page cache: mapped where the backend can.
    LoadWarm,
    /// A load of one blob, opening included, nothing of it in the page cache.
    PartialCold,
    /// Whether it exists.
    Exists,
}

impl Part {
    /// What is timed of a store, in order.
    pub(super) fn of(is_remote: bool) -> &'static [Self] {
        // Nothing of a remote store is in the page cache: a second load would be the first once more.
        const REMOTE: [Part; 4] = [Part::Save, Part::LoadCold, Part::PartialCold, Part::Exists];
        const LOCAL: [Part; 5] =
            [Part::Save, Part::LoadCold, Part::PartialCold, Part::LoadWarm, Part::Exists];
        if is_remote { &REMOTE } else { &LOCAL }
    }

    pub(super) fn name(self, is_remote: bool) -> &'static str {
        match self {
            Self::Save => "save",
            Self::LoadCold if is_remote => "load",
            Self::LoadCold => "cold load",
            Self::LoadWarm => "warm load",
            Self::PartialCold => "one blob",
            Self::Exists => "exists",
        }
    }
}

/// What a process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) part: Part,
    pub(super) store: String,
    pub(super) payload: Payload,
    pub(super) compress: String,
    pub(super) budget: usize,
    pub(super) threads: usize,
    pub(super) db_options: Vec<(String, String)>,
}

/// What it answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) seconds: f64,
    pub(super) bytes_read: u64,
    pub(super) stored_bytes: u64,
    /// The most memory that the process had until the clock stopped.
    pub(super) peak_rss: u64,
}

impl Step {
    /// Runs it in a process of its own. Ctrl-C reaches one on a remote store only through this one, which waits for it: parts of an
    /// upload that was killed would stay in the bucket.
    pub(super) fn spawn(&self, is_remote: bool) -> Result<Timed> {
        let program =
            std::env::current_exe().map_err(|error| Error::io("cannot find this program", error))?;
        let step = serde_json::to_string(self).map_err(json_error)?;
        let mut command = Command::new(program);
        command
            .args(["--quiet", "bench-step", &step])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if is_remote {
            command.process_group(0);
        }
        let output =
            command.output().map_err(|error| Error::io("cannot start a process for a timed part", error))?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            let told = told.trim().trim_start_matches("error: ").replace('\n', "; ");
            return Err(Error::internal(format!("{:?} on {} failed: {told}", self.part, self.store)));
        }
        serde_json::from_slice(&output.stdout).map_err(json_error)
    }

    /// Runs it in this process.
    pub(super) fn run(&self, context: &Context) -> Result<Timed> {
        let store: StoreArg = self.store.parse().map_err(Error::invalid)?;
        let mut options = Options { compression: self.compress.parse()?, ..Options::default() };
        options.limits.memory = self.budget;
        options.limits.threads = self.threads;
        let driver = context.registry.driver(&store.db_type, self.db_options.iter().cloned().collect())?;
        let is_mapped = self.part == Part::LoadWarm && driver.capabilities().values.are_mapped();
        if is_mapped {
            options.loading = Loading::Mapped;
        }
        let files = match driver.capabilities().locality {
            Locality::Local => files_under(Path::new(&store.prefix))?,
            Locality::Remote | Locality::Process => Vec::new(),
        };
        let place = ckpt_engine::Checkpoints::new(driver, &store.prefix).with_options(options);
        match self.part {
            Part::Save => {
                let workspace = self.payload.workspace()?;
                timed(|| {
                    let report = place.save(&workspace, NODE, EPOCH)?;
                    Ok((Timed { stored_bytes: report.stored_bytes, ..Timed::default() }, ()))
                })
                .map(|(timed, ())| timed)
            }
            Part::LoadCold | Part::LoadWarm => {
                if self.part == Part::LoadCold {
                    files.iter().try_for_each(|path| cool(path))?
                } else {
                    files.iter().try_for_each(|path| warm(path))?
                }
                let (timed, loaded) = timed(|| {
                    let checkpoint = place.open(NODE, EPOCH)?;
                    let loaded = checkpoint.load(&Selection::All)?;
                    Ok((Timed { bytes_read: checkpoint.db().bytes_read(), ..Timed::default() }, loaded))
                })?;
                self.payload.check(&loaded, 0..self.payload.blobs)?;
                Ok(timed)
            }
            Part::PartialCold => {
                files.iter().try_for_each(|path| cool(path))?;
                let middle = self.payload.middle();
                let name = self.payload.name(middle);
                let (timed, loaded) = timed(|| {
                    let checkpoint = place.open(NODE, EPOCH)?;
                    let loaded = checkpoint.load(&Selection::names([name.as_str()]))?;
                    Ok((Timed { bytes_read: checkpoint.db().bytes_read(), ..Timed::default() }, loaded))
                })?;
                self.payload.check(&loaded, std::iter::once(middle))?;
                Ok(timed)
            }
            Part::Exists => {
                let (mut timed, exists) = timed(|| {
                    let mut exists = true;
                    for _ in 0..EXISTS_CALLS {
                        exists &= place.exists(NODE, EPOCH)?;
                    }
                    Ok((Timed::default(), exists))
                })?;
                timed.seconds /= f64::from(EXISTS_CALLS);
                if exists { Ok(timed) } else { Err(Error::internal("what was saved does not exist")) }
            }
        }
    }
}

fn timed<T>(work: impl FnOnce() -> Result<(Timed, T)>) -> Result<(Timed, T)> {
    let started = Instant::now();
    let (mut timed, done) = work()?;
    timed.seconds = started.elapsed().as_secs_f64();
    timed.peak_rss = peak_rss()?;
    Ok((timed, done))
}

/// The most memory that this process ever had, in bytes. Pages of mapped files count.
fn peak_rss() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.map_err(|error| Error::io("cannot read /proc/self/status", error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    Ok(kib.ok_or_else(|| Error::internal("the system does not tell the peak of memory"))? * 1024)
}

/// All files under a folder; none where there is no such folder.
fn files_under(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(Error::io(format!("cannot list directory path=`{}`", folder.display()), error));
            }
        };
        for entry in entries {
            let path = entry.map_err(|error| Error::io("cannot list directory", error))?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    Ok(files)
}

fn cool(path: &Path) -> Result<()> {
    let failed =
        |error| Error::io(format!("cannot drop the page cache of a file path=`{}`", path.display()), error);
    drop_cache(&File::open(path).map_err(failed)?).map_err(failed)
}

fn warm(path: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("cannot read file path=`{}`", path.display()), error);
    let mut file = File::open(path).map_err(failed)?;
    std::io::copy(&mut file, &mut std::io::sink()).map_err(failed)?;
    Ok(())
}

pub(super) fn json_error(error: serde_json::Error) -> Error {
    Error::internal("cannot write or read JSON").with_source(error)
}
