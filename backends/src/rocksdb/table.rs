//! What RocksDB's tables have that LevelDB's do not: properties, and another footer.
//!
//! The format is that of version 2, which every RocksDB since 2015 reads.

use super::config::{MAX_KEY_LEN, MAX_VALUE_LEN};
use crate::table::{BYTEWISE, BlockBuilder, Family, Handle, Totals, put_varints};

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
    about: |totals| vec![("rocksdb.properties", properties(totals))],
    footer: encode_footer,
};

/// Where the tables lie until they are ingested, within the staged directory.
pub(super) const TABLES: &str = "tables";

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
    }
}
