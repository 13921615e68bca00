//! numpy's arrays, scalars and dtypes, as it pickles them.
//!
//! What an array is made from is what the header of an `.npy` file says, and so it is read as one: dtypes, byte orders and column-major
//! arrays are understood in one place.

use bytes::Bytes;
use ckpt_engine::blob::Tensor;
use ckpt_engine::{Error, ErrorKind, Result};

use super::value::{Heap, Object, Value, integer};
use crate::formats::npy;

/// numpy itself has no arrays of more.
const MAX_DIMS: usize = 64;

/// The longest name of a dtype, such as `S1048576`.
const MAX_DTYPE_LEN: usize = 16;

/// What a string of a string tensor takes while it is read.
const STRING: usize = 32;

fn wrong() -> Error {
    Error::corrupt("array or dtype is not as numpy pickles it")
}

/// A dtype.
#[derive(Clone, Debug)]
pub(super) struct Dtype {
    /// `<`, `>`, `|` or `=`.
    order: char,
    /// Such as `f4`.
    kind: String,
    /// Whether it has fields, or elements that are arrays.
    structured: bool,
}

impl Dtype {
    /// The dtype of a name.
    pub(super) fn named(name: &[u8]) -> Result<Self> {
        let (order, kind) = match name.split_first() {
            Some((&order @ (b'<' | b'>' | b'|' | b'='), kind)) => (char::from(order), kind),
            _ => ('=', name),
        };
        // It becomes a part of a header, so that it must not hold quotes and the like.
        let plain = kind.iter().all(u8::is_ascii_alphanumeric);
        if kind.is_empty() || kind.len() > MAX_DTYPE_LEN || !plain {
            return Err(wrong());
        }
        let kind = kind.iter().copied().map(char::from).collect();
        Ok(Self { order, kind, structured: false })
    }

    fn descr(&self) -> String {
        format!("{}{}", self.order, self.kind)
    }
}

/// The dtype with its state: the version, the byte order, the dtype of an element that is an array, the names of fields, and more that
/// follows from these.
pub(super) fn with_state(heap: &Heap, dtype: &Dtype, state: Value) -> Result<Dtype> {
    let Some([_, order, subarray, fields, ..]) = heap.tuple(state) else { return Err(wrong()) };
    let order = match heap.string(*order).map(|order| &**order) {
        Some(&[order @ (b'<' | b'>' | b'|' | b'=')]) => char::from(order),
        _ => return Err(wrong()),
    };
    let structured = *subarray != Value::None || *fields != Value::None;
    Ok(Dtype { order, kind: dtype.kind.clone(), structured })
}

/// How the elements lie.
#[derive(Debug)]
enum Order {
    RowMajor,
    ColumnMajor,
    /// Row-major in another order of the dimensions: dimension `i` is number `axes[i]` of them.
    Axes(Vec<usize>),
}

/// An array, or a numpy scalar.
#[derive(Debug)]
pub(super) struct Array {
    dtype: Dtype,
    /// As the elements lie, if other than by rows or columns.
    shape: Vec<u64>,
    order: Order,
    data: Bytes,
}

impl Array {
    /// What `__reduce__` of an array gives for a state: a version, which old ones do not have, then shape, dtype, whether it is
    /// column-major, and the elements.
    pub(super) fn from_state(heap: &Heap, state: Value) -> Result<Self> {
        let state = heap.tuple(state).ok_or_else(wrong)?;
        let (&[shape, dtype, column_major, data] | &[_, shape, dtype, column_major, data]) = state else {
            return Err(wrong());
        };
        let order =
            if integer(column_major).ok_or_else(wrong)? == 0 { Order::RowMajor } else { Order::ColumnMajor };
        Self::new(heap, dtype, dims(heap, shape)?, order, data)
    }

    /// A numpy scalar.
    pub(super) fn scalar(heap: &Heap, dtype: Value, data: Value) -> Result<Self> {
        Self::new(heap, dtype, Vec::new(), Order::RowMajor, data)
    }

    /// An array of protocol 5. It says how elements lie by a letter and, if that is a `K`, by the order of the dimensions.
    pub(super) fn from_buffer(
        heap: &Heap,
        data: Value,
        dtype: Value,
        shape: Value,
        (order, axes): (Value, Option<Value>),
    ) -> Result<Self> {
        let shape = dims(heap, shape)?;
        let order = match heap.string(order).map(|order| &**order) {
            Some(b"C") => Order::RowMajor,
            Some(b"F") => Order::ColumnMajor,
            Some(b"K") => {
                let axes = dims(heap, axes.ok_or_else(wrong)?)?;
                let is_axis = |axis: usize| axes.contains(&(axis as u64));
                if axes.len() != shape.len() || !(0..axes.len()).all(is_axis) {
                    return Err(wrong());
                }
                Order::Axes(axes.iter().map(|&axis| axis as usize).collect())
            }
            _ => return Err(wrong()),
        };
        Self::new(heap, dtype, shape, order, data)
    }

    fn new(heap: &Heap, dtype: Value, shape: Vec<u64>, order: Order, data: Value) -> Result<Self> {
        heap.budget.spend(size_of::<Self>() + size_of_val(&*shape) * 2)?;
        let Some(Object::Dtype(dtype)) = heap.get(dtype) else { return Err(wrong()) };
        let data = match heap.get(data) {
            Some(Object::Bytes(data)) => data.clone(),
            // Python objects. The array is refused when its name is known.
            _ if dtype.kind.starts_with('O') || dtype.structured => Bytes::new(),
            _ => return Err(wrong()),
        };
        Ok(Self { dtype: dtype.clone(), shape, order, data })
    }

    /// The tensor, with its elements in memory of its own: in the file they lie anyhow.
    pub(super) fn tensor(&self, heap: &Heap) -> Result<Tensor> {
        if self.dtype.structured {
            return Err(Error::unsupported("structured arrays are not supported"));
        }
        let copies = if self.dtype.order == '>' || !matches!(self.order, Order::RowMajor) { 2 } else { 1 };
        heap.budget.spend(self.data.len().saturating_mul(copies))?;
        let count =
            self.shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
        if self.dtype.kind.starts_with(['S', 'U']) {
            heap.budget.spend(count.unwrap_or(usize::MAX).saturating_mul(STRING))?;
        }
        match &self.order {
            Order::RowMajor => npy::read(&self.as_npy(&self.shape, false, &self.data)?),
            Order::ColumnMajor => npy::read(&self.as_npy(&self.shape, true, &self.data)?),
            Order::Axes(axes) => {
                let shape: Vec<u64> = axes.iter().filter_map(|&axis| self.shape.get(axis).copied()).collect();
                let data = reordered(&self.data, &self.shape, axes, count)?;
                npy::read(&self.as_npy(&shape, false, &data)?)
            }
        }
    }

    /// The array as an `.npy` file, whose elements are aligned.
    fn as_npy(&self, shape: &[u64], column_major: bool, data: &[u8]) -> Result<Bytes> {
        let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
        let header = format!(
            "{{'descr': '{}', 'fortran_order': {}, 'shape': ({dims})}}",
            self.dtype.descr(),
            if column_major { "True" } else { "False" }
        );
        let len = (header.len() + 12).next_multiple_of(64) - 12;
        let mut file = Vec::new();
        file.try_reserve_exact(12 + len + data.len()).map_err(|error| {
            Error::new(ErrorKind::Full, format!("out of memory for an array bytes=`{}`", data.len()))
                .with_source(error)
        })?;
        file.extend_from_slice(b"\x93NUMPY\x02\x00");
        file.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        file.extend_from_slice(format!("{header:len$}").as_bytes());
        file.extend_from_slice(data);
        Ok(file.into())
    }
}

/// A tuple of integers that are not negative.
fn dims(heap: &Heap, shape: Value) -> Result<Vec<u64>> {
    let shape = heap.tuple(shape).filter(|shape| shape.len() <= MAX_DIMS).ok_or_else(wrong)?;
    let dim = |dim: &Value| integer(*dim).and_then(|dim| u64::try_from(dim).ok());
    shape.iter().map(dim).collect::<Option<_>>().ok_or_else(wrong)
}

/// The elements of a row-major array of `shape` with its dimensions in the order of `axes`.
fn reordered(data: &Bytes, shape: &[u64], axes: &[usize], count: Option<usize>) -> Result<Bytes> {
    let count = count.ok_or_else(wrong)?;
    if count == 0 || data.is_empty() {
        return Ok(data.clone());
    }
    let width = data.len() / count;
    if width.checked_mul(count) != Some(data.len()) {
        return Err(wrong());
    }
    // From the innermost dimension outwards, in elements.
    let mut stride = 1;
    let mut strides = vec![0; shape.len()];
    for (to, &dim) in strides.iter_mut().zip(shape).rev() {
        *to = stride;
        stride *= dim as usize;
    }
    let places = axes.iter().filter_map(|&axis| Some((*shape.get(axis)? as usize, *strides.get(axis)?)));
    let places: Vec<(usize, usize)> = places.collect();
    let mut index = vec![0; places.len()];
    let mut ordered = Vec::new();
    ordered
        .try_reserve_exact(data.len())
        .map_err(|error| Error::new(ErrorKind::Full, "out of memory").with_source(error))?;
    for _ in 0..count {
        let at: usize = index.iter().zip(&places).map(|(at, (_, stride))| at * stride).sum();
        ordered.extend_from_slice(data.get(at * width..(at + 1) * width).ok_or_else(wrong)?);
        for (at, (dim, _)) in index.iter_mut().zip(&places).rev() {
            *at += 1;
            if *at < *dim {
                break;
            }
            *at = 0;
        }
    }
    Ok(ordered.into())
}
