//! The functions that a pickle may call. They are known by their names and done here, with what Python would make of the same arguments.

use bytes::Bytes;
use ckpt_engine::{Error, Result};

use super::arrays::{self, Array, Dtype};
use super::text;
use super::value::{Heap, Object, Value, float};

/// No function has more arguments.
pub(super) const MAX_ARGS: usize = 8;

/// A class or function that only makes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    Reconstruct,
    NdArray,
    Dtype,
    Scalar,
    FromBuffer,
    Encode,
    OrderedDict,
    Set,
    Bytes,
    ByteArray,
    Complex,
}

impl Global {
    /// Fails with `Unsupported` for whatever else there is.
    pub(super) fn named(module: &[u8], name: &[u8]) -> Result<Self> {
        Ok(match (module, name) {
            (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"_reconstruct") => Self::Reconstruct,
            (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"scalar") => Self::Scalar,
            (b"numpy.core.numeric" | b"numpy._core.numeric", b"_frombuffer") => Self::FromBuffer,
            (b"numpy", b"ndarray") => Self::NdArray,
            (b"numpy", b"dtype") => Self::Dtype,
            // Python 3 writes bytes so, in protocols that have only text.
            (b"_codecs", b"encode") => Self::Encode,
            (b"collections", b"OrderedDict") => Self::OrderedDict,
            (b"__builtin__" | b"builtins", b"set" | b"frozenset") => Self::Set,
            (b"__builtin__" | b"builtins", b"bytes") => Self::Bytes,
            (b"__builtin__" | b"builtins", b"bytearray") => Self::ByteArray,
            (b"__builtin__" | b"builtins", b"complex") => Self::Complex,
            _ => {
                return Err(Error::unsupported(format!(
                    "pickle wants a Python class that is not data, which is never run global=`{}.{}`",
                    shown(module),
                    shown(name)
                )));
            }
        })
    }
}

/// The beginning of a name, fit for one line.
fn shown(name: &[u8]) -> String {
    name.get(..100).unwrap_or(name).escape_ascii().to_string()
}

/// Calls a function.
pub(super) fn call(heap: &mut Heap, function: Value, args: &[Value]) -> Result<Value> {
    let Value::Global(global) = function else {
        return Err(Error::corrupt("what is called is no function"));
    };
    let wrong = || Error::corrupt(format!("function has unknown arguments function=`{global:?}`"));
    match (global, args) {
        (Global::Reconstruct, [Value::Global(Global::NdArray), _, _]) => heap.add(Object::Array(None)),
        (Global::Dtype, [name, ..]) => {
            let dtype = Dtype::named(heap.string(*name).ok_or_else(wrong)?)?;
            heap.add(Object::Dtype(dtype))
        }
        (Global::Scalar, [dtype, data]) => {
            let array = Array::scalar(heap, *dtype, *data)?;
            heap.add(Object::Array(Some(Box::new(array))))
        }
        (Global::FromBuffer, [data, dtype, shape, order, axes @ ..]) => {
            let array = Array::from_buffer(heap, *data, *dtype, *shape, (*order, axes.first().copied()))?;
            heap.add(Object::Array(Some(Box::new(array))))
        }
        (Global::Encode | Global::ByteArray, [text, codec]) => {
            let codec = heap.string(*codec).map(|codec| &**codec);
            if !matches!(codec, Some(b"latin1" | b"latin-1")) {
                return Err(wrong());
            }
            let text = heap.string(*text).ok_or_else(wrong)?;
            heap.budget.spend(text.len())?;
            let bytes = std::str::from_utf8(text).ok().and_then(text::latin1).ok_or_else(wrong)?;
            heap.add(Object::Bytes(bytes.into()))
        }
        (Global::Bytes | Global::ByteArray, []) => heap.add(Object::Bytes(Bytes::new())),
        (Global::Bytes | Global::ByteArray, [data]) => match heap.get(*data) {
            Some(Object::Bytes(bytes)) => {
                let bytes = bytes.clone();
                heap.add(Object::Bytes(bytes))
            }
            _ => Err(wrong()),
        },
        (Global::Set, []) => heap.add(Object::Set(Vec::new())),
        (Global::Set, [items]) => {
            let items = heap.items(*items).ok_or_else(wrong)?;
            heap.budget.spend(size_of_val(items))?;
            let items = items.to_vec();
            heap.add(Object::Set(items))
        }
        (Global::OrderedDict, []) => heap.add(Object::Dict(Vec::new())),
        (Global::OrderedDict, [items]) => {
            let entries = ordered(heap, *items)?.ok_or_else(wrong)?;
            heap.add(Object::Dict(entries))
        }
        (Global::Complex, [real, imaginary]) => {
            let parts = float(*real).zip(float(*imaginary)).ok_or_else(wrong)?;
            heap.add(Object::Complex(parts.into()))
        }
        _ => Err(wrong()),
    }
}

/// The entries of a list of pairs.
fn ordered(heap: &Heap, items: Value) -> Result<Option<Vec<(Value, Value)>>> {
    let Some(items) = heap.items(items) else { return Ok(None) };
    heap.budget.spend(items.len().saturating_mul(2 * size_of::<Value>()))?;
    let pair = |item: &Value| match heap.items(*item) {
        Some(&[key, value]) => Some((key, value)),
        _ => None,
    };
    Ok(items.iter().map(pair).collect())
}

/// Fills an array or a dtype with its state.
pub(super) fn build(heap: &mut Heap, target: Value, state: Value) -> Result<()> {
    let wrong = || Error::corrupt("state is for no array or dtype");
    match heap.get(target) {
        Some(Object::Array(_)) => {
            let filled = Object::Array(Some(Box::new(Array::from_state(heap, state)?)));
            *heap.get_mut(target).ok_or_else(wrong)? = filled;
        }
        Some(Object::Dtype(dtype)) => {
            let filled = Object::Dtype(arrays::with_state(heap, dtype, state)?);
            *heap.get_mut(target).ok_or_else(wrong)? = filled;
        }
        _ => return Err(wrong()),
    }
    Ok(())
}
