//! What a record is: a piece of a tensor, or an opaque blob.

use std::ops::Range;

use super::proto::{DataType, TensorProto};
use super::wire::{Form, ReadAt, Run, Skeleton, field};
use super::{STRING, TENSOR, keys};
use crate::blob::{DType, element_count};
use crate::error::{Error, Result};

/// A record, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The blob that it belongs to.
    pub blob: String,
    /// What it holds of it.
    pub piece: Piece,
}

/// What a record holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Elements of a tensor.
    Tensor(TensorPiece),
    /// A blob of another type.
    Opaque(Opaque),
}

/// Elements of a tensor, and where they lie in the record.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPiece {
    /// Of the whole tensor.
    pub dtype: DType,
    /// Of the whole tensor.
    pub shape: Vec<u64>,
    /// Which elements, in row-major order.
    pub elements: Range<u64>,
    /// How they are written.
    pub encoding: Encoding,
    /// Where they lie.
    pub runs: Vec<Run>,
}

/// How the elements of a piece are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Little-endian, as in memory.
    Plain,
    /// The upper halves of `f32`s.
    Bf16,
    /// Varints.
    Varint,
    /// Byte strings with their lengths.
    Strings,
}

/// A blob that is no tensor, or a chunk of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Opaque {
    /// `BlobProto.type`.
    pub type_name: String,
    /// Its bytes: of the content, or of the whole record.
    pub data: Range<u64>,
    /// Number and count, of a type that splits itself.
    pub chunk: Option<(u32, u32)>,
}

impl Record {
    /// Reads the headers of a record.
    pub fn parse(key: &str, len: u64, read: &mut ReadAt<'_>) -> Result<Self> {
        let Skeleton { blob, runs, content, has_qtensor, is_plain } = Skeleton::walk(len, read)?;
        let type_name = blob.r#type.unwrap_or_default();
        let name = keys::blob_name(key, blob.name.as_deref().unwrap_or_default()).to_owned();
        if type_name.is_empty() {
            return Err(Error::corrupt("record has no type"));
        }
        let tensor = blob.tensor.as_ref();
        let is_typed = tensor.is_none_or(|tensor| tensor.data_type != Some(DataType::Undefined as i32));
        let is_empty = tensor.is_some_and(|tensor| tensor.dims == [0]);
        if type_name == TENSOR && (is_typed || is_empty) {
            let tensor = tensor.ok_or_else(|| Error::corrupt("record of a tensor has no tensor"))?;
            return Ok(Self { blob: name, piece: Piece::Tensor(TensorPiece::new(tensor, runs)?) });
        }
        let chunk = match (blob.content_chunk_id, blob.content_num_chunks) {
            (None, None) => None,
            (id, Some(count)) => {
                let parts = u32::try_from(id.unwrap_or(0)).ok().zip(u32::try_from(count).ok());
                let parts = parts.filter(|(id, count)| id < count);
                Some(parts.ok_or_else(|| Error::corrupt("record has a chunk number outside its count"))?)
            }
            (Some(_), None) => return Err(Error::corrupt("record has a chunk number without a count")),
        };
        // Keys of chunks belong to tensors and to types that split themselves: a tensor whose type was damaged must not pass for
        // something else.
        if chunk.is_none() && type_name != TENSOR && keys::is_chunk_key(key) && name != key {
            return Err(Error::corrupt(format!(
                "record has the key of a tensor's chunk and another type type=`{type_name}`"
            )));
        }
        let data = match (chunk, content) {
            (Some(_), content) => content.unwrap_or(0..0),
            (None, Some(content)) if is_plain && (type_name == STRING || !is_known(&type_name)) => content,
            (None, None) if is_plain && type_name == STRING => 0..0,
            _ => 0..len,
        };
        if type_name == STRING && (has_qtensor || tensor.is_some()) {
            return Err(Error::corrupt("record of a string holds a tensor"));
        }
        Ok(Self { blob: name, piece: Piece::Opaque(Opaque { type_name, data, chunk }) })
    }
}

/// Whether Caffe2 itself has blobs of this type: then the bytes of such a blob are its whole `BlobProto`, since what they are is
/// spread over its fields.
pub fn is_known(type_name: &str) -> bool {
    const KNOWN: [&str; 10] = [
        TENSOR,
        "std::unique_ptr<Counter<int64_t>>",
        "std::unique_ptr<std::mutex>",
        "std::unique_ptr<caffe2::IndexBase>",
        "std::unique_ptr<TreeCursor>",
        "std::shared_ptr<std::vector<TensorCPU>>",
        "Int8TensorCPU",
        "QTensor",
        "DBReader",
        "torch::jit::Module",
    ];
    KNOWN.contains(&type_name) || type_name.starts_with("(std::unordered_map<")
}

impl TensorPiece {
    pub(super) fn new(tensor: &TensorProto, runs: Vec<Run>) -> Result<Self> {
        let shape = tensor.dims.iter().map(|&dim| u64::try_from(dim).ok()).collect::<Option<Vec<_>>>();
        let shape = shape.ok_or_else(|| Error::corrupt("tensor has a negative dimension"))?;
        let count = element_count(&shape).map_err(|error| error.with_kind(crate::ErrorKind::Corrupt))?;
        let elements = match &tensor.segment {
            None => 0..count,
            Some(segment) => {
                let range = u64::try_from(segment.begin).ok().zip(u64::try_from(segment.end).ok());
                let range = range.filter(|&(begin, end)| begin <= end && end <= count);
                let (begin, end) = range.ok_or_else(|| {
                    Error::corrupt(format!(
                        "segment is outside the tensor segment=`{}..{}` elements=`{count}`",
                        segment.begin, segment.end
                    ))
                })?;
                begin..end
            }
        };
        let has_bytes = runs.iter().any(|run| run.field == field::BYTES);
        let (dtype, encoding, holder) = kind_of(tensor, has_bytes)?;
        let mut runs: Vec<Run> = runs.into_iter().filter(|run| run.field == holder).collect();
        let wanted = elements.end - elements.start;
        if tensor.data_type == Some(DataType::Uint8 as i32) && encoding == Encoding::Plain {
            // Caffe2 allows padding after these, and only these.
            cut_padding(&mut runs, wanted);
        }
        let piece = Self { dtype, shape, elements, encoding, runs };
        piece.check_count(wanted)?;
        Ok(piece)
    }

    /// The bytes of an element as it is written, where all are alike.
    pub fn encoded_size(&self) -> Option<u64> {
        match self.encoding {
            Encoding::Plain => self.dtype.size().map(|size| size as u64),
            Encoding::Bf16 => Some(2),
            Encoding::Varint | Encoding::Strings => None,
        }
    }

    fn check_count(&self, wanted: u64) -> Result<()> {
        let bytes: u64 = self.runs.iter().map(|run| run.bytes).sum();
        let fits = match (self.encoding, self.encoded_size()) {
            (_, Some(size)) => wanted.checked_mul(size) == Some(bytes),
            (Encoding::Strings, _) => self.runs.iter().map(|run| run.count).sum::<u64>() == wanted,
            // How many there are is found out when they are read; each takes a byte at least.
            _ => {
                let packed = |run: &Run| if run.form == Form::Packed { run.bytes } else { run.count };
                self.runs.iter().map(packed).sum::<u64>() >= wanted && (wanted > 0 || bytes == 0)
            }
        };
        if fits {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "tensor holds another number of values than its segment says dtype=`{}` elements=`{wanted}` bytes=`{bytes}`",
            self.dtype
        )))
    }
}

/// The dtype of a tensor, how its elements are written, and in which field.
fn kind_of(tensor: &TensorProto, has_bytes: bool) -> Result<(DType, Encoding, u32)> {
    let number = tensor.data_type.ok_or_else(|| Error::corrupt("tensor has no data type"))?;
    let unknown = || Error::corrupt(format!("tensor has an unrecognized data type data_type=`{number}`"));
    let data_type = DataType::try_from(number).map_err(|_| unknown())?;
    let small = |dtype| match has_bytes {
        true => (dtype, Encoding::Plain, field::BYTES),
        false => (dtype, Encoding::Varint, field::INT32),
    };
    let kind = match data_type {
        // Without elements, which is how an untyped tensor was written.
        DataType::Undefined => (DType::F32, Encoding::Plain, field::FLOAT),
        DataType::Float if tensor.data_format == Some(1) => (DType::F32, Encoding::Bf16, field::RAW),
        DataType::Float => (DType::F32, Encoding::Plain, field::FLOAT),
        DataType::Double => (DType::F64, Encoding::Plain, field::DOUBLE),
        DataType::Int32 => (DType::I32, Encoding::Varint, field::INT32),
        DataType::Int64 => (DType::I64, Encoding::Varint, field::INT64),
        DataType::Byte => (DType::U8, Encoding::Plain, field::BYTES),
        DataType::String => (DType::String, Encoding::Strings, field::STRING),
        DataType::Bool => small(DType::Bool),
        DataType::Uint8 => small(DType::U8),
        DataType::Int8 => small(DType::I8),
        DataType::Uint16 => small(DType::U16),
        DataType::Int16 => small(DType::I16),
        DataType::Float16 => small(DType::F16),
    };
    match (data_type, tensor.data_format.unwrap_or(0)) {
        (_, 0) | (DataType::Float, 1) => Ok(kind),
        (_, format) => Err(Error::corrupt(format!(
            "tensor has an unknown data format for its type data_format=`{format}` dtype=`{}`",
            kind.0
        ))),
    }
}

fn cut_padding(runs: &mut [Run], wanted: u64) {
    if let [run] = runs
        && run.bytes > wanted
    {
        run.range.end = run.range.start + wanted;
        (run.bytes, run.count) = (wanted, wanted);
    }
}
