//! How a chunk is stored: raw or as one zstd frame, of its bytes or of its byte planes, with a checksum of what is stored.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use super::shuffle::{Width, shuffle, unshuffle};
use crate::error::{Error, Result};

/// How a chunk's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As they are.
    Raw,
    /// One zstd frame with content size and checksum.
    Zstd,
    /// The same, of the chunk's byte planes: see [`shuffle`](super::shuffle).
    ShuffleZstd(Width),
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Zstd => "zstd",
            Self::ShuffleZstd(_) => "shuffle-zstd",
        })
    }
}

/// What to try on every chunk of a save.
///
/// A chunk is stored as the smallest of: one zstd frame of it; if its numbers have more than one byte, one zstd frame of its byte planes;
/// raw. Which one is decided on samples of it, so what does not compress costs little, and is stored raw: loads of it need no memory
/// besides the tensor's, and it can be mapped. Repetitions that are farther apart than a sample is long are not looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Store raw.
    #[default]
    None,
    /// Zstd of level 1, and only while the store is slower than the save: what compressing takes must be less than what the store needs
    /// for the chunks that wait for it already. So the first chunks, as many as the memory budget holds, may all be raw, and a small save
    /// with them. How much gets smaller depends on the machine; two saves of the same may differ in it.
    Auto,
    /// Zstd of this level. Of weights, level 1 makes fewer bytes than level 3, and sooner.
    Zstd(i32),
}

impl Compression {
    /// The level where none is named.
    pub const DEFAULT_ZSTD_LEVEL: i32 = 1;

    /// The level to try on a chunk, if any. `has_time` says whether the store is so far behind that compressing delays nothing.
    pub fn level(self, has_time: impl FnOnce() -> bool) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Auto => has_time().then_some(AUTO_LEVEL),
            Self::Zstd(level) => Some(level),
        }
    }
}

/// The level of [`Compression::Auto`].
const AUTO_LEVEL: i32 = 1;

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    /// `none`, `auto`, `zstd` or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self> {
        let levels = zstd::compression_level_range();
        let wrong = || {
            Error::invalid(format!(
                "unknown compression; give none, auto, zstd or zstd:LEVEL with LEVEL from {} to {} compression=`{text}`",
                levels.start(),
                levels.end()
            ))
        };
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "auto" => Ok(Self::Auto),
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

/// A chunk is judged by so many samples...
const SAMPLES: usize = 4;

/// ...of so many bytes each, a multiple of every element width.
const SAMPLE_BYTES: usize = 16 << 10;

/// A chunk of at most this many bytes is tried whole: samples would be half of it.
const TRIED_WHOLE: usize = 2 * SAMPLES * SAMPLE_BYTES;

/// Samples that keep more than this many hundredths of their bytes are not worth the time of compressing the chunk, nor that of every load.
const WORTH_PERCENT: usize = 98;

/// A thread keeps no more scratch memory than this: what a chunk of our own writer needs.
const KEPT_SCRATCH: usize = 4 << 20;

thread_local! {
    // A zstd context is some hundred kilobytes: one a thread is enough. Both are thrown away if they fail.
    static COMPRESSOR: RefCell<Option<(i32, zstd::bulk::Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    // Byte planes on their way.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encodes a chunk of numbers of this width (`None`: single bytes) with zstd of this level, if one is given and it gets smaller. Raw ones
/// share the memory of `chunk`.
pub fn encode(chunk: Bytes, width: Option<Width>, level: Option<i32>) -> Result<Encoded> {
    let smaller = match level {
        None => None,
        Some(level) => compress(&chunk, width, level)?,
    };
    let (codec, bytes) = match smaller {
        Some((codec, frame)) => (codec, Bytes::from(frame)),
        None => (Codec::Raw, chunk),
    };
    let crc32 = crc32fast::hash(&bytes);
    Ok(Encoded { codec, bytes, crc32 })
}

/// The smallest frame of `chunk`, or `None` if there is none that is smaller.
fn compress(chunk: &[u8], width: Option<Width>, level: i32) -> Result<Option<(Codec, Vec<u8>)>> {
    let best = if chunk.len() <= TRIED_WHOLE {
        let plain = (Codec::Zstd, frame(chunk, level)?);
        let shuffled = match width {
            Some(width) => Some((Codec::ShuffleZstd(width), shuffled_frame(chunk, width, level)?)),
            None => None,
        };
        shuffled.filter(|(_, frame)| frame.len() < plain.1.len()).unwrap_or(plain)
    } else {
        match judge(chunk, width, level)? {
            Codec::Raw => return Ok(None),
            Codec::Zstd => (Codec::Zstd, frame(chunk, level)?),
            Codec::ShuffleZstd(width) => (Codec::ShuffleZstd(width), shuffled_frame(chunk, width, level)?),
        }
    };
    let (codec, mut frame) = best;
    if frame.len() >= chunk.len() {
        return Ok(None);
    }
    // The bound that zstd asked for is larger than the chunk; what waits to be written should not hold that.
    frame.shrink_to_fit();
    Ok(Some((codec, frame)))
}

/// Which codec makes the least of samples spread over a chunk of more than [`TRIED_WHOLE`] bytes.
fn judge(chunk: &[u8], width: Option<Width>, level: i32) -> Result<Codec> {
    // At multiples of their length, and so at whole elements.
    let stride = (chunk.len() / SAMPLE_BYTES - 1) / (SAMPLES - 1);
    let mut samples = Vec::with_capacity(SAMPLES * SAMPLE_BYTES);
    for sample in chunk.chunks_exact(SAMPLE_BYTES).step_by(stride).take(SAMPLES) {
        samples.extend_from_slice(sample);
    }
    let mut best = (samples.len() * WORTH_PERCENT / 100, Codec::Raw);
    let plain = frame(&samples, level)?.len();
    if plain < best.0 {
        best = (plain, Codec::Zstd);
    }
    if let Some(width) = width {
        let shuffled = with_scratch(samples.len(), |planes| {
            shuffle(width, &samples, planes)?;
            // Each plane by itself: in a chunk it fills whole blocks of zstd's, with statistics of their own; here one block would hold all.
            let mut planes = planes.chunks(samples.len() / width.bytes());
            planes.try_fold(0, |sum, plane| Ok(sum + frame(plane, level)?.len()))
        })?;
        if shuffled < best.0 {
            best = (shuffled, Codec::ShuffleZstd(width));
        }
    }
    Ok(best.1)
}

/// One frame over all planes. A block of zstd's (128 KiB) that holds the end of a plane and the beginning of the next costs a little, so
/// small chunks of weights keep 2 to 11 % that a block for each plane would save; chunks of 4 MiB, which have nearly all bytes, lose nothing.
fn shuffled_frame(chunk: &[u8], width: Width, level: i32) -> Result<Vec<u8>> {
    with_scratch(chunk.len(), |planes| {
        shuffle(width, chunk, planes)?;
        frame(planes, level)
    })
}

/// The zstd frame of some bytes.
fn frame(bytes: &[u8], level: i32) -> Result<Vec<u8>> {
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
        compressor.compress(bytes).map_err(failed)
    })
}

/// Lends this thread's scratch memory: `len` bytes of any content.
fn with_scratch<T>(len: usize, work: impl FnOnce(&mut [u8]) -> Result<T>) -> Result<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len {
            // Not both at a time.
            *scratch = Vec::new();
            *scratch = vec![0; len];
        }
        let lent = scratch.get_mut(..len).ok_or_else(|| Error::internal("scratch memory is too short"))?;
        let outcome = work(lent);
        if scratch.len() > KEPT_SCRATCH {
            *scratch = Vec::new();
        }
        outcome
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
        Codec::Zstd => decompress(stored, raw)?,
        Codec::ShuffleZstd(width) => with_scratch(raw.len(), |planes| {
            decompress(stored, planes)?;
            unshuffle(width, planes, raw)
        })?,
    }
    Ok(())
}

/// Decodes a frame that must fill `out`.
fn decompress(stored: &[u8], out: &mut [u8]) -> Result<()> {
    let written = DECOMPRESSOR.with_borrow_mut(|slot| {
        let failed = |error| Error::corrupt("zstd frame does not decode").with_source(error);
        let mut decompressor = match slot.take() {
            Some(decompressor) => decompressor,
            None => zstd::bulk::Decompressor::new().map_err(failed)?,
        };
        let written = decompressor.decompress_to_buffer(stored, out).map_err(failed)?;
        *slot = Some(decompressor);
        Ok(written)
    })?;
    if written == out.len() { Ok(()) } else { Err(wrong_length(written, out.len())) }
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
    use crate::blob::DType;
    use crate::error::ErrorKind;

    const WIDTHS: [Option<Width>; 4] = [None, Some(Width::Two), Some(Width::Four), Some(Width::Eight)];

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state.to_be_bytes()[0]
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    /// Numbers of this width with few different highest bytes, as the exponents of weights are, and noise below.
    fn weights(width: usize, len: usize) -> Vec<u8> {
        let mut bytes = noise(len);
        for element in bytes.chunks_exact_mut(width) {
            element[width - 1] = 0x3c | (element[0] & 3);
        }
        bytes
    }

    #[test]
    fn compressible_chunks_shrink_and_come_back() {
        let chunk = Bytes::from(vec![7u8; 100_000]);
        let encoded = encode(chunk.clone(), None, Some(3)).unwrap();
        assert_eq!(encoded.codec, Codec::Zstd);
        assert!(encoded.bytes.len() < 1000);
        check(&encoded.bytes, encoded.crc32).unwrap();
        assert_eq!(decode(Codec::Zstd, &encoded.bytes, chunk.len()).unwrap(), &chunk[..]);
    }

    #[test]
    fn weights_are_stored_as_planes_and_come_back() {
        for width in [Width::Two, Width::Four, Width::Eight] {
            for len in [700_001, 2_097_155, 4 << 20] {
                let chunk = Bytes::from(weights(width.bytes(), len));
                let encoded = encode(chunk.clone(), Some(width), Some(1)).unwrap();
                assert_eq!(encoded.codec, Codec::ShuffleZstd(width), "{len}");
                // Six of the highest byte's eight bits are worth nothing. Of the short one, blocks of zstd hold two planes.
                let eighths = if len < 1 << 20 { 2 } else { 5 };
                let most = len - len / width.bytes() * eighths / 8;
                assert!(encoded.bytes.len() < most, "{width:?} {len}: {}", encoded.bytes.len());
                check(&encoded.bytes, encoded.crc32).unwrap();
                assert!(decode(encoded.codec, &encoded.bytes, len).unwrap() == &chunk[..], "{width:?} {len}");
            }
        }
    }

    #[test]
    fn what_repeats_whole_elements_is_not_shuffled() {
        let text = b"an element is worth what its bytes say together. ".repeat(10_000);
        for len in [1000, text.len()] {
            let encoded = encode(Bytes::from(text[..len].to_vec()), Some(Width::Four), Some(3)).unwrap();
            assert_eq!(encoded.codec, Codec::Zstd, "{len}");
        }
    }

    #[test]
    fn every_length_and_bit_pattern_comes_back() {
        let nans = [0x7f80_0001u32, 0xffff_ffff, 0x7fc0_1234, 0xff80_0001, 0x8000_0000, 1];
        let bytes: Vec<u8> = nans.iter().cycle().take(60_000).flat_map(|bits| bits.to_le_bytes()).collect();
        for (len, width) in
            (0..40).chain([131_071, 131_077, 239_999]).flat_map(|len| WIDTHS.map(|width| (len, width)))
        {
            let chunk = Bytes::from(bytes[..len].to_vec());
            for level in [None, Some(-3), Some(1), Some(9)] {
                let encoded = encode(chunk.clone(), width, level).unwrap();
                assert!(encoded.codec == Codec::Raw || encoded.bytes.len() < len);
                assert!(decode(encoded.codec, &encoded.bytes, len).unwrap() == &chunk[..], "{len} {width:?}");
            }
        }
    }

    #[test]
    fn what_does_not_shrink_stays_raw_and_is_not_copied() {
        for (len, width) in [10_000, 1 << 20].into_iter().flat_map(|len| WIDTHS.map(|width| (len, width))) {
            for level in [None, Some(1)] {
                let chunk = Bytes::from(noise(len));
                let encoded = encode(chunk.clone(), width, level).unwrap();
                assert_eq!(encoded.codec, Codec::Raw);
                assert_eq!(encoded.bytes.as_ptr(), chunk.as_ptr());
            }
        }
    }

    #[test]
    fn what_shrinks_by_less_than_is_worth_it_stays_raw() {
        let mut chunk = noise(1 << 20);
        // One byte in a hundred.
        chunk.iter_mut().step_by(100).for_each(|byte| *byte = 0);
        let encoded = encode(Bytes::from(chunk), Some(Width::Four), Some(3)).unwrap();
        assert_eq!(encoded.codec, Codec::Raw);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let planes = |width: Width| {
            let mut chunk = noise(601);
            chunk.iter_mut().skip(width.bytes() - 1).step_by(width.bytes()).for_each(|byte| *byte = 0x3c);
            chunk
        };
        let chunks = WIDTHS.map(|width| (width, width.map_or(vec![3u8; 300], planes)));
        for (width, chunk) in chunks {
            let encoded = encode(Bytes::from(chunk.clone()), width, Some(1)).unwrap();
            assert_eq!(encoded.codec, width.map_or(Codec::Zstd, Codec::ShuffleZstd));
            for bit in 0..encoded.bytes.len() * 8 {
                let mut damaged = encoded.bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(check(&damaged, encoded.crc32).is_err());
                // Even unchecked, a damaged frame must not give other bytes or panic: it has a checksum of its own.
                if let Ok(raw) = decode(encoded.codec, &damaged, chunk.len()) {
                    assert_eq!(raw, &chunk[..], "{width:?} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_frame_of_another_length_is_corrupt() {
        let encoded = encode(Bytes::from(vec![3u8; 300]), None, Some(1)).unwrap();
        let codecs = WIDTHS.map(|width| width.map_or(Codec::Zstd, Codec::ShuffleZstd));
        for (len, codec) in [0, 299, 301, 10_000].into_iter().flat_map(|len| codecs.map(|codec| (len, codec)))
        {
            let error = decode(codec, &encoded.bytes, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec} {len}");
            assert!(decode(codec, &encoded.bytes[..encoded.bytes.len() - 1], 300).is_err(), "{codec}");
            assert!(decode(codec, b"", 300).is_err(), "{codec}");
        }
        assert!(decode(Codec::Raw, b"abc", 4).is_err());
    }

    #[test]
    fn scratch_memory_is_not_kept_beyond_a_chunk_of_ours() {
        let len = KEPT_SCRATCH + 8;
        let frame = shuffled_frame(&vec![0; len], Width::Eight, 1).unwrap();
        decode(Codec::ShuffleZstd(Width::Eight), &frame, len).unwrap();
        SCRATCH.with_borrow(|scratch| assert_eq!(scratch.capacity(), 0));
        with_scratch(1000, |_| Ok(())).unwrap();
        SCRATCH.with_borrow(|scratch| assert_eq!(scratch.capacity(), 1000));
    }

    #[test]
    fn auto_compresses_only_when_there_is_time() {
        assert_eq!(Compression::Auto.level(|| true), Some(1));
        assert_eq!(Compression::Auto.level(|| false), None);
        assert_eq!(Compression::None.level(|| true), None);
        assert_eq!(Compression::Zstd(7).level(|| false), Some(7));
    }

    #[test]
    fn compression_parses_as_it_prints() {
        for compression in [Compression::None, Compression::Auto, Compression::Zstd(3), Compression::Zstd(-5)]
        {
            assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression);
        }
        assert_eq!("zstd".parse::<Compression>().unwrap(), Compression::Zstd(1));
        for wrong in ["", "zstd:", "zstd:99", "gzip", "none:1", "auto:1", "zstd:x"] {
            let error = wrong.parse::<Compression>().unwrap_err().to_string();
            assert!(error.contains("none, auto, zstd or zstd:LEVEL"), "{error}");
        }
    }

    /// `CKPT_SAFETENSORS=model.safetensors cargo test --release -p ckpt-engine of_a_real_model -- --ignored --nocapture`
    #[test]
    #[ignore = "measures; needs --release and the file that CKPT_SAFETENSORS names"]
    fn stored_bytes_of_a_real_model() {
        let file = std::fs::read(std::env::var("CKPT_SAFETENSORS").unwrap()).unwrap();
        let (header, body) = file[8..].split_at(u64::from_le_bytes(file[..8].try_into().unwrap()) as usize);
        let header: serde_json::Value = serde_json::from_slice(header).unwrap();
        let mut chunks = Vec::new();
        for (_, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
            let [start, end] = [0, 1].map(|at| tensor["data_offsets"][at].as_u64().unwrap() as usize);
            let dtype: DType = tensor["dtype"].as_str().unwrap().to_lowercase().parse().unwrap();
            chunks.extend(
                body[start..end]
                    .chunks(4 << 20)
                    .map(|chunk| (Bytes::copy_from_slice(chunk), Width::of(dtype))),
            );
        }
        let gib = |started: std::time::Instant| {
            body.len() as f64 / started.elapsed().as_secs_f64() / f64::from(1 << 30)
        };
        println!("{} bytes in {} chunks", body.len(), chunks.len());
        for (shuffled, level) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let started = std::time::Instant::now();
            let encode = |(chunk, width): &(Bytes, Option<Width>)| {
                encode(chunk.clone(), width.filter(|_| shuffled), Some(level)).unwrap()
            };
            let encoded: Vec<Encoded> = chunks.iter().map(encode).collect();
            let speed = gib(started);
            let started = std::time::Instant::now();
            for (encoded, (chunk, _)) in encoded.iter().zip(&chunks) {
                assert!(decode(encoded.codec, &encoded.bytes, chunk.len()).unwrap() == &chunk[..]);
            }
            let stored: usize = encoded.iter().map(|encoded| encoded.bytes.len()).sum();
            let ratio = stored as f64 / body.len() as f64;
            println!(
                "level {level} shuffled {shuffled}: {stored} {ratio:.4} to {speed:.2} from {:.2} GiB/s",
                gib(started)
            );
        }
    }
}
