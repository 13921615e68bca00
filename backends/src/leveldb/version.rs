//! Which files make up the database: `CURRENT` names a manifest, whose records say it.

use std::collections::BTreeMap;

use bytes::Bytes;
use ckpt_engine::{Error, Result, ResultExt};

use super::dir::Dir;
use super::error::missing;
use super::format::BYTEWISE;
use super::format::edit::{NewTable, VersionEdit};
use super::format::log::{BLOCK, End, LogReader};

/// The file that names the manifest.
pub(super) const CURRENT: &str = "CURRENT";

/// The files that there are.
#[derive(Debug)]
pub(super) struct Version {
    /// By level and number.
    pub(super) tables: BTreeMap<(u32, u64), NewTable>,
    /// The logs that are not in tables, by their numbers, from the oldest on.
    pub(super) logs: Vec<u64>,
}

impl Version {
    /// Reads `CURRENT` and the manifest.
    pub(super) fn load(dir: &Dir) -> Result<Self> {
        let manifest = current(dir)?;
        let context = || format!("cannot read manifest path=`{}`", dir.path().join(&manifest).display());
        let (mut all, mut tables) = (VersionEdit::default(), BTreeMap::new());
        let mut log = LogReader::new(End::Clean);
        dir.read_log(&manifest, &mut |block| {
            let mut each = |record: Bytes| apply(VersionEdit::decode(&record)?, &mut all, &mut tables);
            log.read(block, &mut each).context(context)
        })?;
        let from = log.finish().and_then(|()| check(&all)).context(context)?;
        Ok(Self { tables, logs: logs(dir, from, all.previous_log.unwrap_or(0))? })
    }
}

/// The name of the manifest.
fn current(dir: &Dir) -> Result<String> {
    let path = dir.path().join(CURRENT);
    let file = dir.file(CURRENT)?.ok_or_else(|| {
        Error::corrupt(format!("directory is not a LevelDB database path=`{}`", dir.path().display()))
    })?;
    // What is longer names no manifest.
    let len = usize::try_from(file.len()).unwrap_or(usize::MAX).min(BLOCK);
    let bytes = dir.read(&file, 0, len)?;
    let name = bytes.strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
    let name =
        name.filter(|name| name.strip_prefix("MANIFEST-").is_some_and(|number| number_of(number).is_some()));
    let name = name.filter(|_| file.len() == len as u64);
    let name = name
        .ok_or_else(|| Error::corrupt(format!("file does not name a manifest path=`{}`", path.display())))?;
    Ok(name.to_owned())
}

fn apply(
    edit: VersionEdit,
    all: &mut VersionEdit,
    tables: &mut BTreeMap<(u32, u64), NewTable>,
) -> Result<()> {
    if let Some(name) = edit.comparator {
        if name != BYTEWISE {
            return Err(Error::unsupported(format!(
                "keys of the LevelDB database are in an order that is not known comparator=`{}`",
                name.escape_ascii()
            )));
        }
        all.comparator = Some(name);
    }
    all.log = edit.log.or(all.log);
    all.previous_log = edit.previous_log.or(all.previous_log);
    all.next_file = edit.next_file.or(all.next_file);
    all.last_sequence = edit.last_sequence.or(all.last_sequence);
    for table in &edit.deleted {
        tables.remove(table);
    }
    tables.extend(edit.new.into_iter().map(|table| ((table.level, table.number), table)));
    Ok(())
}

/// Checks that all is said that must be. Returns the first log that is not in tables.
fn check(all: &VersionEdit) -> Result<u64> {
    match (&all.comparator, all.log, all.next_file, all.last_sequence) {
        (Some(_), Some(log), Some(_), Some(_)) => Ok(log),
        _ => Err(Error::corrupt("LevelDB manifest ends before all is said")),
    }
}

/// The logs that there are from this one on, and the one before it that is named.
fn logs(dir: &Dir, from: u64, previous: u64) -> Result<Vec<u64>> {
    let names = dir.names()?;
    let numbers = names.iter().filter_map(|name| number_of(name.strip_suffix(".log")?));
    let mut logs: Vec<u64> = numbers.filter(|number| *number >= from || *number == previous).collect();
    logs.sort_unstable();
    // LevelDB makes a log before it names it. Before it has made any it names number 0.
    if from != 0 && !logs.contains(&from) {
        return Err(missing(&dir.path().join(log_name(from))));
    }
    Ok(logs)
}

/// The name of a log.
pub(super) fn log_name(number: u64) -> String {
    format!("{number:06}.log")
}

/// The number that a name says. Others may write it in another way than we would: no file has such a name.
fn number_of(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|number| format!("{number:06}") == digits)
}
