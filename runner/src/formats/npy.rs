//! `.npy` arrays: numpy's format, versions 1 to 3.
//!
//! A header, which is the text of a Python dictionary with `descr`, `fortran_order` and `shape`, then the elements. The header is
//! parsed here and nothing in it is evaluated: an array that would need Python to be understood is refused.

use std::io::Write;

use bytes::Bytes;
use ckpt_engine::blob::{Buffer, DType, Tensor};
use ckpt_engine::{Error, ErrorKind, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// numpy itself refuses longer headers unless it is told to trust the file.
const MAX_HEADER_LEN: usize = 64 << 10;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// How elements are stored.
enum Elements {
    /// Of this dtype, with the bytes of each to be reversed in groups of so many, or 0 for none.
    Plain(DType, usize),
    /// `|S`: so many bytes, NULs at the end cut off.
    ByteStrings(usize),
    /// `<U` or `>U`: so many code points of four bytes.
    Text(usize, fn([u8; 4]) -> u32),
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Reads an array. Elements that need no change share the memory of `file`.
pub(super) fn read(file: &Bytes) -> Result<Tensor> {
    let (header, data) = split(file)?;
    let header = parse(header)?;
    let elements = elements(&header.descr)?;
    let count = header.shape.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim));
    let count = if header.shape.contains(&0) { Some(0) } else { count };
    let width = match elements {
        Elements::Plain(dtype, _) => dtype.size().unwrap_or_default(),
        Elements::ByteStrings(len) => len,
        Elements::Text(len, _) => len.saturating_mul(4),
    };
    let expected = count.and_then(|count| count.checked_mul(width as u64));
    if expected != Some(data.len() as u64) {
        return Err(corrupt(format!(
            "array has another length than its header says shape=`{:?}` descr=`{}` bytes=`{}`",
            header.shape,
            header.descr,
            data.len()
        )));
    }
    // Strings of no bytes at all: the count is only in the header, and must not be trusted for an allocation.
    if width == 0 && count.is_some_and(|count| count > 1 << 20) {
        return Err(corrupt(format!("too many empty strings shape=`{:?}`", header.shape)));
    }
    let data = if header.fortran_order && header.shape.len() > 1 && !data.is_empty() {
        to_row_major(&data, &header.shape, width)?
    } else {
        data
    };
    match elements {
        Elements::Plain(dtype, 0) => Tensor::new(dtype, header.shape, Buffer::from(data)),
        Elements::Plain(dtype, group) => {
            let mut swapped = Buffer::copy_from(&data)?;
            swapped.as_mut()?.chunks_exact_mut(group).for_each(<[u8]>::reverse);
            Tensor::new(dtype, header.shape, swapped)
        }
        Elements::ByteStrings(len) => {
            let strings: Vec<&[u8]> = cells(&data, len, count.unwrap_or_default()).map(trim).collect();
            Tensor::from_strings(header.shape, &strings)
        }
        Elements::Text(_, code_point) => {
            let strings = cells(&data, width, count.unwrap_or_default()).map(|cell| text(cell, code_point));
            Tensor::from_strings(header.shape, &strings.collect::<Result<Vec<_>>>()?)
        }
    }
}

/// Header and elements.
fn split(file: &Bytes) -> Result<(&str, Bytes)> {
    let wrong = || corrupt("is not a sound .npy array");
    let rest = file.strip_prefix(MAGIC).ok_or_else(wrong)?;
    let ([major, _minor], rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
    let (len, rest) = match major {
        1 => {
            let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
        other => {
            return Err(Error::unsupported(format!("unknown version of the .npy format version=`{other}`")));
        }
    };
    if len > MAX_HEADER_LEN {
        return Err(corrupt(format!("array header is too long bytes=`{len}`")));
    }
    let (header, data) = rest.split_at_checked(len).ok_or_else(wrong)?;
    let header = std::str::from_utf8(header).map_err(|_| wrong())?;
    let data = if data.is_empty() { Bytes::new() } else { file.slice_ref(data) };
    Ok((header, data))
}

/// Reads the dictionary.
fn parse(header: &str) -> Result<Header> {
    let wrong =
        || corrupt(format!("array header does not parse header=`{}`", header.trim_end().escape_debug()));
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    let mut rest = header.trim().strip_prefix('{').ok_or_else(wrong)?.trim_start();
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest).ok_or_else(wrong)?;
        let value = after.trim_start().strip_prefix(':').ok_or_else(wrong)?.trim_start();
        let after = match key {
            "descr" if value.starts_with('[') => {
                return Err(Error::unsupported(format!(
                    "structured arrays are not supported descr=`{}`",
                    value.split(']').next().unwrap_or_default().escape_debug()
                )));
            }
            "descr" => {
                let (text, after) = quoted(value).ok_or_else(wrong)?;
                descr = Some(text.to_owned());
                after
            }
            "fortran_order" => {
                let truth = [("True", true), ("False", false)];
                let found = truth.iter().find_map(|(word, truth)| Some((value.strip_prefix(word)?, truth)));
                let (after, truth) = found.ok_or_else(wrong)?;
                fortran_order = Some(*truth);
                after
            }
            "shape" => {
                let (dims, after) =
                    value.strip_prefix('(').and_then(|dims| dims.split_once(')')).ok_or_else(wrong)?;
                let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
                // Python 2 wrote long integers with an L.
                let dims =
                    dims.map(|dim| dim.trim_end_matches('L').parse().ok()).collect::<Option<Vec<u64>>>();
                shape = Some(dims.ok_or_else(wrong)?);
                after
            }
            _ => return Err(wrong()),
        };
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.starts_with('}') => after,
            None => return Err(wrong()),
        };
    }
    let found = descr.zip(fortran_order).zip(shape);
    let ((descr, fortran_order), shape) = found.ok_or_else(wrong)?;
    Ok(Header { descr, fortran_order, shape })
}

/// A quoted word and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text.get(1..)?.split_once(quote)
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

/// The cells of `width` bytes; of no bytes, `count` of them.
fn cells(data: &[u8], width: usize, count: u64) -> impl Iterator<Item = &[u8]> {
    let empty = if width == 0 { count } else { 0 };
    data.chunks_exact(width.max(1)).chain((0..empty).map(|_| &[][..]))
}

/// Without the NULs that fill a cell.
fn trim(cell: &[u8]) -> &[u8] {
    let len = cell.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    cell.get(..len).unwrap_or_default()
}

fn text(cell: &[u8], code_point: fn([u8; 4]) -> u32) -> Result<String> {
    let points = cell.chunks_exact(4).filter_map(|bytes| bytes.first_chunk()).map(|bytes| code_point(*bytes));
    let chars = points.map(|point| {
        char::from_u32(point)
            .ok_or_else(|| corrupt(format!("string holds what is no character code=`{point:#x}`")))
    });
    let mut text = chars.collect::<Result<String>>()?;
    text.truncate(text.trim_end_matches('\0').len());
    Ok(text)
}

/// An array ready to be written: the header, and the elements.
pub(super) struct Array<'a> {
    header: Vec<u8>,
    data: std::borrow::Cow<'a, [u8]>,
}

impl<'a> Array<'a> {
    /// Fails with `Unsupported`, saying why, for a dtype that numpy does not have.
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (descr, data) = match descr_of(tensor.dtype()) {
            Some(descr) => (descr.to_owned(), std::borrow::Cow::Borrowed(&tensor.data()[..])),
            None if tensor.dtype() == DType::String => {
                let (descr, data) = string_cells(&tensor.strings()?)?;
                (descr, data.into())
            }
            None => {
                return Err(Error::unsupported(format!(
                    "numpy has no such dtype; export a .safetensors file dtype=`{}`",
                    tensor.dtype()
                )));
            }
        };
        Ok(Self { header: header(&descr, tensor.shape()), data })
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

/// Strings in cells of one width, as text if all of them are, else as bytes. numpy cuts NULs off the end of a cell, so a string that
/// ends in one cannot be told from a shorter one.
fn string_cells(strings: &[&[u8]]) -> Result<(String, Vec<u8>)> {
    if strings.iter().any(|string| string.last() == Some(&0)) {
        return Err(Error::unsupported("numpy cannot hold a string that ends in a NUL"));
    }
    let texts: Option<Vec<&str>> = strings.iter().map(|string| std::str::from_utf8(string).ok()).collect();
    let Some(texts) = texts else {
        let width = strings.iter().map(|string| string.len()).max().unwrap_or(0).max(1);
        let cells =
            strings.iter().flat_map(|string| string.iter().copied().chain(std::iter::repeat(0)).take(width));
        return Ok((format!("|S{width}"), cells.collect()));
    };
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    let points =
        texts.iter().flat_map(|text| text.chars().map(u32::from).chain(std::iter::repeat(0)).take(width));
    Ok((format!("<U{width}"), points.flat_map(u32::to_le_bytes).collect()))
}

/// A header, padded so that the elements begin at a multiple of 64 bytes.
fn header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    let dims = if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches([',', ' ']) };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Version 1 has two bytes for the length.
    let fixed = if text.len() + 64 < usize::from(u16::MAX) { 10 } else { 12 };
    let padded = (fixed + text.len() + 1).next_multiple_of(64) - fixed;
    text.extend(std::iter::repeat_n(' ', padded - text.len() - 1));
    text.push('\n');
    let mut header = MAGIC.to_vec();
    match u16::try_from(text.len()) {
        Ok(len) if fixed == 10 => {
            header.extend_from_slice(&[1, 0]);
            header.extend_from_slice(&len.to_le_bytes());
        }
        _ => {
            header.extend_from_slice(&[2, 0]);
            header.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
    header.extend_from_slice(text.as_bytes());
    header
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
    fn the_header_is_numpys() {
        let cases: [(&[u64], &str); 4] =
            [(&[], "()"), (&[3], "(3,)"), (&[2, 3], "(2, 3)"), (&[0, 1, 2], "(0, 1, 2)")];
        for (shape, text) in cases {
            let header = header("<f4", shape);
            assert_eq!(header.len() % 64, 0);
            let dict = std::str::from_utf8(&header[10..]).unwrap();
            assert_eq!(
                dict.trim_end(),
                format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {text}, }}")
            );
            assert!(dict.ends_with('\n'));
        }
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
}
