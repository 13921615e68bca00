//! The manifest: what a db holds and where.
//!
//! It is the last record that a save writes, so a checkpoint exists if and only if its manifest does. Reading trusts nothing:
//! what [`Manifest::decode`] returns has been checked to be consistent in itself, so that the verbs can rely on it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use prost::Message;

use super::codec::Codec;
use super::shuffle::Width;
use crate::blob::{DType, MAX_NAME_LEN};
use crate::error::{Error, Result};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/ckpt.v1.rs"));
}

/// Begins every manifest record.
const MAGIC: &[u8; 8] = b"CKPTMANI";
/// The version that this build writes and reads.
const VERSION: u32 = 1;

/// The largest chunk that a reader accepts, in raw bytes: it bounds what one damaged or hostile manifest can make it allocate
/// at a time.
pub const MAX_CHUNK_BYTES: u64 = 256 << 20;

/// The random id of one save.
pub type DbId = [u8; 16];

/// What a db holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Random, made anew by every save.
    pub id: DbId,
    /// The node that was saved.
    pub node: String,
    /// The epoch that was saved.
    pub epoch: u64,
    /// When the save began, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Program and version that wrote it.
    pub writer: String,
    /// The user's own.
    pub metadata: BTreeMap<String, String>,
    /// The stored bytes.
    pub storages: Vec<Storage>,
    /// The blobs, in ascending order of names.
    pub blobs: Vec<BlobEntry>,
}

/// Bytes that one or more blobs share, cut into chunks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Storage {
    /// The length in raw bytes.
    pub bytes: u64,
    /// The raw length of every chunk but the last.
    pub chunk_bytes: u64,
    /// The record that holds the first chunk.
    pub first_record: u32,
    /// How many chunks a record holds.
    pub chunks_per_record: u32,
    /// Where the first chunk begins in its record.
    pub offset: u64,
    /// The chunks in order.
    pub chunks: Vec<Chunk>,
}

/// How a chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunk {
    /// Of the stored bytes.
    pub crc32: u32,
    /// Raw or compressed.
    pub codec: Codec,
    /// The length of the stored bytes.
    pub stored_bytes: u64,
}

/// A chunk and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// The number of its record.
    pub record: u32,
    /// Its bytes in the record.
    pub stored: Range<u64>,
    /// The bytes of the storage that it holds.
    pub raw: Range<u64>,
    /// How it is stored.
    pub chunk: Chunk,
}

/// A named blob.
#[derive(Clone, Debug, PartialEq)]
pub struct BlobEntry {
    /// Its name.
    pub name: String,
    /// Index of its bytes in [`Manifest::storages`].
    pub storage: usize,
    /// What it is.
    pub kind: BlobKind,
}

/// What a blob is.
#[derive(Clone, Debug, PartialEq)]
pub enum BlobKind {
    /// A tensor.
    Tensor {
        /// Element type.
        dtype: DType,
        /// Dimensions, outermost first.
        shape: Vec<u64>,
    },
    /// Opaque bytes.
    Bytes {
        /// What they are, for whoever understands them.
        type_name: String,
    },
}

impl Storage {
    /// The chunks with their places, in order.
    pub fn located(&self) -> impl Iterator<Item = Located> {
        let per_record = self.chunks_per_record.max(1);
        let mut raw = 0;
        let mut at = self.offset;
        (0u32..).zip(&self.chunks).map(move |(index, &chunk)| {
            if index > 0 && index % per_record == 0 {
                at = 0;
            }
            // Cannot wrap: decoding has checked all sums.
            let stored = at..at.saturating_add(chunk.stored_bytes);
            let end = raw + self.chunk_bytes.min(self.bytes - raw);
            let located = Located {
                record: self.first_record.saturating_add(index / per_record),
                stored: stored.clone(),
                raw: raw..end,
                chunk,
            };
            raw = end;
            at = stored.end;
            located
        })
    }

    /// The sum of the stored bytes of all chunks.
    pub fn stored_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.stored_bytes).sum()
    }

    /// That of the first chunk that is compressed, if any is.
    pub fn codec(&self) -> Codec {
        let compressed = self.chunks.iter().find(|chunk| chunk.codec != Codec::Raw);
        compressed.map_or(Codec::Raw, |chunk| chunk.codec)
    }

    fn check(&self) -> Option<()> {
        let chunks = match self.bytes {
            0 => 0,
            bytes if (1..=MAX_CHUNK_BYTES).contains(&self.chunk_bytes) => bytes.div_ceil(self.chunk_bytes),
            _ => return None,
        };
        let count = u32::try_from(self.chunks.len()).ok().filter(|&count| u64::from(count) == chunks)?;
        let records = count.div_ceil(self.chunks_per_record.max(1));
        self.first_record.checked_add(records)?;
        let stored =
            self.chunks.iter().try_fold(self.offset, |sum, chunk| sum.checked_add(chunk.stored_bytes));
        stored?;
        let sound = |located: Located| {
            let raw = located.raw.end - located.raw.start;
            match located.chunk.codec {
                Codec::Raw => located.chunk.stored_bytes == raw,
                // What did not get smaller is stored raw.
                Codec::Zstd | Codec::ShuffleZstd(_) => located.chunk.stored_bytes < raw,
            }
        };
        self.located().all(sound).then_some(())
    }
}

impl Manifest {
    /// Whether a record begins as a manifest does.
    pub fn is_one(record: &[u8]) -> bool {
        record.starts_with(MAGIC)
    }

    /// The blob of a name.
    pub fn blob(&self, name: &str) -> Option<&BlobEntry> {
        let at = self.blobs.binary_search_by(|blob| blob.name.as_str().cmp(name)).ok()?;
        self.blobs.get(at)
    }

    /// The stored bytes of a blob.
    pub fn storage(&self, blob: &BlobEntry) -> Result<&Storage> {
        // Decoding has checked the index.
        self.storages.get(blob.storage).ok_or_else(|| Error::internal("blob without a storage"))
    }

    /// The sum of all blobs' bytes; what several blobs share counts once.
    pub fn bytes(&self) -> u64 {
        self.storages.iter().map(|storage| storage.bytes).sum()
    }

    /// The sum of all chunks' stored bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.storages.iter().map(Storage::stored_bytes).sum()
    }

    /// The record: header and body.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.to_proto().encode_to_vec();
        let version = VERSION.to_le_bytes();
        let len = (body.len() as u64).to_le_bytes();
        let crc32 = envelope_crc32(version, len, &body).to_le_bytes();
        [&MAGIC[..], &version, &len, &crc32, &body].concat()
    }

    /// Reads a record and checks all of it. Fails with `Corrupt`, or with `Unsupported` for a version from the future.
    pub fn decode(record: &[u8]) -> Result<Self> {
        let body = open_envelope(record)?;
        let proto = proto::Manifest::decode(body)
            .map_err(|error| Error::corrupt("manifest does not parse").with_source(error))?;
        Self::from_proto(proto)
    }

    fn to_proto(&self) -> proto::Manifest {
        proto::Manifest {
            id: self.id.to_vec(),
            node: self.node.clone(),
            epoch: self.epoch,
            created_unix_ms: self.created_unix_ms,
            writer: self.writer.clone(),
            storages: self.storages.iter().map(storage_to_proto).collect(),
            blobs: self.blobs.iter().map(blob_to_proto).collect(),
            metadata: self.metadata.iter().map(metadata_to_proto).collect(),
        }
    }

    fn from_proto(proto: proto::Manifest) -> Result<Self> {
        let id = DbId::try_from(proto.id).map_err(|_| inconsistent("id is not 16 bytes"))?;
        let storages = proto.storages.into_iter().map(storage_from_proto).collect::<Result<Vec<_>>>()?;
        let blobs = proto.blobs.into_iter().map(blob_from_proto).collect::<Result<Vec<_>>>()?;
        check_extents(&storages)?;
        check_blobs(&blobs, &storages)?;
        let metadata = proto.metadata.into_iter().map(|entry| (entry.key, entry.value)).collect();
        Ok(Self {
            id,
            node: proto.node,
            epoch: proto.epoch,
            created_unix_ms: proto.created_unix_ms,
            writer: proto.writer,
            metadata,
            storages,
            blobs,
        })
    }
}

/// The hexadecimal text of an id, as epoch records and commands show it.
pub fn id_text(id: &DbId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn inconsistent(what: &str) -> Error {
    Error::corrupt(format!("manifest is inconsistent: {what}"))
}

fn open_envelope(record: &[u8]) -> Result<&[u8]> {
    let short = || Error::corrupt(format!("manifest is too short bytes=`{}`", record.len()));
    let (magic, rest) = record.split_first_chunk::<8>().ok_or_else(short)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let (crc32, body) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    if magic != MAGIC {
        return Err(Error::corrupt("record is not a manifest"));
    }
    if u64::from_le_bytes(*len) != body.len() as u64 {
        return Err(Error::corrupt(format!(
            "manifest has another length expected=`{}` found=`{}`",
            u64::from_le_bytes(*len),
            body.len()
        )));
    }
    let (expected, found) = (u32::from_le_bytes(*crc32), envelope_crc32(*version, *len, body));
    if expected != found {
        return Err(Error::corrupt(format!(
            "manifest: checksum differs expected=`{expected:08x}` found=`{found:08x}`"
        )));
    }
    // After the checksum: a damaged version must not pass for one from the future.
    match u32::from_le_bytes(*version) {
        VERSION => Ok(body),
        other => Err(Error::unsupported(format!(
            "checkpoint was written by another version of ckpt; use that one format=`{other}`"
        ))),
    }
}

/// The checksum covers version and length too.
fn envelope_crc32(version: [u8; 4], len: [u8; 8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&version);
    hasher.update(&len);
    hasher.update(body);
    hasher.finalize()
}

/// No two chunks may claim the same stored bytes: a record would be decoded in two ways.
fn check_extents(storages: &[Storage]) -> Result<()> {
    let mut taken: HashMap<u32, Vec<Range<u64>>> = HashMap::new();
    for storage in storages {
        for located in storage.located() {
            taken.entry(located.record).or_default().push(located.stored);
        }
    }
    for ranges in taken.values_mut() {
        ranges.sort_unstable_by_key(|range| range.start);
        let overlap = ranges.iter().zip(ranges.iter().skip(1)).any(|(a, b)| a.end > b.start);
        if overlap {
            return Err(inconsistent("chunks overlap"));
        }
    }
    Ok(())
}

fn check_blobs(blobs: &[BlobEntry], storages: &[Storage]) -> Result<()> {
    let mut last: Option<&str> = None;
    for blob in blobs {
        if blob.name.len() > MAX_NAME_LEN {
            return Err(inconsistent("a name is too long"));
        }
        if last.is_some_and(|last| last >= blob.name.as_str()) {
            return Err(inconsistent("names do not ascend"));
        }
        last = Some(&blob.name);
        let bytes = storages.get(blob.storage).map(|storage| storage.bytes);
        let bytes = bytes.ok_or_else(|| inconsistent("a blob has no storage"))?;
        if let BlobKind::Tensor { dtype, shape } = &blob.kind {
            let expected = crate::blob::byte_len(*dtype, shape)
                .map_err(|error| inconsistent("a shape is too large").with_source(error))?;
            if expected.is_some_and(|expected| expected != bytes) {
                return Err(inconsistent("a shape does not fit its bytes"));
            }
        }
    }
    Ok(())
}

fn storage_to_proto(storage: &Storage) -> proto::Storage {
    let all_raw = storage.codec() == Codec::Raw;
    let codec = |chunk: &Chunk| match chunk.codec {
        Codec::Raw => proto::Codec::Raw.into(),
        Codec::Zstd => proto::Codec::Zstd.into(),
        Codec::ShuffleZstd(Width::Two) => proto::Codec::Shuffle2Zstd.into(),
        Codec::ShuffleZstd(Width::Four) => proto::Codec::Shuffle4Zstd.into(),
        Codec::ShuffleZstd(Width::Eight) => proto::Codec::Shuffle8Zstd.into(),
    };
    proto::Storage {
        bytes: storage.bytes,
        chunk_bytes: storage.chunk_bytes,
        first_record: storage.first_record,
        chunks_per_record: if storage.chunks_per_record == 1 { 0 } else { storage.chunks_per_record },
        offset: storage.offset,
        crc32: storage.chunks.iter().map(|chunk| chunk.crc32).collect(),
        codec: if all_raw { Vec::new() } else { storage.chunks.iter().map(codec).collect() },
        stored_bytes: if all_raw {
            Vec::new()
        } else {
            storage.chunks.iter().map(|chunk| chunk.stored_bytes).collect()
        },
    }
}

fn storage_from_proto(proto: proto::Storage) -> Result<Storage> {
    let wrong = || inconsistent("a storage's chunks do not add up");
    let count = proto.crc32.len();
    let all_raw = proto.codec.is_empty() && proto.stored_bytes.is_empty();
    if !all_raw && (proto.codec.len() != count || proto.stored_bytes.len() != count) {
        return Err(wrong());
    }
    let codec = |number: Option<&i32>| {
        let number = number.copied().unwrap_or_default();
        match proto::Codec::try_from(number) {
            Ok(proto::Codec::Raw) => Ok(Codec::Raw),
            Ok(proto::Codec::Zstd) => Ok(Codec::Zstd),
            Ok(proto::Codec::Shuffle2Zstd) => Ok(Codec::ShuffleZstd(Width::Two)),
            Ok(proto::Codec::Shuffle4Zstd) => Ok(Codec::ShuffleZstd(Width::Four)),
            Ok(proto::Codec::Shuffle8Zstd) => Ok(Codec::ShuffleZstd(Width::Eight)),
            Err(_) => Err(Error::unsupported(format!(
                "checkpoint uses a codec that this version does not know; use a newer one number=`{number}`"
            ))),
        }
    };
    let mut left = proto.bytes;
    let chunks = proto.crc32.iter().enumerate().map(|(index, &crc32)| {
        let raw = left.min(proto.chunk_bytes);
        left -= raw;
        Ok(Chunk {
            crc32,
            codec: codec(proto.codec.get(index))?,
            stored_bytes: proto.stored_bytes.get(index).copied().unwrap_or(raw),
        })
    });
    let storage = Storage {
        bytes: proto.bytes,
        chunk_bytes: proto.chunk_bytes,
        first_record: proto.first_record,
        chunks_per_record: proto.chunks_per_record.max(1),
        offset: proto.offset,
        chunks: chunks.collect::<Result<_>>()?,
    };
    storage.check().ok_or_else(wrong)?;
    Ok(storage)
}

fn metadata_to_proto((key, value): (&String, &String)) -> proto::Metadata {
    proto::Metadata { key: key.clone(), value: value.clone() }
}

fn blob_to_proto(blob: &BlobEntry) -> proto::Blob {
    let kind = match &blob.kind {
        BlobKind::Tensor { dtype, shape } => proto::blob::Kind::Tensor(proto::Tensor {
            dtype: dtype_to_proto(*dtype).into(),
            shape: shape.clone(),
        }),
        BlobKind::Bytes { type_name } => {
            proto::blob::Kind::Bytes(proto::Bytes { type_name: type_name.clone() })
        }
    };
    proto::Blob {
        name: blob.name.clone(),
        // A save has at most one storage a blob and refuses more than fit.
        storage: u32::try_from(blob.storage).unwrap_or(u32::MAX),
        kind: Some(kind),
    }
}

fn blob_from_proto(proto: proto::Blob) -> Result<BlobEntry> {
    let kind = match proto.kind {
        Some(proto::blob::Kind::Tensor(tensor)) => {
            BlobKind::Tensor { dtype: dtype_from_proto(tensor.dtype)?, shape: tensor.shape }
        }
        Some(proto::blob::Kind::Bytes(bytes)) => BlobKind::Bytes { type_name: bytes.type_name },
        None => return Err(inconsistent("a blob has no kind")),
    };
    Ok(BlobEntry { name: proto.name, storage: proto.storage as usize, kind })
}

macro_rules! dtype_numbers {
    ($($dtype:ident)*) => {
        fn dtype_to_proto(dtype: DType) -> proto::DType {
            match dtype { $(DType::$dtype => proto::DType::$dtype,)* }
        }

        fn dtype_from_proto(number: i32) -> Result<DType> {
            match proto::DType::try_from(number) {
                $(Ok(proto::DType::$dtype) => Ok(DType::$dtype),)*
                Ok(proto::DType::DtypeUnspecified) => Err(inconsistent("a tensor has no dtype")),
                Err(_) => Err(Error::unsupported(format!(
                    "checkpoint uses a dtype that this version does not know number=`{number}`"
                ))),
            }
        }
    };
}

dtype_numbers! {
    Bool U8 U16 U32 U64 I8 I16 I32 I64 F16 Bf16 F32 F64 Complex64 Complex128
    F8E4m3 F8E5m2 F8E8m0 F8E4m3fnuz F8E5m2fnuz String
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn manifest() -> Manifest {
        let chunk = |crc32| Chunk { crc32, codec: Codec::Raw, stored_bytes: 4 };
        Manifest {
            id: [7; 16],
            node: "trainer:0".to_owned(),
            epoch: 3,
            created_unix_ms: 1_700_000_000_000,
            writer: "ckpt 0".to_owned(),
            metadata: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
            storages: vec![
                Storage {
                    bytes: 8,
                    chunk_bytes: 4,
                    first_record: 0,
                    chunks_per_record: 1,
                    offset: 0,
                    chunks: vec![chunk(1), chunk(2)],
                },
                Storage {
                    bytes: 4,
                    chunk_bytes: 9,
                    first_record: 2,
                    chunks_per_record: 1,
                    offset: 64,
                    chunks: vec![Chunk { crc32: 3, codec: Codec::Zstd, stored_bytes: 2 }],
                },
            ],
            blobs: vec![
                BlobEntry {
                    name: "a".to_owned(),
                    storage: 0,
                    kind: BlobKind::Tensor { dtype: DType::F32, shape: vec![2] },
                },
                BlobEntry {
                    name: "b".to_owned(),
                    storage: 1,
                    kind: BlobKind::Bytes { type_name: "t".to_owned() },
                },
            ],
        }
    }

    /// The stored form is fixed: a change here is a new version of the format.
    #[test]
    fn golden() {
        let body = concat!(
            "0a10",
            "07070707070707070707070707070707",
            "1209",
            "747261696e65723a30",
            "1803",
            "2080d095ffbc31",
            "2a06",
            "636b70742030",
            "320e",
            "0808",
            "1004",
            "3208",
            "0100000002000000",
            "3214",
            "0804",
            "1009",
            "1802",
            "2840",
            "3204",
            "03000000",
            "3a01",
            "01",
            "4201",
            "02",
            "3a0a",
            "0a0161",
            "1a05",
            "080c",
            "1201",
            "02",
            "3a0a",
            "0a0162",
            "1001",
            "2203",
            "0a0174",
            "4206",
            "0a016b",
            "120176"
        );
        let record: String = manifest().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let (header, found) = record.split_at(48);
        assert_eq!(found, body);
        assert_eq!(&header[..40], concat!("434b50544d414e49", "01000000", "7400000000000000"));
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Manifest::decode(&manifest().encode()).unwrap(), manifest());
    }

    /// The stored numbers are fixed. Those of codecs to come are no damage.
    #[test]
    fn codecs_have_their_numbers() {
        let with = |codec| {
            let mut manifest = manifest();
            manifest.storages[1].chunks[0].codec = codec;
            manifest
        };
        let widths = [Width::Two, Width::Four, Width::Eight].map(Codec::ShuffleZstd);
        for (number, codec) in (1..).zip([Codec::Zstd].into_iter().chain(widths)) {
            let mut proto = with(codec).to_proto();
            assert_eq!(proto.storages[1].codec, [number]);
            assert_eq!(Manifest::decode(&with(codec).encode()).unwrap(), with(codec));
            for unknown in [-1, 5, i32::MAX] {
                proto.storages[1].codec = vec![unknown];
                let error = Manifest::from_proto(proto.clone()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
            let mut not_smaller = with(codec);
            not_smaller.storages[1].chunks[0].stored_bytes = 4;
            assert_eq!(Manifest::decode(&not_smaller.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn chunks_are_located() {
        let mut storage = manifest().storages.swap_remove(0);
        let places = |storage: &Storage| -> Vec<(u32, Range<u64>, Range<u64>)> {
            storage.located().map(|located| (located.record, located.stored, located.raw)).collect()
        };
        assert_eq!(places(&storage), [(0, 0..4, 0..4), (1, 0..4, 4..8)]);
        storage.chunks_per_record = 2;
        storage.offset = 10;
        assert_eq!(places(&storage), [(0, 10..14, 0..4), (0, 14..18, 4..8)]);
    }

    #[test]
    fn an_inconsistent_manifest_is_corrupt() {
        let changes: [fn(&mut Manifest); 13] = [
            |m| m.blobs[0].storage = 2,
            |m| m.blobs.swap(0, 1),
            |m| m.blobs[1].name = "a".to_owned(),
            |m| m.blobs[1].name = "b".repeat(MAX_NAME_LEN + 1),
            |m| m.blobs[0].kind = BlobKind::Tensor { dtype: DType::F32, shape: vec![3] },
            |m| m.blobs[0].kind = BlobKind::Tensor { dtype: DType::F32, shape: vec![u64::MAX, 2] },
            |m| m.storages[0].bytes = 9,
            |m| m.storages[0].chunk_bytes = 0,
            |m| m.storages[0].chunk_bytes = MAX_CHUNK_BYTES + 1,
            |m| m.storages[0].first_record = u32::MAX,
            |m| m.storages[1].offset = u64::MAX,
            |m| m.storages[1].chunks[0].stored_bytes = 4,
            |m| {
                m.storages[1].first_record = 1;
                m.storages[1].offset = 3;
            },
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut manifest = manifest();
            change(&mut manifest);
            let error = Manifest::decode(&manifest.encode()).expect_err(&format!("change {index}"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "change {index}: {error}");
        }
    }

    #[test]
    fn one_from_the_future_says_so() {
        let mut record = manifest().encode();
        record[8] = 2;
        assert_eq!(Manifest::decode(&record).unwrap_err().kind(), ErrorKind::Corrupt, "a flip is damage");
        let (version, len) = ([2, 0, 0, 0], record[12..20].try_into().unwrap());
        let crc32 = envelope_crc32(version, len, &record[24..]);
        record[20..24].copy_from_slice(&crc32.to_le_bytes());
        assert_eq!(Manifest::decode(&record).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
