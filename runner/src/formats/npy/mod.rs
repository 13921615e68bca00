//! `.npy` arrays: numpy's format, versions 1 to 3.
//!
//! A header, then the elements. An array that would need Python to be understood is refused.

mod header;
mod strings;

use std::borrow::Cow;
use std::io::Write;

use bytes::Bytes;
use ckpt_engine::blob::{Buffer, DType, Tensor};
use ckpt_engine::{Error, ErrorKind, Result};

use header::Header;

/// The longest header, so that whoever has a stream knows how much to read before asking [`total_len`].
pub(super) const MAX_HEADER_LEN: usize = header::MAX_HEADER_LEN;

/// How elements are stored.
enum Elements {
    /// Of this dtype, with the bytes of each to be reversed in groups of so many, or 0 for none.
    Plain(DType, usize),
    /// `|S`: so many bytes, NULs at the end cut off.
    ByteStrings(usize),
    /// `<U` or `>U`: so many code points of four bytes.
    Text(usize, fn([u8; 4]) -> u32),
}

impl Elements {
    /// The bytes of one.
    fn width(&self) -> usize {
        match self {
            Self::Plain(dtype, _) => dtype.size().unwrap_or_default(),
            Self::ByteStrings(len) => *len,
            Self::Text(len, _) => len.saturating_mul(4),
        }
    }
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// The length of the whole array, as the header at the beginning of it says.
pub(super) fn total_len(beginning: &[u8]) -> Result<u64> {
    let (header, at) = header::read(beginning)?;
    let elements = elements(&header.descr)?;
    let len = data_len(&header, &elements).and_then(|len| len.checked_add(at as u64));
    len.ok_or_else(|| corrupt(format!("array is impossibly large shape=`{:?}`", header.shape)))
}

fn count(header: &Header) -> Option<u64> {
    if header.shape.contains(&0) {
        return Some(0);
    }
    header.shape.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim))
}

fn data_len(header: &Header, elements: &Elements) -> Option<u64> {
    count(header)?.checked_mul(elements.width() as u64)
}

/// Reads an array. Elements that need no change share the memory of `file`.
pub(super) fn read(file: &Bytes) -> Result<Tensor> {
    let (header, at) = header::read(file)?;
    let data = file.slice(at..);
    let elements = elements(&header.descr)?;
    if data_len(&header, &elements) != Some(data.len() as u64) {
        return Err(corrupt(format!(
            "array has another length than its header says shape=`{:?}` descr=`{}` bytes=`{}`",
            header.shape,
            header.descr,
            data.len()
        )));
    }
    let (count, width) = (count(&header).unwrap_or_default(), elements.width());
    // Strings of no bytes at all: the count is only in the header, and must not be trusted for an allocation.
    if width == 0 && count > 1 << 20 {
        return Err(corrupt(format!("too many empty strings shape=`{:?}`", header.shape)));
    }
    let data = if header.fortran_order && header.shape.len() > 1 && !data.is_empty() {
        to_row_major(&data, &header.shape, width)?
    } else {
        data
    };
    match elements {
        Elements::Plain(DType::Bool, _) => Tensor::new(DType::Bool, header.shape, super::bools(data)?),
        Elements::Plain(dtype, 0) => Tensor::new(dtype, header.shape, Buffer::from(data)),
        Elements::Plain(dtype, group) => {
            let mut swapped = Buffer::copy_from(&data)?;
            swapped.as_mut()?.chunks_exact_mut(group).for_each(<[u8]>::reverse);
            Tensor::new(dtype, header.shape, swapped)
        }
        Elements::ByteStrings(len) => {
            let strings: Vec<&[u8]> = strings::cells(&data, len, count).map(strings::trim).collect();
            Tensor::from_strings(header.shape, &strings)
        }
        Elements::Text(_, code_point) => {
            let strings = strings::cells(&data, width, count).map(|cell| strings::text(cell, code_point));
            Tensor::from_strings(header.shape, &strings.collect::<Result<Vec<_>>>()?)
        }
    }
}

fn elements(descr: &str) -> Result<Elements> {
    let unsupported = |why: &str| Error::unsupported(format!("{why} descr=`{}`", descr.escape_debug()));
    let mut chars = descr.chars();
    let (order, kind) = (chars.next(), chars.next());
    let size: usize = chars.as_str().parse().map_err(|_| match kind {
        Some('O') => unsupported("arrays of Python objects are pickled and not read"),
        _ => unsupported("unknown kind of elements"),
    })?;
    let swap = match order {
        Some('<' | '|' | '=') => 0,
        Some('>') => 1,
        _ => return Err(unsupported("unknown kind of elements")),
    };
    let dtype = match (kind, size) {
        (Some('b'), 1) => DType::Bool,
        (Some('u'), 1) => DType::U8,
        (Some('u'), 2) => DType::U16,
        (Some('u'), 4) => DType::U32,
        (Some('u'), 8) => DType::U64,
        (Some('i'), 1) => DType::I8,
        (Some('i'), 2) => DType::I16,
        (Some('i'), 4) => DType::I32,
        (Some('i'), 8) => DType::I64,
        (Some('f'), 2) => DType::F16,
        (Some('f'), 4) => DType::F32,
        (Some('f'), 8) => DType::F64,
        (Some('c'), 8) => DType::Complex64,
        (Some('c'), 16) => DType::Complex128,
        (Some('S'), len) => return Ok(Elements::ByteStrings(len)),
        (Some('U'), len) if swap == 1 => return Ok(Elements::Text(len, u32::from_be_bytes)),
        (Some('U'), len) => return Ok(Elements::Text(len, u32::from_le_bytes)),
        (Some('O'), _) => return Err(unsupported("arrays of Python objects are pickled and not read")),
        (Some('V'), _) => {
            return Err(unsupported(
                "raw elements, such as bfloat16 saved by numpy, have no dtype; use .safetensors",
            ));
        }
        _ => return Err(unsupported("unknown kind of elements")),
    };
    // The two halves of a complex number are swapped one by one.
    let group = if kind == Some('c') { size / 2 } else { size };
    Ok(Elements::Plain(dtype, if swap == 1 && group > 1 { group } else { 0 }))
}

/// Column-major elements of `width` bytes in row-major order.
fn to_row_major(data: &[u8], shape: &[u64], width: usize) -> Result<Bytes> {
    let wrong = || Error::internal("array is not as long as its shape says");
    let dims =
        shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
    let mut strides = Vec::with_capacity(dims.len());
    let mut stride = width;
    for dim in &dims {
        strides.push(stride);
        stride *= dim;
    }
    let mut ordered = Buffer::zeroed(data.len())?;
    let mut index = vec![0; dims.len()];
    for cell in ordered.as_mut()?.chunks_exact_mut(width) {
        let at: usize = index.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        cell.copy_from_slice(data.get(at..at + width).ok_or_else(wrong)?);
        for (at, dim) in index.iter_mut().zip(&dims).rev() {
            *at += 1;
            if *at < *dim {
                break;
            }
            *at = 0;
        }
    }
    Ok(ordered.into())
}

/// An array ready to be written: the header, and the elements.
pub(super) struct Array<'a> {
    header: Vec<u8>,
    data: Cow<'a, Buffer>,
}

impl<'a> Array<'a> {
    /// Fails with `Unsupported`, saying why, for a dtype that numpy does not have.
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (descr, data) = match descr_of(tensor.dtype()) {
            Some(descr) => (descr.to_owned(), Cow::Borrowed(tensor.data())),
            None if tensor.dtype() == DType::String => {
                let (descr, data) = strings::to_cells(&tensor.strings()?)?;
                (descr, Cow::Owned(data))
            }
            None => {
                return Err(Error::unsupported(format!(
                    "numpy has no such dtype; export a .safetensors file dtype=`{}`",
                    tensor.dtype()
                )));
            }
        };
        Ok(Self { header: header::write(&descr, tensor.shape()), data })
    }

    pub(super) fn len(&self) -> u64 {
        (self.header.len() + self.data.len()) as u64
    }

    pub(super) fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        out.write_all(&self.header)?;
        out.write_all(&self.data)
    }
}

fn descr_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::Complex64 => "<c8",
        DType::Complex128 => "<c16",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(dict: &str, data: &[u8]) -> Bytes {
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend_from_slice(&(dict.len() as u16).to_le_bytes());
        file.extend_from_slice(dict.as_bytes());
        file.extend_from_slice(data);
        file.into()
    }

    fn array(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Result<Tensor> {
        read(&npy(
            &format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   \n"),
            data,
        ))
    }

    fn written(tensor: &Tensor) -> Bytes {
        let mut file = Vec::new();
        let array = Array::new(tensor).unwrap();
        array.write(&mut file).unwrap();
        assert_eq!(file.len() as u64, array.len());
        file.into()
    }

    #[test]
    fn every_dtype_of_numpy_makes_the_round_trip() {
        for &dtype in DType::ALL {
            let Some(size) = dtype.size().filter(|_| descr_of(dtype).is_some()) else { continue };
            for shape in [vec![], vec![2], vec![2, 0, 3], vec![2, 1, 3]] {
                let len = shape.iter().product::<u64>() as usize * size;
                let bytes: Vec<u8> =
                    (0..len).map(|at| if dtype == DType::Bool { at as u8 & 1 } else { at as u8 }).collect();
                let tensor = Tensor::new(dtype, shape, Buffer::copy_from(&bytes).unwrap()).unwrap();
                assert_eq!(read(&written(&tensor)).unwrap(), tensor);
            }
        }
        assert!(Array::new(&Tensor::scalar(half::bf16::ONE)).is_err());
    }

    #[test]
    fn strings_make_the_round_trip() {
        let cases: [&[&[u8]]; 4] =
            [&[b"a", b"", "gr\u{fc}n \u{1f600}".as_bytes()], &[b"\xff\xfe", b"x"], &[b"a\0b"], &[]];
        for strings in cases {
            let tensor = Tensor::from_strings([strings.len() as u64], strings).unwrap();
            assert_eq!(read(&written(&tensor)).unwrap(), tensor, "{strings:?}");
        }
        assert!(Array::new(&Tensor::from_strings([1], &["a\0"]).unwrap()).is_err());
    }

    #[test]
    fn other_byte_orders_and_column_major_arrays_are_brought_to_ours() {
        let big = array(">i2", "False", "(2,)", &[0, 1, 0xff, 0xfe]).unwrap();
        assert_eq!(big.as_slice::<i16>().unwrap(), [1, -2]);
        let complex: Vec<u8> = [1.0f32, -2.0].iter().flat_map(|part| part.to_be_bytes()).collect();
        assert_eq!(
            array(">c8", "False", "()", &complex).unwrap().as_slice::<[f32; 2]>().unwrap(),
            [[1.0, -2.0]]
        );
        let columns = array("<u1", "True", "(2, 3)", &[1, 4, 2, 5, 3, 6]).unwrap();
        assert_eq!(columns.as_slice::<u8>().unwrap(), [1, 2, 3, 4, 5, 6]);
        let deep: Vec<u8> = (0..24).collect();
        let found = array("|u1", "True", "(2, 3, 4)", &deep).unwrap();
        let expected: Vec<u8> = (0..24u8).map(|at| at / 12 + at / 4 % 3 * 2 + at % 4 * 6).collect();
        assert_eq!(found.as_slice::<u8>().unwrap(), expected);
        let text = array(">U2", "False", "(1,)", &[0, 0, 0, b'h', 0, 0, 0, b'i']).unwrap();
        assert_eq!(text.strings().unwrap(), [b"hi"]);
    }

    #[test]
    fn what_would_need_python_is_refused() {
        for (descr, says) in [
            ("|O", "pickled"),
            ("|V2", ".safetensors"),
            ("<M8[s]", "unknown"),
            ("<f16", "unknown"),
            ("x", "unknown"),
            ("", "unknown"),
        ] {
            let error = array(descr, "False", "(1,)", &[0; 16]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{descr}");
            assert!(error.to_string().contains(says), "{error}");
        }
        let structured = npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
        assert!(read(&structured).unwrap_err().to_string().contains("structured"));
    }

    #[test]
    fn headers_that_lie_are_errors() {
        for shape in
            ["(3,)", "(1,)", "(18446744073709551615,)", "(4294967296, 4294967296, 4)", "(-1,)", "(x,)", "2"]
        {
            assert!(array("<f4", "False", shape, &[0; 8]).is_err(), "{shape}");
        }
        assert!(array("|S0", "False", "(18446744073709551615,)", &[]).is_err());
        for dict in [
            "",
            "{",
            "{}",
            "{'descr': '<f4'}",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}",
            "{'x': 1}",
        ] {
            assert!(read(&npy(dict, &[0; 4])).is_err(), "{dict}");
        }
        let good = written(&Tensor::from_slice([2], &[1.0f32, 2.0]).unwrap());
        for len in 0..good.len() {
            assert!(read(&good.slice(..len)).is_err(), "{len}");
        }
        let mut longer = good.to_vec();
        longer.push(0);
        assert!(read(&longer.into()).is_err());
    }

    #[test]
    fn strange_strings_and_bools() {
        let fortran = array("|S1", "True", "(2, 2)", b"acbd").unwrap();
        assert_eq!(fortran.strings().unwrap(), [b"a", b"b", b"c", b"d"]);
        let no_character = array("<U1", "False", "(1,)", &[0, 0xd8, 0, 0]).unwrap_err();
        assert_eq!(no_character.kind(), ErrorKind::Corrupt);
        // Any byte but 0 is true to numpy.
        let bools = array("|b1", "False", "(3,)", &[0, 1, 7]).unwrap();
        assert_eq!(bools.as_slice::<bool>().unwrap(), [false, true, true]);
        assert_eq!(array("=i4", "False", "()", &[1, 0, 0, 0]).unwrap(), Tensor::scalar(1i32));
    }
}
