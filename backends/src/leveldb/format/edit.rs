//! A record of the manifest: what it changes of which files there are.
//!
//! It is fields in any order, each a number that says which, then numbers as varints and byte strings with their length before them.

use ckpt_engine::{Error, Result};

use super::{Input, TAG, put_prefixed, put_varints};

/// How many levels there are.
pub(crate) const LEVELS: u32 = 7;

const COMPARATOR: u64 = 1;
const LOG: u64 = 2;
const NEXT_FILE: u64 = 3;
const LAST_SEQUENCE: u64 = 4;
const COMPACT_POINTER: u64 = 5;
const DELETED_TABLE: u64 = 6;
const NEW_TABLE: u64 = 7;
const PREVIOUS_LOG: u64 = 9;

/// A change of which files there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionEdit {
    /// The name of the order that keys are in.
    pub(crate) comparator: Option<Vec<u8>>,
    /// Logs before this one are in tables.
    pub(crate) log: Option<u64>,
    /// Except this one.
    pub(crate) previous_log: Option<u64>,
    pub(crate) next_file: Option<u64>,
    pub(crate) last_sequence: Option<u64>,
    /// Level and number of tables that are gone.
    pub(crate) deleted: Vec<(u32, u64)>,
    pub(crate) new: Vec<NewTable>,
}

/// A table that there is from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewTable {
    pub(crate) level: u32,
    pub(crate) number: u64,
    /// How long its file is.
    pub(crate) bytes: u64,
    /// The internal keys of its first and last record.
    pub(crate) smallest: Vec<u8>,
    pub(crate) largest: Vec<u8>,
}

impl VersionEdit {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(name) = &self.comparator {
            put_varints(&mut bytes, [COMPARATOR]);
            put_prefixed(&mut bytes, name);
        }
        let numbers = [
            (LOG, self.log),
            (PREVIOUS_LOG, self.previous_log),
            (NEXT_FILE, self.next_file),
            (LAST_SEQUENCE, self.last_sequence),
        ];
        for (field, number) in numbers {
            if let Some(number) = number {
                put_varints(&mut bytes, [field, number]);
            }
        }
        for (level, number) in &self.deleted {
            put_varints(&mut bytes, [DELETED_TABLE, u64::from(*level), *number]);
        }
        for table in &self.new {
            put_varints(&mut bytes, [NEW_TABLE, u64::from(table.level), table.number, table.bytes]);
            put_prefixed(&mut bytes, &table.smallest);
            put_prefixed(&mut bytes, &table.largest);
        }
        bytes
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self> {
        let (mut edit, mut input) = (Self::default(), Input(record));
        while !input.is_empty() {
            let field = input.varint().ok_or_else(|| damaged(0))?;
            if !matches!(field, COMPARATOR..=NEW_TABLE | PREVIOUS_LOG) {
                return Err(looks_like_rocksdb(&format!("field of the manifest field=`{field}`")));
            }
            edit.decode_field(field, &mut input).ok_or_else(|| damaged(field))?;
        }
        Ok(edit)
    }

    fn decode_field(&mut self, field: u64, input: &mut Input<'_>) -> Option<()> {
        match field {
            COMPARATOR => self.comparator = Some(input.prefixed()?.to_vec()),
            LOG => self.log = Some(input.varint()?),
            PREVIOUS_LOG => self.previous_log = Some(input.varint()?),
            NEXT_FILE => self.next_file = Some(input.varint()?),
            LAST_SEQUENCE => self.last_sequence = Some(input.varint()?),
            // Where LevelDB goes on to tidy up.
            COMPACT_POINTER => drop((level(input)?, internal_key(input)?)),
            DELETED_TABLE => self.deleted.push((level(input)?, input.varint()?)),
            NEW_TABLE => self.new.push(NewTable {
                level: level(input)?,
                number: input.varint()?,
                bytes: input.varint()?,
                smallest: internal_key(input)?,
                largest: internal_key(input)?,
            }),
            _ => return None,
        }
        Some(())
    }
}

fn level(input: &mut Input<'_>) -> Option<u32> {
    u32::try_from(input.varint()?).ok().filter(|level| *level < LEVELS)
}

fn internal_key(input: &mut Input<'_>) -> Option<Vec<u8>> {
    input.prefixed().filter(|key| key.len() >= TAG).map(<[u8]>::to_vec)
}

fn damaged(field: u64) -> Error {
    Error::corrupt(format!("LevelDB manifest has a field that cannot be read field=`{field}`"))
}

/// The error for what RocksDB writes and LevelDB does not: it keeps its files in much the same way.
pub(crate) fn looks_like_rocksdb(what: &str) -> Error {
    Error::unsupported(format!(
        "looks like a RocksDB database; use db_type `rocksdb`: LevelDB knows no such {what}"
    ))
}

#[cfg(test)]
mod tests {
    use ckpt_engine::ErrorKind;

    use super::*;
    use crate::leveldb::format::VALUE;

    fn sample() -> VersionEdit {
        let key = |user: &[u8], sequence| super::super::internal_key(user, sequence, VALUE);
        VersionEdit {
            comparator: Some(b"c".to_vec()),
            log: Some(3),
            previous_log: Some(0),
            next_file: Some(300),
            last_sequence: Some(u64::MAX),
            deleted: vec![(0, 5), (6, 1 << 40)],
            new: vec![NewTable {
                level: 6,
                number: 9,
                bytes: 1 << 33,
                smallest: key(b"a", 1),
                largest: key(b"b", 2),
            }],
        }
    }

    #[test]
    fn an_edit_has_these_bytes() {
        let bytes = b"\x01\x01c\x02\x03\x09\x00\x03\xac\x02\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\
            \x06\x00\x05\x06\x06\x80\x80\x80\x80\x80\x20\
            \x07\x06\x09\x80\x80\x80\x80\x20\x09a\x01\x01\0\0\0\0\0\0\x09b\x01\x02\0\0\0\0\0\0";
        assert_eq!(sample().encode().escape_ascii().to_string(), bytes.escape_ascii().to_string());
        assert_eq!(VersionEdit::decode(bytes).unwrap(), sample());
        assert_eq!(VersionEdit::decode(b"").unwrap(), VersionEdit::default());
        assert_eq!(VersionEdit::default().encode(), b"");
        // Where LevelDB goes on to tidy up is of no use to us.
        assert_eq!(VersionEdit::decode(b"\x05\x01\x08\x01\0\0\0\0\0\0\0").unwrap(), VersionEdit::default());
    }

    #[test]
    fn a_cut_edit_is_refused_or_ends_between_two_fields() {
        let bytes = sample().encode();
        let whole = (0..bytes.len()).filter(|&len| VersionEdit::decode(&bytes[..len]).is_ok()).count();
        assert_eq!(whole, 8);
    }

    #[test]
    fn what_leveldb_does_not_write_is_refused() {
        for field in [0u8, 8, 10, 100, 103] {
            let error = VersionEdit::decode(&[field, 1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{field}");
            assert!(error.to_string().contains("use db_type `rocksdb`"), "{error}");
        }
        // A level that there is not; a key that is no internal one.
        for bytes in [&b"\x06\x07\x01"[..], b"\x05\x01\x07\x01\0\0\0\0\0\0", b"\x80"] {
            assert_eq!(VersionEdit::decode(bytes).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
