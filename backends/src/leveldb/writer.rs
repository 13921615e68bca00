//! Writing: sorted tables, then a manifest that names them.

use ckpt_engine::Result;
use ckpt_engine::db::{WriteBody, WritePlan};

use super::config::{MAX_KEY_LEN, MAX_VALUE_LEN};
use super::format::edit::{LEVELS, NewTable, VersionEdit};
use super::format::table::encode_footer;
use super::format::{BYTEWISE, log};
use super::version::CURRENT;
use crate::store::Expected;
use crate::store::fs::StagedDir;
use crate::table::{Family, TableOptions, TablesWriter};

/// The number of the manifest. All files of a database are counted together.
const MANIFEST: u64 = 1;

/// LevelDB's tables.
pub(super) static FAMILY: Family = Family {
    name: "LevelDB",
    max_key_len: MAX_KEY_LEN,
    max_value_len: MAX_VALUE_LEN,
    is_sequenced: true,
    table_name: |number| format!("{:06}.ldb", table_number(number)),
    about: |_| Vec::new(),
    footer: encode_footer,
};

fn table_number(number: usize) -> u64 {
    MANIFEST + 1 + number as u64
}

/// Writes a db into `dir`, which is empty.
pub(super) fn write(
    dir: &StagedDir,
    options: &TableOptions,
    plan: &WritePlan,
    body: &mut WriteBody<'_>,
) -> Result<()> {
    let mut writer = TablesWriter::new(dir, options, plan);
    body(&mut writer)?;
    let last_sequence = writer.records();
    let tables = writer.finish()?;
    let next_file = table_number(tables.len());
    let new = tables.into_iter().enumerate().map(|(number, table)| NewTable {
        // The tables follow each other, so they may be on any level but the first. LevelDB moves tables from a level that has too
        // many bytes to the next one; from the last there is none.
        level: LEVELS - 1,
        number: table_number(number),
        bytes: table.bytes,
        smallest: table.smallest,
        largest: table.largest,
    });
    let edit = VersionEdit {
        comparator: Some(BYTEWISE.to_vec()),
        // There is none: LevelDB says so of a database that it repaired.
        log: Some(0),
        previous_log: Some(0),
        next_file: Some(next_file),
        last_sequence: Some(last_sequence),
        deleted: Vec::new(),
        new: new.collect(),
    };
    let mut manifest = Vec::new();
    log::append(&mut manifest, &edit.encode());
    let name = format!("MANIFEST-{MANIFEST:06}");
    let current = format!("{name}\n");
    for (name, bytes) in [(&name[..], manifest), (CURRENT, current.into_bytes())] {
        let expected = Expected { bytes: bytes.len() as u64, limits: plan.limits };
        let mut file = dir.create_file(name, expected)?;
        file.append(vec![bytes.into()])?;
        file.finish()?;
    }
    Ok(())
}
