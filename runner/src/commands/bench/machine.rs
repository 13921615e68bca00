//! Which machine it is.

use std::path::Path;

use ckpt_engine::{Error, Result};
use serde::Serialize;

use super::place::Target;

/// What figures depend on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    cpu: String,
    cpus: usize,
    memory_bytes: u64,
    kernel: String,
    /// The folder that was measured in, if one was.
    dir: Option<String>,
    file_system: Option<String>,
    free_bytes: Option<u64>,
    /// The object stores, as URLs.
    remote: Vec<String>,
    version: &'static str,
    date: String,
}

impl Machine {
    pub(super) fn of(dir: Option<&Path>, targets: &[Target]) -> Result<Self> {
        let uname = rustix::system::uname();
        let absolute = dir.map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()));
        let url = |target: &Target| Some(format!("{}://{}", target.db_type, target.remote.as_ref()?));
        Ok(Self {
            cpu: value_of("/proc/cpuinfo", "model name"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: value_of("/proc/meminfo", "MemTotal")
                .trim_end_matches("kB")
                .trim()
                .parse::<u64>()
                .map_or(0, |kib| kib * 1024),
            kernel: uname.release().to_string_lossy().into_owned(),
            dir: absolute.as_ref().map(|dir| dir.display().to_string()),
            file_system: absolute.as_deref().map(file_system),
            free_bytes: dir.map(free_bytes).transpose()?,
            remote: targets.iter().filter_map(url).collect(),
            version: env!("CARGO_PKG_VERSION"),
            date: format!("{} UTC", crate::output::now()),
        })
    }

    pub(super) fn text(&self) -> String {
        let disk = self.file_system.iter().zip(&self.dir).map(|(kind, dir)| format!("{kind} on {dir}"));
        let places: Vec<String> = disk.chain(self.remote.iter().cloned()).collect();
        format!(
            "{} ({} cpus, {}), Linux {}, {}, {}\n",
            self.cpu,
            self.cpus,
            crate::output::size(self.memory_bytes),
            self.kernel,
            places.join(", "),
            self.date
        )
    }
}

/// How many bytes we may still write there.
pub(super) fn free_bytes(dir: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(dir).map_err(|error| {
        Error::io(format!("cannot ask for free space path=`{}`", dir.display()), error.into())
    })?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The value of the first line `key : value` of a file of the system; empty if there is none.
fn value_of(file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.map(|value| value.trim().trim_start_matches(':').trim().to_owned()).unwrap_or_default()
}

/// The type of the file system that holds `dir`: that of the longest mount point above it.
fn file_system(dir: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mut best = (0, String::from("unknown file system"));
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(point), Some(kind)) = (words.next(), words.next()) else { continue };
        if dir.starts_with(point) && point.len() >= best.0 {
            best = (point.len(), kind.to_owned());
        }
    }
    best.1
}
