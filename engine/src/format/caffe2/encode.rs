//! Writes records: a chunk of a tensor, or a blob of another type, as Caffe2's serializers do, byte for byte.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use super::keys::blob_name;
use super::payload::{encode_bf16, encode_varints};
use super::proto::tensor_proto::Segment;
use super::proto::{BlobProto, DataType, DeviceOption, TensorProto};
use super::record::is_known;
use super::wire::field;
use super::{STRING, TENSOR};
use crate::blob::DType;
use crate::db::Payload;
use crate::error::{Error, Result};

/// How `f32`s are written: `FloatFormat` of Caffe2's `BlobSerializationOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatFormat {
    /// All bits.
    #[default]
    Float,
    /// The upper half: half the bytes, and two or three decimal digits.
    Bfloat16,
}

/// How elements are written where Caffe2 had a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Of `f32`.
    pub float: FloatFormat,
    /// Small integers, bools and halves as bytes and not as varints: the flag `caffe2_serialize_using_bytes_as_holder`.
    pub bytes_as_holder: bool,
    /// Halves as bytes: the flag `caffe2_serialize_fp16_as_bytes`.
    pub fp16_as_bytes: bool,
}

/// A chunk to be written.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// The blob's name in the db.
    pub name: &'a str,
    /// The dtype of the tensor.
    pub dtype: DType,
    /// The shape of the whole tensor.
    pub shape: &'a [u64],
    /// The elements of this chunk, in row-major order.
    pub elements: Range<u64>,
}

/// Whether Caffe2 has tensors of this dtype.
pub fn data_type(dtype: DType) -> Result<DataType> {
    Ok(match dtype {
        DType::Bool => DataType::Bool,
        DType::U8 => DataType::Uint8,
        DType::U16 => DataType::Uint16,
        DType::I8 => DataType::Int8,
        DType::I16 => DataType::Int16,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::F16 => DataType::Float16,
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
        DType::String => DataType::String,
        _ => {
            return Err(Error::invalid(format!(
                "Caffe2 has no tensors of this dtype; leave the blob out or keep the native layout dtype=`{dtype}`"
            )));
        }
    })
}

/// No record of so many elements of this dtype is longer, names and dims not counted.
pub fn max_bytes(dtype: DType, elements: u64, holders: Holders) -> u64 {
    let size = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 if !as_bytes(dtype, holders) => 10,
        DType::U16 | DType::F16 if !as_bytes(dtype, holders) => 3,
        DType::U8 if !as_bytes(dtype, holders) => 2,
        _ => dtype.size().unwrap_or(0) as u64,
    };
    elements.saturating_mul(size)
}

fn as_bytes(dtype: DType, holders: Holders) -> bool {
    match dtype {
        DType::F16 => holders.bytes_as_holder || holders.fp16_as_bytes,
        DType::Bool | DType::U8 | DType::I8 | DType::U16 | DType::I16 => holders.bytes_as_holder,
        _ => false,
    }
}

/// The record of a chunk of a tensor that is not of strings; `elements` are its bytes in memory.
pub fn tensor(chunk: &Chunk<'_>, elements: Bytes, holders: Holders) -> Result<Payload> {
    let dtype = chunk.dtype;
    let data_type = data_type(dtype)?;
    let is_bf16 = dtype == DType::F32 && holders.float == FloatFormat::Bfloat16;
    let (number, values) = match dtype {
        DType::F32 if is_bf16 => (field::RAW, Bytes::from(encode_bf16(&elements))),
        DType::F32 => (field::FLOAT, elements),
        DType::F64 => (field::DOUBLE, elements),
        DType::I64 => (field::INT64, encode_varints(dtype, &elements)?.into()),
        _ if as_bytes(dtype, holders) => (field::BYTES, elements),
        _ => (field::INT32, encode_varints(dtype, &elements)?.into()),
    };
    let mut payload = Payload::new();
    // A list without elements is left out; bytes without any are not.
    if !values.is_empty() || matches!(number, field::BYTES | field::RAW) {
        let mut head = Vec::new();
        encode_key(number, WireType::LengthDelimited, &mut head);
        encode_varint(values.len() as u64, &mut head);
        payload.push(head.into());
        payload.push(values);
    }
    let format = (data_type == DataType::Float).then_some(u32::from(is_bf16));
    wrap(chunk, data_type, number, format, payload)
}

/// The record of a chunk of a string tensor.
pub fn strings<'s>(chunk: &Chunk<'_>, strings: impl Iterator<Item = &'s [u8]>) -> Result<Payload> {
    let mut values = Vec::new();
    for string in strings {
        encode_key(field::STRING, WireType::LengthDelimited, &mut values);
        encode_varint(string.len() as u64, &mut values);
        values.extend_from_slice(string);
    }
    wrap(chunk, DataType::String, field::STRING, None, values.into())
}

/// Puts the other fields around the payload, in the order of their numbers.
fn wrap(
    chunk: &Chunk<'_>,
    data_type: DataType,
    number: u32,
    data_format: Option<u32>,
    values: Payload,
) -> Result<Payload> {
    let signed = |value: u64| {
        i64::try_from(value).map_err(|_| Error::invalid("tensor has more elements than Caffe2 can count"))
    };
    let mut before = TensorProto {
        dims: chunk.shape.iter().map(|&dim| signed(dim)).collect::<Result<_>>()?,
        data_type: Some(data_type as i32),
        ..TensorProto::default()
    };
    let mut after = TensorProto {
        name: Some(chunk.name.to_owned()),
        device_detail: Some(DeviceOption { device_type: Some(0) }),
        segment: Some(Segment { begin: signed(chunk.elements.start)?, end: signed(chunk.elements.end)? }),
        data_format,
        ..TensorProto::default()
    };
    if number > 8 {
        before.name = after.name.take();
        before.device_detail = after.device_detail.take();
    }
    if number > 11 {
        before.segment = after.segment.take();
    }
    let (before, after) = (before.encode_to_vec(), after.encode_to_vec());
    let len = before.len() + values.len() + after.len();
    let outer = BlobProto {
        name: Some(chunk.name.to_owned()),
        r#type: Some(TENSOR.to_owned()),
        ..BlobProto::default()
    };
    let mut head = outer.encode_to_vec();
    encode_key(3, WireType::LengthDelimited, &mut head);
    encode_varint(len as u64, &mut head);
    head.extend_from_slice(&before);
    let mut record = Payload::new();
    record.push(head.into());
    values.pieces().iter().for_each(|piece| record.push(piece.clone()));
    record.push(after.into());
    Ok(record)
}

/// The record of a blob that is no tensor.
///
/// Of a type that Caffe2 itself has, other than a string, `data` must be a `BlobProto` of that type, as loading gives it: it is
/// written as it is, also if it has another name in it, since the key is what counts. The bytes of any other type become `content`.
pub fn opaque(name: &str, type_name: &str, data: Bytes) -> Result<Payload> {
    let is_whole = is_known(type_name) || is_blob_of(type_name, &data);
    if type_name == STRING || !is_whole {
        return content(name, type_name, data);
    }
    let wrong = || {
        Error::invalid(format!(
            "bytes are not a BlobProto of their type, as Caffe2 keeps it type=`{type_name}`"
        ))
    };
    let blob = BlobProto::decode(data.clone()).map_err(|error| wrong().with_source(error))?;
    if blob.r#type.as_deref() != Some(type_name) {
        return Err(wrong());
    }
    if blob_name(name, blob.name.as_deref().unwrap_or_default()) == name {
        return Ok(data.into());
    }
    renamed(name, data)
}

/// Whether bytes are a `BlobProto` of this type that says more than its content: how a blob of a type that neither side knows is
/// kept whole.
fn is_blob_of(type_name: &str, data: &Bytes) -> bool {
    let len = data.len() as u64;
    let mut read = |start: u64, into: &mut [u8]| crate::db::copy_value(data, start, into, b"");
    super::wire::Skeleton::walk(len, &mut read)
        .is_ok_and(|walked| walked.blob.r#type.as_deref() == Some(type_name) && !walked.is_plain)
}

fn content(name: &str, type_name: &str, data: Bytes) -> Result<Payload> {
    if type_name.is_empty() {
        return Err(Error::invalid("bytes without a type name cannot be a blob of Caffe2: give them one"));
    }
    let outer =
        BlobProto { name: Some(name.to_owned()), r#type: Some(type_name.to_owned()), ..BlobProto::default() };
    let mut head = outer.encode_to_vec();
    head.reserve(2 + encoded_len_varint(data.len() as u64));
    encode_key(4, WireType::LengthDelimited, &mut head);
    encode_varint(data.len() as u64, &mut head);
    let mut record = Payload::new();
    record.push(head.into());
    record.push(data);
    Ok(record)
}

/// A blob whose key would be cut if the name in it did not tell that it must not be. The last of a repeated field counts, so nothing of the old bytes is touched.
fn renamed(name: &str, data: Bytes) -> Result<Payload> {
    let mut record = Payload::from(data);
    let name = BlobProto { name: Some(name.to_owned()), ..BlobProto::default() };
    record.push(name.encode_to_vec().into());
    Ok(record)
}
