//! How a chunk is stored: raw or as one zstd frame, with a checksum of what is stored.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::error::{Error, Result};

/// How a chunk's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As they are.
    Raw,
    /// One zstd frame with content size and checksum.
    Zstd,
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Zstd => "zstd",
        })
    }
}

/// What to try on every chunk of a save. A chunk that does not get smaller is stored raw all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Store raw.
    #[default]
    None,
    /// Zstd of this level.
    Zstd(i32),
}

impl Compression {
    /// Zstd's own default level.
    pub const DEFAULT_ZSTD_LEVEL: i32 = 3;
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    /// `none`, `zstd` or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self> {
        let levels = zstd::compression_level_range();
        let wrong = || {
            Error::invalid(format!(
                "unknown compression; give none, zstd or zstd:LEVEL with LEVEL from {} to {} compression=`{text}`",
                levels.start(),
                levels.end()
            ))
        };
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "zstd" => Ok(Self::Zstd(Self::DEFAULT_ZSTD_LEVEL)),
            Some(("zstd", level)) => {
                let level = level.parse().map_err(|_| wrong())?;
                if levels.contains(&level) { Ok(Self::Zstd(level)) } else { Err(wrong()) }
            }
            _ => Err(wrong()),
        }
    }
}

/// A chunk as it is stored.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// How.
    pub codec: Codec,
    /// The stored bytes.
    pub bytes: Bytes,
    /// Of the stored bytes.
    pub crc32: u32,
}

thread_local! {
    // A zstd context is some hundred kilobytes: one a thread is enough. Both are thrown away if they fail.
    static COMPRESSOR: RefCell<Option<(i32, zstd::bulk::Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Encodes a chunk. Raw ones share the memory of `chunk`.
pub fn encode(chunk: Bytes, compression: Compression) -> Result<Encoded> {
    let smaller = match compression {
        Compression::None => None,
        Compression::Zstd(level) => compress(&chunk, level)?,
    };
    let (codec, bytes) = match smaller {
        Some(frame) => (Codec::Zstd, Bytes::from(frame)),
        None => (Codec::Raw, chunk),
    };
    let crc32 = crc32fast::hash(&bytes);
    Ok(Encoded { codec, bytes, crc32 })
}

/// The zstd frame of `chunk`, or `None` if it is not smaller.
fn compress(chunk: &[u8], level: i32) -> Result<Option<Vec<u8>>> {
    let failed = |error| Error::internal("zstd could not compress a chunk").with_source(error);
    COMPRESSOR.with_borrow_mut(|slot| {
        let (_, compressor) = match slot.take() {
            Some(current) if current.0 == level => slot.insert(current),
            _ => {
                let mut compressor = zstd::bulk::Compressor::new(level).map_err(failed)?;
                compressor.include_checksum(true).map_err(failed)?;
                slot.insert((level, compressor))
            }
        };
        let mut frame = compressor.compress(chunk).map_err(failed)?;
        if frame.len() >= chunk.len() {
            return Ok(None);
        }
        // The bound that zstd asked for is larger than the chunk; what waits to be written should not hold that.
        frame.shrink_to_fit();
        Ok(Some(frame))
    })
}

/// Checks the stored bytes of a chunk against their checksum.
pub fn check(stored: &[u8], crc32: u32) -> Result<()> {
    let found = crc32fast::hash(stored);
    if found == crc32 {
        return Ok(());
    }
    Err(Error::corrupt(format!("checksum differs expected=`{crc32:08x}` found=`{found:08x}`")))
}

/// Decodes the stored bytes of a chunk into `raw`, which has exactly the chunk's length. Check them first.
pub fn decode_into(codec: Codec, stored: &[u8], raw: &mut [u8]) -> Result<()> {
    match codec {
        Codec::Raw if stored.len() == raw.len() => raw.copy_from_slice(stored),
        Codec::Raw => return Err(wrong_length(stored.len(), raw.len())),
        Codec::Zstd => {
            let written = DECOMPRESSOR.with_borrow_mut(|slot| {
                let failed = |error| Error::corrupt("zstd frame does not decode").with_source(error);
                let mut decompressor = match slot.take() {
                    Some(decompressor) => decompressor,
                    None => zstd::bulk::Decompressor::new().map_err(failed)?,
                };
                let written = decompressor.decompress_to_buffer(stored, raw).map_err(failed)?;
                *slot = Some(decompressor);
                Ok(written)
            })?;
            if written != raw.len() {
                return Err(wrong_length(written, raw.len()));
            }
        }
    }
    Ok(())
}

/// The raw bytes of a chunk of `len` bytes: shared if it is stored raw.
pub fn decode(codec: Codec, stored: &[u8], len: usize) -> Result<Cow<'_, [u8]>> {
    if codec == Codec::Raw && stored.len() == len {
        return Ok(Cow::Borrowed(stored));
    }
    let mut raw = vec![0; len];
    decode_into(codec, stored, &mut raw)?;
    Ok(Cow::Owned(raw))
}

fn wrong_length(found: usize, expected: usize) -> Error {
    Error::corrupt(format!("chunk has another length expected=`{expected}` found=`{found}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressible_chunks_shrink_and_come_back() {
        let chunk = Bytes::from(vec![7u8; 100_000]);
        let encoded = encode(chunk.clone(), Compression::Zstd(3)).unwrap();
        assert_eq!(encoded.codec, Codec::Zstd);
        assert!(encoded.bytes.len() < 1000);
        check(&encoded.bytes, encoded.crc32).unwrap();
        assert_eq!(decode(Codec::Zstd, &encoded.bytes, chunk.len()).unwrap(), &chunk[..]);
    }

    #[test]
    fn what_does_not_shrink_stays_raw_and_is_not_copied() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state.to_be_bytes()[0]
        })
        .take(10_000)
        .collect();
        for compression in [Compression::None, Compression::Zstd(1)] {
            let chunk = Bytes::from(noise.clone());
            let encoded = encode(chunk.clone(), compression).unwrap();
            assert_eq!(encoded.codec, Codec::Raw);
            assert_eq!(encoded.bytes.as_ptr(), chunk.as_ptr());
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let encoded = encode(Bytes::from(vec![3u8; 300]), Compression::Zstd(1)).unwrap();
        for bit in 0..encoded.bytes.len() * 8 {
            let mut damaged = encoded.bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&damaged, encoded.crc32).is_err());
            // Even unchecked, a damaged frame must not give other bytes or panic: it has a checksum of its own.
            if let Ok(raw) = decode(Codec::Zstd, &damaged, 300) {
                assert_eq!(raw, &[3u8; 300][..], "bit {bit}");
            }
        }
    }

    #[test]
    fn a_frame_of_another_length_is_corrupt() {
        let encoded = encode(Bytes::from(vec![3u8; 300]), Compression::Zstd(1)).unwrap();
        for len in [0, 299, 301, 10_000] {
            assert!(decode(Codec::Zstd, &encoded.bytes, len).is_err(), "{len}");
        }
        assert!(decode(Codec::Raw, b"abc", 4).is_err());
    }

    #[test]
    fn compression_parses_as_it_prints() {
        for compression in [Compression::None, Compression::Zstd(3), Compression::Zstd(-5)] {
            assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression);
        }
        assert_eq!("zstd".parse::<Compression>().unwrap(), Compression::Zstd(3));
        for wrong in ["", "zstd:", "zstd:99", "gzip", "none:1", "zstd:x"] {
            assert!(wrong.parse::<Compression>().is_err(), "{wrong}");
        }
    }
}
