//! A table: data blocks, an index of them, and a footer that says where the index is.
//!
//! After each block is how it is compressed (1) and a checksum of both (4). The footer is the last 48 bytes: where a block of other
//! blocks' names is, of which there are none here, and where the index is, each an offset and a length as varints; zeros; a number
//! that says that it is a table (8).

use bytes::Bytes;
use ckpt_engine::{Error, Result};

use super::Input;
use super::edit::looks_like_rocksdb;
use crate::store::zeroed;
use crate::table::{Compressor, Handle, RAW, unseal};

/// The bytes at the end of a table.
pub(crate) const FOOTER: usize = 48;

const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// RocksDB's own tables.
const ROCKSDB_MAGIC: u64 = 0x88e2_41b7_85f4_cff7;

/// How a block is compressed, if it is.
const SNAPPY: u8 = 1;

/// Compresses blocks by Snappy.
pub(crate) const BY_SNAPPY: Compressor = Compressor { kind: SNAPPY, compress };

/// The last bytes of a table.
pub(crate) fn encode_footer(names: &Handle, index: &Handle) -> Vec<u8> {
    let mut bytes = [names.encode(), index.encode()].concat();
    bytes.resize(FOOTER - size_of::<u64>(), 0);
    bytes.extend(MAGIC.to_le_bytes());
    bytes
}

/// Where the index is of a table whose footer begins at `at`.
pub(crate) fn decode_footer(footer: &[u8], at: u64) -> Result<Handle> {
    match footer.last_chunk().map(|magic| u64::from_le_bytes(*magic)) {
        Some(MAGIC) => {}
        Some(ROCKSDB_MAGIC) => return Err(looks_like_rocksdb("kind of table")),
        _ => return Err(damaged("has no footer at its end")),
    }
    let mut input = Input(footer);
    let handles = (|| Some((Handle::decode(&mut input)?, Handle::decode(&mut input)?)))();
    let is_within = |handle: &Handle| handle.end().is_some_and(|end| end <= at);
    match handles {
        Some((names, index)) if is_within(&names) && is_within(&index) => Ok(index),
        _ => Err(damaged("has a footer that points outside of it")),
    }
}

/// A block that was read with what comes after it: checked, and as it was before it was compressed.
pub(crate) fn open_block(stored: Vec<u8>) -> Result<Bytes> {
    let (kind, contents) = unseal(stored)?;
    match kind {
        RAW => Ok(contents.into()),
        SNAPPY => decompress(&contents),
        other => Err(Error::unsupported(format!(
            "LevelDB table has a block that is compressed in an unknown way compression=`{other}`"
        ))),
    }
}

fn decompress(compressed: &[u8]) -> Result<Bytes> {
    let failed = |error| damaged("has a block that cannot be decompressed").with_source(error);
    let len = snap::raw::decompress_len(compressed).map_err(failed)?;
    // At best three bytes stand for 64.
    if len / 64 > compressed.len() / 3 {
        return Err(damaged("has a block that says that it is longer than it can be"));
    }
    let mut bytes = zeroed(len)?;
    if snap::raw::Decoder::new().decompress(compressed, &mut bytes).map_err(failed)? != len {
        return Err(damaged("has a block that is shorter than it says"));
    }
    Ok(bytes.into())
}

/// The block compressed by Snappy, unless that saves less than an eighth.
fn compress(block: &[u8]) -> Option<Vec<u8>> {
    let compressed = snap::raw::Encoder::new().compress_vec(block).ok()?;
    (compressed.len() < block.len() - block.len() / 8).then_some(compressed)
}

pub(super) fn damaged(why: &str) -> Error {
    Error::corrupt(format!("LevelDB table {why}"))
}

#[cfg(test)]
mod tests {
    use ckpt_engine::ErrorKind;

    use super::*;
    use crate::table::{mask, trailer};

    const HANDLES: [Handle; 2] = [Handle { offset: 0, len: 8 }, Handle { offset: 13, len: 300 }];

    #[test]
    fn a_footer_has_these_bytes() {
        let footer = encode_footer(&HANDLES[0], &HANDLES[1]);
        let mut expected = b"\x00\x08\x0d\xac\x02".to_vec();
        expected.resize(40, 0);
        expected.extend(b"\x57\xfb\x80\x8b\x24\x75\x47\xdb");
        assert_eq!(footer, expected);
        assert_eq!(decode_footer(&footer, 318).unwrap(), HANDLES[1]);
        assert_eq!(decode_footer(&footer, 317).unwrap_err().kind(), ErrorKind::Corrupt);
        for len in 0..FOOTER {
            assert!(decode_footer(&footer[..len], 318).is_err());
        }
        let mut rocksdb = footer.clone();
        rocksdb[40..].copy_from_slice(&ROCKSDB_MAGIC.to_le_bytes());
        assert_eq!(decode_footer(&rocksdb, 318).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    fn stored(block: &[u8], is_compressed: bool) -> Vec<u8> {
        [block, &trailer(crc32c::crc32c(block), if is_compressed { SNAPPY } else { RAW })].concat()
    }

    #[test]
    fn blocks_come_back_and_every_flip_is_found() {
        let block: Vec<u8> = (0..2000_u32).map(|at| (at / 40) as u8).collect();
        let compressed = compress(&block).unwrap();
        assert!(compress(&[1, 2, 3]).is_none());
        assert_eq!(open_block(stored(&[], false)).unwrap(), &[][..]);
        for stored in [stored(&block, false), stored(&compressed, true)] {
            assert_eq!(open_block(stored.clone()).unwrap(), block);
            for at in 0..stored.len() {
                let mut damaged = stored.clone();
                damaged[at] ^= 1 << (at % 8);
                assert_eq!(open_block(damaged).unwrap_err().kind(), ErrorKind::Corrupt, "{at}");
                assert!(open_block(stored[..at].to_vec()).is_err());
            }
        }
        let block = b"what is it";
        let other = mask(crc32c::crc32c_append(crc32c::crc32c(block), &[2])).to_le_bytes();
        let other = [&block[..], &[2], &other].concat();
        assert_eq!(open_block(other).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn absurd_lengths_are_refused_before_memory_is_taken() {
        // It says 4 GiB.
        let absurd = [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0; 100]].concat();
        let error = open_block(stored(&absurd, true)).unwrap_err();
        assert!(error.to_string().contains("longer than it can be"), "{error}");
        // As small as Snappy makes anything.
        let zeros = vec![0; 1 << 20];
        assert_eq!(open_block(stored(&compress(&zeros).unwrap(), true)).unwrap(), zeros);
        let mut shorter = compress(&zeros).unwrap();
        shorter.truncate(shorter.len() - 3);
        assert_eq!(open_block(stored(&shorter, true)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
