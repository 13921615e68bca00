//! Tensors: a dtype, a shape and row-major bytes.

use std::fmt;

use super::{Buffer, DType, Element};
use crate::error::{Error, Result};

/// A dense row-major array. Shape `[]` is a scalar with one element; a 0 in the shape makes it empty.
///
/// **String tensors** keep their elements in one buffer: `n + 1` offsets (`u64`, little-endian) into the bytes that follow
/// them, then the bytes; element `i` is the bytes from offset `i` to offset `i + 1`. The first offset is 0, the last is the
/// number of bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<u64>,
    data: Buffer,
}

impl Tensor {
    /// A tensor over `data`, without a copy. Fails with `InvalidInput` if the length does not fit dtype and shape, or if a
    /// string tensor's offsets are not as the [type](Self) says.
    pub fn new(dtype: DType, shape: impl Into<Vec<u64>>, data: impl Into<Buffer>) -> Result<Self> {
        let tensor = Self { dtype, shape: shape.into(), data: data.into() };
        match byte_len(dtype, &tensor.shape)? {
            Some(len) if len != tensor.data.len() as u64 => Err(Error::invalid(format!(
                "tensor data does not fit its shape dtype=`{dtype}` shape=`{:?}` bytes=`{}` expected=`{len}`",
                tensor.shape,
                tensor.data.len()
            ))),
            Some(_) => Ok(tensor),
            None => check_offsets(&tensor.data, element_count(&tensor.shape)?).map(|()| tensor),
        }
    }

    /// A tensor from a slice, copied.
    pub fn from_slice<T: Element>(shape: impl Into<Vec<u64>>, elements: &[T]) -> Result<Self> {
        Self::new(T::DTYPE, shape, Buffer::copy_from(bytemuck::cast_slice(elements))?)
    }

    /// A tensor over a vector's memory, without a copy.
    pub fn from_vec<T: Element>(shape: impl Into<Vec<u64>>, elements: Vec<T>) -> Result<Self> {
        Self::new(T::DTYPE, shape, Buffer::from_vec(elements))
    }

    /// A scalar.
    pub fn scalar<T: Element>(element: T) -> Self {
        Self { dtype: T::DTYPE, shape: Vec::new(), data: Buffer::from_vec(vec![element]) }
    }

    /// A string tensor.
    pub fn from_strings<S: AsRef<[u8]>>(shape: impl Into<Vec<u64>>, strings: &[S]) -> Result<Self> {
        let mut offsets = vec![0u64];
        let mut bytes = Vec::new();
        for string in strings {
            bytes.extend_from_slice(string.as_ref());
            offsets.push(bytes.len() as u64);
        }
        let mut data: Vec<u8> = offsets.iter().flat_map(|at| at.to_le_bytes()).collect();
        data.append(&mut bytes);
        Self::new(DType::String, shape, Buffer::copy_from(&data)?)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The stored bytes: elements in row-major order, little-endian; for strings see the [type](Self).
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// The bytes to be changed in place, copied first if they are shared. Not for strings, whose bytes hold offsets.
    pub fn data_mut(&mut self) -> Result<&mut [u8]> {
        if self.dtype == DType::String {
            return Err(Error::unsupported("string tensors are not changed in place: make a new one"));
        }
        self.data.as_mut()
    }

    /// The elements. Fails with `InvalidInput` if `T` is another type, if the memory (a foreign one) is not aligned for it, or
    /// if a `bool` is neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::invalid(format!(
                "tensor has another dtype dtype=`{}` wanted=`{}`",
                self.dtype,
                T::DTYPE
            )));
        }
        bytemuck::checked::try_cast_slice(&self.data).map_err(|error| {
            Error::invalid(format!("tensor bytes cannot be read in place: {error} dtype=`{}`", self.dtype))
        })
    }

    /// The strings of a string tensor, in row-major order.
    pub fn strings(&self) -> Result<Vec<&[u8]>> {
        if self.dtype != DType::String {
            return Err(Error::invalid(format!(
                "tensor has another dtype dtype=`{}` wanted=`string`",
                self.dtype
            )));
        }
        let count = element_count(&self.shape)?;
        (0..count).map(|index| string_at(&self.data, count, index)).collect()
    }

    /// Rows `rows` of the first dimension, sharing the memory. A string tensor's rows are copied.
    pub fn rows(&self, rows: std::ops::Range<u64>) -> Result<Self> {
        let shape = rows_shape(&self.shape, &rows)?;
        let row = element_count(self.shape.get(1..).unwrap_or_default())?;
        let Some(size) = self.dtype.size() else {
            let strings = self.strings()?;
            let wanted = to_usize(rows.start * row)?..to_usize(rows.end * row)?;
            return Self::from_strings(shape, strings.get(wanted).unwrap_or_default());
        };
        let row = row * size as u64;
        let data = self.data.slice(to_usize(rows.start * row)?..to_usize(rows.end * row)?)?;
        Self::new(self.dtype, shape, data)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

/// The number of elements of a shape, which must fit a `u64`.
pub(crate) fn element_count(shape: &[u64]) -> Result<u64> {
    // A zero anywhere makes the tensor empty, whatever the other dimensions multiply to.
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim));
    count.ok_or_else(|| Error::invalid(format!("shape is too large shape=`{shape:?}`")))
}

/// The bytes of a tensor, or `None` for strings, which the shape does not tell.
pub(crate) fn byte_len(dtype: DType, shape: &[u64]) -> Result<Option<u64>> {
    let count = element_count(shape)?;
    let Some(size) = dtype.size() else {
        return Ok(None);
    };
    let len = count.checked_mul(size as u64);
    len.map(Some)
        .ok_or_else(|| Error::invalid(format!("shape is too large shape=`{shape:?}` dtype=`{dtype}`")))
}

/// The shape of rows `rows` of a tensor of `shape`. Fails with `InvalidInput` for a scalar and outside the first dimension.
pub(crate) fn rows_shape(shape: &[u64], rows: &std::ops::Range<u64>) -> Result<Vec<u64>> {
    let Some((&first, rest)) = shape.split_first() else {
        return Err(Error::invalid("a scalar has no rows"));
    };
    if rows.start > rows.end || rows.end > first {
        return Err(Error::invalid(format!(
            "rows are outside the tensor rows=`{}..{}` shape=`{shape:?}`",
            rows.start, rows.end
        )));
    }
    let mut of_rows = vec![rows.end - rows.start];
    of_rows.extend_from_slice(rest);
    Ok(of_rows)
}

pub(crate) fn to_usize(value: u64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::unsupported(format!("too large for this machine value=`{value}`")))
}

/// Offset `index` of a string tensor's buffer.
fn offset_at(data: &[u8], index: u64) -> Option<u64> {
    let at = usize::try_from(index.checked_mul(8)?).ok()?;
    data.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn check_offsets(data: &[u8], count: u64) -> Result<()> {
    let wrong = || {
        Error::invalid(format!("string tensor has wrong offsets elements=`{count}` bytes=`{}`", data.len()))
    };
    let table = count.checked_add(1).and_then(|entries| entries.checked_mul(8)).ok_or_else(wrong)?;
    let bytes = (data.len() as u64).checked_sub(table).ok_or_else(wrong)?;
    let mut last = 0;
    for index in 0..=count {
        let offset = offset_at(data, index).ok_or_else(wrong)?;
        let begins_at_zero = index > 0 || offset == 0;
        if offset < last || offset > bytes || !begins_at_zero {
            return Err(wrong());
        }
        last = offset;
    }
    if last == bytes { Ok(()) } else { Err(wrong()) }
}

fn string_at(data: &[u8], count: u64, index: u64) -> Result<&[u8]> {
    let table = (count + 1) * 8;
    let bounds = offset_at(data, index).zip(offset_at(data, index + 1));
    bounds
        .and_then(|(start, end)| {
            let start = usize::try_from(table.checked_add(start)?).ok()?;
            let end = usize::try_from(table.checked_add(end)?).ok()?;
            data.get(start..end)
        })
        .ok_or_else(|| Error::internal("string tensor has wrong offsets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_must_fit() {
        assert!(Tensor::new(DType::F32, [2, 3], Buffer::zeroed(24).unwrap()).is_ok());
        assert!(Tensor::new(DType::F32, [2, 3], Buffer::zeroed(23).unwrap()).is_err());
        assert!(Tensor::new(DType::F32, [], Buffer::zeroed(4).unwrap()).is_ok());
        assert!(Tensor::new(DType::F32, [0, u64::MAX, u64::MAX], Buffer::zeroed(0).unwrap()).is_ok());
        assert!(Tensor::new(DType::F32, [u64::MAX, 2], Buffer::zeroed(0).unwrap()).is_err());
        assert!(Tensor::new(DType::F64, [u64::MAX / 4], Buffer::zeroed(0).unwrap()).is_err());
    }

    #[test]
    fn strings_keep_nul_and_empty_ones() {
        let strings: [&[u8]; 3] = [b"a\0b", b"", b"\xff\xfe"];
        let tensor = Tensor::from_strings([3], &strings).unwrap();
        assert_eq!(tensor.strings().unwrap(), strings);
        assert_eq!(tensor.rows(1..3).unwrap().strings().unwrap(), strings[1..]);
        let empty = Tensor::from_strings::<&[u8]>([0, 5], &[]).unwrap();
        assert_eq!(empty.strings().unwrap(), Vec::<&[u8]>::new());
    }

    #[test]
    fn wrong_offsets_are_refused() {
        let good = Tensor::from_strings([2], &["ab", "c"]).unwrap();
        for index in 0..24 {
            let mut data = Buffer::copy_from(good.data()).unwrap();
            data.as_mut().unwrap()[index] ^= 0xff;
            let found = Tensor::new(DType::String, [2], data);
            assert!(found.is_err(), "byte {index} flipped");
        }
        assert!(Tensor::new(DType::String, [u64::MAX], Buffer::zeroed(8).unwrap()).is_err());
    }

    #[test]
    fn rows_share_the_memory() {
        let tensor = Tensor::from_slice([3, 2], &[0i16, 1, 2, 3, 4, 5]).unwrap();
        let rows = tensor.rows(1..3).unwrap();
        assert_eq!(rows.shape(), [2, 2]);
        assert_eq!(rows.as_slice::<i16>().unwrap(), [2, 3, 4, 5]);
        assert_eq!(rows.data().as_ptr(), tensor.data()[4..].as_ptr());
        assert!(tensor.rows(2..4).is_err());
        assert!(Tensor::scalar(1u8).rows(0..1).is_err());
    }

    #[test]
    fn a_bool_that_is_neither_is_an_error() {
        let tensor = Tensor::new(DType::Bool, [1], Buffer::copy_from(&[2]).unwrap()).unwrap();
        assert!(tensor.as_slice::<bool>().is_err());
    }
}
