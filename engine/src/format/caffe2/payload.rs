//! Payload: from what a record holds to elements in memory, and back.

use super::record::{Encoding, TensorPiece};
use super::wire::{Form, ReadAt, Run, field, varint};
use crate::blob::{DType, to_usize};
use crate::error::{Error, Result};

/// How much of a record is decoded at a time.
pub const WINDOW: usize = 16 << 20;

/// What a decoding step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Step {
    /// Bytes of the record that were used up.
    consumed: usize,
    /// Bytes of elements that were made.
    written: usize,
}

/// Decodes all elements of a piece, which are not strings, into `out`, which is as long as they are in memory.
pub fn fill(piece: &TensorPiece, read: &mut ReadAt<'_>, mut out: &mut [u8]) -> Result<()> {
    let mut window = Vec::new();
    for run in &piece.runs {
        let mut at = run.range.start;
        while at < run.range.end {
            let len = to_usize(run.range.end - at)?.min(WINDOW);
            window.resize(len, 0);
            read(at, &mut window)?;
            let step = decode(piece, run, &window, out)?;
            if step.consumed == 0 {
                return Err(miscounted(piece));
            }
            at += step.consumed as u64;
            out = out.split_at_mut_checked(step.written).map(|(_, rest)| rest).unwrap_or_default();
        }
    }
    if out.is_empty() { Ok(()) } else { Err(miscounted(piece)) }
}

/// Hands all strings of a piece to `each`, in order.
pub fn each_string(
    piece: &TensorPiece,
    read: &mut ReadAt<'_>,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = Vec::new();
    for run in &piece.runs {
        bytes.resize(to_usize(run.range.end - run.range.start)?, 0);
        read(run.range.start, &mut bytes)?;
        strings(run, &bytes, each)?;
    }
    Ok(())
}

fn miscounted(piece: &TensorPiece) -> Error {
    Error::corrupt(format!(
        "tensor holds another number of values than its segment says dtype=`{}` elements=`{}..{}`",
        piece.dtype, piece.elements.start, piece.elements.end
    ))
}

/// Decodes as many whole elements of a run as `bytes`, a part of it, has, into the front of `out`.
fn decode(piece: &TensorPiece, run: &Run, bytes: &[u8], out: &mut [u8]) -> Result<Step> {
    match (piece.encoding, run.form) {
        (Encoding::Plain, Form::Packed) => plain(piece.dtype, bytes, out),
        (Encoding::Bf16, _) => bf16(bytes, out),
        (Encoding::Varint, form) => varints(piece.dtype, form, bytes, out),
        (Encoding::Plain, Form::Tagged) => tagged(run, bytes, out),
        (Encoding::Strings, _) => Err(Error::internal("strings are not decoded piece by piece")),
    }
}

fn plain(dtype: DType, bytes: &[u8], out: &mut [u8]) -> Result<Step> {
    let size = dtype.size().unwrap_or(1);
    let len = bytes.len().min(out.len()) / size * size;
    let (from, to) = (bytes.get(..len).unwrap_or_default(), out.get_mut(..len).unwrap_or_default());
    to.copy_from_slice(from);
    // A bool that is neither 0 nor 1 is damage.
    if dtype == DType::Bool && to.iter().any(|&byte| byte > 1) {
        return Err(out_of_range(dtype));
    }
    Ok(Step { consumed: len, written: len })
}

fn bf16(bytes: &[u8], out: &mut [u8]) -> Result<Step> {
    let mut step = Step::default();
    for (from, to) in bytes.chunks_exact(2).zip(out.chunks_exact_mut(4)) {
        if let ([low, high], to) = (from, to) {
            to.copy_from_slice(&[0, 0, *low, *high]);
        }
        step = Step { consumed: step.consumed + 2, written: step.written + 4 };
    }
    Ok(step)
}

/// Elements one by one, each with its tag: a fixed size.
fn tagged(run: &Run, bytes: &[u8], out: &mut [u8]) -> Result<Step> {
    let size = if run.field == field::DOUBLE { 8 } else { 4 };
    let mut step = Step::default();
    while let Some((_, tag)) = bytes.get(step.consumed..).and_then(varint) {
        let start = step.consumed + tag;
        let (from, to) = (bytes.get(start..start + size), out.get_mut(step.written..step.written + size));
        let Some((from, to)) = from.zip(to) else { break };
        to.copy_from_slice(from);
        step = Step { consumed: start + size, written: step.written + size };
    }
    Ok(step)
}

fn varints(dtype: DType, form: Form, bytes: &[u8], out: &mut [u8]) -> Result<Step> {
    let size = dtype.size().unwrap_or(1);
    let mut step = Step::default();
    while let Some(to) = out.get_mut(step.written..step.written + size) {
        let mut rest = bytes.get(step.consumed..).unwrap_or_default();
        let mut len = 0;
        if form == Form::Tagged {
            let Some((_, tag)) = varint(rest) else { break };
            rest = rest.get(tag..).unwrap_or_default();
            len = tag;
        }
        let Some((value, value_len)) = varint(rest) else {
            // Longer than any number: not only cut.
            if rest.len() >= 10 {
                return Err(Error::corrupt("tensor holds a number that does not end"));
            }
            break;
        };
        store(dtype, value, to)?;
        step = Step { consumed: step.consumed + len + value_len, written: step.written + size };
    }
    Ok(step)
}

/// Writes a number as an element; one that does not fit is damage.
fn store(dtype: DType, value: u64, to: &mut [u8]) -> Result<()> {
    // As protobuf does: an int32 is the lower half of its varint.
    let wide = value.cast_signed();
    let narrow = value as u32 as i32;
    let wrong = |_| out_of_range(dtype);
    match dtype {
        DType::I64 => to.copy_from_slice(&wide.to_le_bytes()),
        DType::I32 => to.copy_from_slice(&narrow.to_le_bytes()),
        DType::Bool if narrow & !1 != 0 => return Err(out_of_range(dtype)),
        DType::Bool | DType::U8 => to.copy_from_slice(&u8::try_from(narrow).map_err(wrong)?.to_le_bytes()),
        DType::I8 => to.copy_from_slice(&i8::try_from(narrow).map_err(wrong)?.to_le_bytes()),
        DType::U16 | DType::F16 => {
            to.copy_from_slice(&u16::try_from(narrow).map_err(wrong)?.to_le_bytes());
        }
        DType::I16 => to.copy_from_slice(&i16::try_from(narrow).map_err(wrong)?.to_le_bytes()),
        _ => return Err(Error::internal("dtype is not written as numbers")),
    }
    Ok(())
}

fn out_of_range(dtype: DType) -> Error {
    Error::corrupt(format!("tensor holds a number that its dtype has not dtype=`{dtype}`"))
}

/// The strings of a run, given whole, in order.
fn strings(run: &Run, bytes: &[u8], each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let wrong = || Error::corrupt("tensor holds a string that does not end");
    let mut rest = bytes;
    for _ in 0..run.count {
        let (_, tag) = varint(rest).ok_or_else(wrong)?;
        rest = rest.get(tag..).unwrap_or_default();
        let (len, prefix) = varint(rest).ok_or_else(wrong)?;
        let end = usize::try_from(len).ok().and_then(|len| prefix.checked_add(len)).ok_or_else(wrong)?;
        each(rest.get(prefix..end).ok_or_else(wrong)?)?;
        rest = rest.get(end..).unwrap_or_default();
    }
    Ok(())
}

/// Elements of a dtype that Caffe2 keeps in `int32_data` or `int64_data`, as varints.
pub fn encode_varints(dtype: DType, elements: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(elements.len());
    let size = dtype.size().unwrap_or(1);
    for element in elements.chunks_exact(size) {
        let value = match (dtype, element) {
            (DType::Bool | DType::U8, [byte]) => i64::from(*byte),
            (DType::I8, [byte]) => i64::from(byte.cast_signed()),
            (DType::U16 | DType::F16, [a, b]) => i64::from(u16::from_le_bytes([*a, *b])),
            (DType::I16, [a, b]) => i64::from(i16::from_le_bytes([*a, *b])),
            (DType::I32, [a, b, c, d]) => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
            (DType::I64, [a, b, c, d, e, f, g, h]) => i64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
            _ => return Err(Error::internal("dtype is not written as numbers")),
        };
        prost::encoding::encode_varint(value.cast_unsigned(), &mut out);
    }
    Ok(out)
}

/// `f32`s as the upper halves that Caffe2 keeps of them: rounded half up in magnitude, so that what it wrote comes out again. A NaN
/// stays a NaN; Caffe2 makes numbers of some.
pub fn encode_bf16(elements: &[u8]) -> Vec<u8> {
    let halves = elements.chunks_exact(4).flat_map(|element| {
        let bits = element.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let half = if f32::from_bits(bits).is_nan() {
            // A quiet one, with its sign.
            (bits >> 16) | 0x40
        } else {
            bits.wrapping_add(0x8000) >> 16
        };
        (half as u16).to_le_bytes()
    });
    halves.collect()
}
