//! What a save in the caffe2 layout may choose: Caffe2's `SerializationOptions` and the flags of its serializers.

use regex::Regex;

use crate::error::{Error, Result};
use crate::format::caffe2::encode::{FloatFormat, Holders};

/// Elements of a chunk unless told otherwise: the flag `caffe2_tensor_chunk_size`.
const DEFAULT_CHUNK_ELEMENTS: u64 = 1_000_000;

/// How a save in the caffe2 layout writes tensors. The default is Caffe2's.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    /// For blobs that no entry of `blobs` matches: the argument `chunk_size` of Save.
    pub chunk_size: ChunkSize,
    /// By name; of those that match the first counts, alone. The argument `options` of Save.
    pub blobs: Vec<BlobOptions>,
    /// Write bools and integers of at most 16 bits as bytes and not as varints: the flag
    /// `caffe2_serialize_using_bytes_as_holder`. Negative ones then take one or two bytes instead of ten.
    pub bytes_as_holder: bool,
    /// The same for `f16`: the flag `caffe2_serialize_fp16_as_bytes`.
    pub fp16_as_bytes: bool,
}

/// How many elements a chunk of a tensor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkSize {
    /// 1,000,000.
    #[default]
    Default,
    /// All: one chunk. Of at most 2 GiB, since no message of Caffe2 can be longer.
    Whole,
    /// So many; 0 counts as the default, as in Caffe2's `SerializationOptions`.
    Elements(u64),
}

/// Options of the blobs whose name a pattern matches: Caffe2's `BlobSerializationOptions`.
#[derive(Clone, Debug)]
pub struct BlobOptions {
    pattern: Regex,
    /// The chunks of these blobs.
    pub chunk_size: ChunkSize,
    /// How `f32`s of these blobs are written.
    pub float_format: FloatFormat,
}

impl BlobOptions {
    /// For blobs whose whole name the regular expression matches; an empty one matches all. Fails with `InvalidInput` if it does
    /// not parse.
    pub fn new(blob_name_regex: &str) -> Result<Self> {
        let whole =
            if blob_name_regex.is_empty() { String::new() } else { format!("^(?:{blob_name_regex})$") };
        let pattern = Regex::new(&whole).map_err(|error| {
            let message =
                format!("regular expression for blob names does not parse regex=`{blob_name_regex}`");
            Error::invalid(message).with_source(error)
        })?;
        Ok(Self { pattern, chunk_size: ChunkSize::Default, float_format: FloatFormat::Float })
    }

    /// With chunks of this size.
    #[must_use]
    pub fn chunk_size(mut self, chunk_size: ChunkSize) -> Self {
        self.chunk_size = chunk_size;
        self
    }

    /// With `f32`s in this format.
    #[must_use]
    pub fn float_format(mut self, float_format: FloatFormat) -> Self {
        self.float_format = float_format;
        self
    }
}

impl ChunkSize {
    /// What the argument `chunk_size` of Save means: -1 the default, 0 no chunks, else elements.
    pub fn from_argument(chunk_size: i64) -> Result<Self> {
        match chunk_size {
            -1 => Ok(Self::Default),
            0 => Ok(Self::Whole),
            elements => u64::try_from(elements)
                .map(Self::Elements)
                .map_err(|_| Error::invalid(format!("chunk size is less than -1 chunk_size=`{chunk_size}`"))),
        }
    }

    /// Elements of a chunk of a tensor of `count`; at least 1.
    pub(super) fn elements(self, count: u64) -> u64 {
        let elements = match self {
            Self::Default | Self::Elements(0) => DEFAULT_CHUNK_ELEMENTS,
            Self::Whole => count,
            Self::Elements(elements) => elements,
        };
        elements.max(1)
    }
}

impl SaveOptions {
    /// What holds for a blob.
    pub(super) fn of(&self, name: &str) -> (ChunkSize, Holders) {
        let found = self.blobs.iter().find(|options| options.pattern.is_match(name));
        let (chunk_size, float) = match found {
            Some(options) => (options.chunk_size, options.float_format),
            None => (self.chunk_size, FloatFormat::Float),
        };
        let Self { bytes_as_holder, fp16_as_bytes, .. } = *self;
        (chunk_size, Holders { float, bytes_as_holder, fp16_as_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_whole_match_counts_alone() {
        let options = SaveOptions {
            chunk_size: ChunkSize::Elements(40),
            blobs: vec![
                BlobOptions::new("int16_data").unwrap().chunk_size(ChunkSize::Elements(10)),
                BlobOptions::new(".*16_data").unwrap().float_format(FloatFormat::Bfloat16),
                BlobOptions::new("float16_data").unwrap().chunk_size(ChunkSize::Elements(30)),
            ],
            ..SaveOptions::default()
        };
        assert_eq!(options.of("int16_data").0, ChunkSize::Elements(10));
        let (chunk_size, holders) = options.of("float16_data");
        assert_eq!((chunk_size, holders.float), (ChunkSize::Default, FloatFormat::Bfloat16));
        assert_eq!(options.of("int64_data").0, ChunkSize::Elements(40));
        assert_eq!(options.of("x_int16_data_x").0, ChunkSize::Elements(40), "not a whole match");
        assert!(BlobOptions::new("").unwrap().pattern.is_match("anything"));
        assert!(BlobOptions::new("(").is_err());
    }

    #[test]
    fn the_argument_of_save() {
        assert_eq!(ChunkSize::from_argument(-1).unwrap(), ChunkSize::Default);
        assert_eq!(ChunkSize::from_argument(0).unwrap(), ChunkSize::Whole);
        assert_eq!(ChunkSize::from_argument(5).unwrap(), ChunkSize::Elements(5));
        assert!(ChunkSize::from_argument(-2).is_err());
    }
}
