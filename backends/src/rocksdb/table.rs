//! What RocksDB's tables have that LevelDB's do not: properties, and another footer.
//!
//! The format is that of version 2, which every RocksDB since 2015 reads.

use super::config::{MAX_KEY_LEN, MAX_VALUE_LEN};
use crate::table::{BYTEWISE, BlockBuilder, Family, Handle, Input, Totals, put_varints};

const MAGIC: u64 = 0x88e2_41b7_85f4_cff7;
const FORMAT_VERSION: u32 = 2;

/// How blocks are checked: CRC32C.
const CHECKSUM: u8 = 1;

/// The footer before its version and its magic number: how blocks are checked, then two handles of at most 20 bytes each.
const HANDLES: usize = 1 + 2 * 20;

/// The index is sorted and searched by halving.
const BINARY_SEARCH: u32 = 0;

/// Tables that another program made, and how they are marked.
const EXTERNAL_VERSION: u32 = 2;
const GLOBAL_SEQUENCE: u64 = 0;

/// RocksDB's tables, made to be ingested.
pub(super) static FAMILY: Family = Family {
    name: "RocksDB",
    max_key_len: MAX_KEY_LEN,
    max_value_len: MAX_VALUE_LEN,
    // Tables that are ingested get their sequence number when they are.
    is_sequenced: false,
    table_name: |number| format!("{TABLES}/{number:06}.sst"),
    about: |totals| vec![(PROPERTIES, properties(totals))],
    footer: encode_footer,
};

/// Where the tables lie until they are ingested, within the staged directory.
pub(super) const TABLES: &str = "tables";

/// The block of a table that is about it; there is no other.
pub(super) const PROPERTIES: &str = "rocksdb.properties";

/// The bytes at the end of a table.
pub(super) const FOOTER: usize = HANDLES + size_of::<u32>() + size_of::<u64>();

/// The names must ascend.
fn properties(totals: &Totals) -> Vec<u8> {
    let varint = |number| {
        let mut bytes = Vec::new();
        put_varints(&mut bytes, [number]);
        bytes
    };
    let properties = [
        ("rocksdb.block.based.table.index.type", BINARY_SEARCH.to_le_bytes().to_vec()),
        ("rocksdb.comparator", BYTEWISE.to_vec()),
        ("rocksdb.data.size", varint(totals.data_bytes)),
        ("rocksdb.external_sst_file.global_seqno", GLOBAL_SEQUENCE.to_le_bytes().to_vec()),
        ("rocksdb.external_sst_file.version", EXTERNAL_VERSION.to_le_bytes().to_vec()),
        ("rocksdb.index.size", varint(totals.index_bytes)),
        ("rocksdb.num.data.blocks", varint(totals.blocks)),
        ("rocksdb.num.entries", varint(totals.records)),
        ("rocksdb.raw.key.size", varint(totals.key_bytes)),
        ("rocksdb.raw.value.size", varint(totals.value_bytes)),
        // So that opening reads the rest of the table in one go.
        ("rocksdb.tail.start.offset", varint(totals.data_bytes)),
    ];
    let mut block = BlockBuilder::new(1);
    for (name, value) in properties {
        block.add(name.as_bytes(), &[value.into()]);
    }
    block.finish()
}

fn encode_footer(names: &Handle, index: &Handle) -> Vec<u8> {
    let mut bytes = [&[CHECKSUM][..], &names.encode(), &index.encode()].concat();
    bytes.resize(HANDLES, 0);
    bytes.extend(FORMAT_VERSION.to_le_bytes());
    bytes.extend(MAGIC.to_le_bytes());
    bytes
}

/// Where the block of the names and the index are, of a table with a footer like ours that begins at `at`.
pub(super) fn decode_footer(footer: &[u8; FOOTER], at: u64) -> Option<(Handle, Handle)> {
    let (handles, rest) = footer.split_at_checked(HANDLES)?;
    let mut input = Input(rest);
    let is_ours =
        input.array() == Some(FORMAT_VERSION.to_le_bytes()) && input.array() == Some(MAGIC.to_le_bytes());
    let mut input = Input(handles);
    let is_ours = is_ours && input.array() == Some([CHECKSUM]);
    let (names, index) = (Handle::decode(&mut input)?, Handle::decode(&mut input)?);
    let is_within = |handle: &Handle| handle.end().is_some_and(|end| end <= at);
    (is_ours && is_within(&names) && is_within(&index)).then_some((names, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_has_these_bytes() {
        let footer = encode_footer(&Handle { offset: 300, len: 8 }, &Handle { offset: 13, len: 300 });
        let mut expected = b"\x01\xac\x02\x08\x0d\xac\x02".to_vec();
        expected.resize(41, 0);
        expected.extend(b"\x02\0\0\0\xf7\xcf\xf4\x85\xb7\x41\xe2\x88");
        assert_eq!(footer, expected);
        let footer: [u8; FOOTER] = footer.try_into().unwrap();
        let found = (Handle { offset: 300, len: 8 }, Handle { offset: 13, len: 300 });
        assert_eq!(decode_footer(&footer, 318), Some(found));
        assert_eq!(decode_footer(&footer, 317), None, "the index ends outside");
        for at in [0, 41, 45, 52] {
            let mut other = footer;
            other[at] ^= 4;
            assert_eq!(decode_footer(&other, 318), None, "byte {at}");
        }
    }
}
