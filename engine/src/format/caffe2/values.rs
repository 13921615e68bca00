//! Blobs of Caffe2 that are no tensors, as values: what of them others can use.

use bytes::Bytes;
use prost::Message;

use super::proto::{BlobProto, DataType, DeviceOption, QTensorProto, TensorProto};
use super::record::TensorPiece;
use super::wire::Skeleton;
use super::{STRING, payload};
use crate::blob::{Blob, Buffer, DType, Tensor, byte_len, to_usize};
use crate::error::{Error, Result};

/// `BlobProto.type` of a counter.
pub const COUNTER: &str = "std::unique_ptr<Counter<int64_t>>";
/// `BlobProto.type` of a reader's position.
pub const TREE_CURSOR: &str = "std::unique_ptr<TreeCursor>";
/// `BlobProto.type` of a quantized tensor.
pub const INT8_TENSOR: &str = "Int8TensorCPU";

/// The name of the blob in which a checkpoint of Caffe2 lists its blobs: its `CheckpointManager` reads it first.
pub const BLOB_NAMES: &str = "blob_names";

/// A counter, as `epoch_limiter` counts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter(pub i64);

/// Where a reader of a dataset is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeCursor {
    /// The fields of the dataset.
    pub fields: Vec<String>,
    /// The next entry of each level; `None` at the start.
    pub offsets: Option<Vec<i64>>,
}

/// A quantized tensor: an element stands for `(element - zero_point) * scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Tensor {
    /// Of `u8`, or of `i32` for a bias.
    pub elements: Tensor,
    /// What a step of an element stands for.
    pub scale: f64,
    /// The element that stands for 0.
    pub zero_point: i32,
}

impl Counter {
    /// Of a blob of type [`COUNTER`].
    pub fn from_blob(blob: &Blob) -> Result<Self> {
        let elements = inner_tensor(&message(blob, COUNTER)?)?;
        match elements.as_ref().map(Tensor::as_slice::<i64>) {
            Some(Ok([count])) => Ok(Self(*count)),
            _ => Err(Error::corrupt("counter does not hold one number")),
        }
    }

    /// As a blob, as Caffe2 writes it.
    pub fn to_blob(self, name: &str) -> Blob {
        let tensor = TensorProto {
            dims: vec![1],
            data_type: Some(DataType::Int64 as i32),
            int64_data: vec![self.0],
            name: Some(name.to_owned()),
            ..TensorProto::default()
        };
        to_blob(BlobProto { tensor: Some(tensor), ..named(name, COUNTER) })
    }
}

impl TreeCursor {
    /// Of a blob of type [`TREE_CURSOR`].
    pub fn from_blob(blob: &Blob) -> Result<Self> {
        let data = message(blob, TREE_CURSOR)?;
        let fields = decode(&data)?.content.unwrap_or_default();
        let fields = String::from_utf8(fields)
            .map_err(|_| Error::corrupt("cursor names fields that are not UTF-8"))?;
        let offsets =
            inner_tensor(&data)?.map(|tensor| tensor.as_slice::<i64>().map(<[i64]>::to_vec)).transpose()?;
        Ok(Self { fields: fields.split_ascii_whitespace().map(str::to_owned).collect(), offsets })
    }

    /// As a blob, as Caffe2 writes it.
    pub fn to_blob(&self, name: &str) -> Blob {
        let content: String = self.fields.iter().map(|field| format!("{field} ")).collect();
        let tensor = self.offsets.as_ref().map(|offsets| TensorProto {
            dims: vec![i64::try_from(offsets.len()).unwrap_or(i64::MAX)],
            data_type: Some(DataType::Int64 as i32),
            int64_data: offsets.clone(),
            device_detail: Some(DeviceOption { device_type: Some(0) }),
            segment: Some(super::proto::tensor_proto::Segment {
                begin: 0,
                end: i64::try_from(offsets.len()).unwrap_or(i64::MAX),
            }),
            ..TensorProto::default()
        });
        to_blob(BlobProto { tensor, content: Some(content.into_bytes()), ..named(name, TREE_CURSOR) })
    }
}

impl Int8Tensor {
    /// Of a blob of type [`INT8_TENSOR`].
    pub fn from_blob(blob: &Blob) -> Result<Self> {
        let proto = decode(&message(blob, INT8_TENSOR)?)?;
        let QTensorProto { dims, scale, bias, data, data_type, .. } =
            proto.qtensor.ok_or_else(|| Error::corrupt("quantized tensor has no qtensor"))?;
        let shape = dims.iter().map(|&dim| u64::try_from(dim).ok()).collect::<Option<Vec<_>>>();
        let shape = shape.ok_or_else(|| Error::corrupt("quantized tensor has a negative dimension"))?;
        let corrupt = |error: Error| error.with_kind(crate::ErrorKind::Corrupt);
        let elements = match data_type.map(DataType::try_from) {
            Some(Ok(DataType::Uint8)) => {
                let bytes: std::result::Result<Vec<u8>, _> =
                    data.iter().map(|&value| u8::try_from(value)).collect();
                let bytes =
                    bytes.map_err(|_| Error::corrupt("quantized tensor holds a number outside 0..256"))?;
                Tensor::from_vec(shape, bytes)
            }
            Some(Ok(DataType::Int32)) | None => Tensor::from_vec(shape, data),
            _ => return Err(Error::corrupt("quantized tensor is neither of UINT8 nor of INT32")),
        };
        // Written as a double, and a whole number of 32 bits.
        Ok(Self { elements: elements.map_err(corrupt)?, scale, zero_point: bias as i32 })
    }
}

/// The blob as tensors that any format can hold, if it is one of those that have such: a counter as a scalar, a quantized tensor as
/// its elements with `<name>.scale` (`f64`) and `<name>.zero_point` (`i32`). `None` for all others.
pub fn as_tensors(name: &str, blob: &Blob) -> Result<Option<Vec<(String, Tensor)>>> {
    let Blob::Bytes { type_name, .. } = blob else { return Ok(None) };
    Ok(match type_name.as_str() {
        COUNTER => Some(vec![(name.to_owned(), Tensor::scalar(Counter::from_blob(blob)?.0))]),
        INT8_TENSOR => {
            let Int8Tensor { elements, scale, zero_point } = Int8Tensor::from_blob(blob)?;
            Some(vec![
                (name.to_owned(), elements),
                (format!("{name}.scale"), Tensor::scalar(scale)),
                (format!("{name}.zero_point"), Tensor::scalar(zero_point)),
            ])
        }
        _ => None,
    })
}

/// The text of a blob of type `std::string`.
pub fn string_of(blob: &Blob) -> Option<&[u8]> {
    match blob {
        Blob::Bytes { type_name, data } if type_name == STRING => Some(data),
        _ => None,
    }
}

fn message(blob: &Blob, wanted: &str) -> Result<Bytes> {
    match blob {
        Blob::Bytes { type_name, data } if type_name == wanted => Ok(data.clone().into()),
        Blob::Bytes { type_name, .. } => {
            Err(Error::invalid(format!("blob has another type type=`{type_name}` wanted=`{wanted}`")))
        }
        Blob::Tensor(tensor) => {
            Err(Error::invalid(format!("blob is a tensor dtype=`{}` wanted=`{wanted}`", tensor.dtype())))
        }
    }
}

fn decode(data: &Bytes) -> Result<BlobProto> {
    BlobProto::decode(data.clone())
        .map_err(|error| Error::corrupt("bytes are not a BlobProto").with_source(error))
}

/// The tensor within a blob of another type.
fn inner_tensor(data: &Bytes) -> Result<Option<Tensor>> {
    let mut read = |start: u64, into: &mut [u8]| crate::db::copy_value(data, start, into, b"");
    let walked = Skeleton::walk(data.len() as u64, &mut read)?;
    let Some(tensor) = &walked.blob.tensor else { return Ok(None) };
    let piece = TensorPiece::new(tensor, walked.runs)?;
    let Some(bytes) = byte_len(piece.dtype, &piece.shape)?.filter(|_| piece.dtype != DType::String) else {
        return Err(Error::corrupt("tensor of strings where numbers should be"));
    };
    if piece.elements.end - piece.elements.start != crate::blob::element_count(&piece.shape)? {
        return Err(Error::corrupt("tensor within a blob is not whole"));
    }
    let mut elements = Buffer::zeroed(to_usize(bytes)?)?;
    payload::fill(&piece, &mut read, elements.as_mut()?)?;
    Tensor::new(piece.dtype, piece.shape, elements).map(Some)
}

fn named(name: &str, type_name: &str) -> BlobProto {
    BlobProto { name: Some(name.to_owned()), r#type: Some(type_name.to_owned()), ..BlobProto::default() }
}

fn to_blob(proto: BlobProto) -> Blob {
    let type_name = proto.r#type.clone().unwrap_or_default();
    Blob::bytes(type_name, Bytes::from(proto.encode_to_vec()))
}
