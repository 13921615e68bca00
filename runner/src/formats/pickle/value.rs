//! The values of a pickle, and the heap of objects that they refer to.

use std::cell::Cell;

use bytes::Bytes;
use ckpt_engine::{Error, Result};

use super::arrays::{Array, Dtype};
use super::calls::Global;

/// A value. Those that do not fit a word are objects on the [`Heap`], which may refer to each other in any way: a pickle can say "this
/// list again", and a list can hold itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Global(Global),
    Object(Id),
}

/// The number of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(u32);

#[derive(Debug)]
pub(super) enum Object {
    /// An integer that does not fit an `i64`; its value if it fits a `u64`.
    Big(Option<u64>),
    Complex([f64; 2]),
    /// A `str` of Python 3 or a `unicode` of Python 2: valid UTF-8.
    Text(Bytes),
    /// `bytes`, `bytearray` or a `str` of Python 2.
    Bytes(Bytes),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    /// A set, in the order of the file.
    Set(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Dtype(Dtype),
    /// An array or a numpy scalar; an array is made empty and filled later.
    Array(Option<Box<Array>>),
}

/// How much memory may still be taken.
///
/// A file that holds arrays needs about its own length once more, or twice if elements are to be swapped. Small objects take more than
/// their opcodes, so that a few of them are free.
#[derive(Debug)]
pub(super) struct Budget(Cell<usize>);

impl Budget {
    const FREE: usize = 16 << 20;
    const TIMES: usize = 4;

    pub(super) fn new(file_len: usize) -> Self {
        Self(Cell::new(file_len.saturating_mul(Self::TIMES).saturating_add(Self::FREE)))
    }

    /// To be called before so many bytes are taken.
    pub(super) fn spend(&self, bytes: usize) -> Result<()> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.ok_or_else(|| {
            Error::unsupported(format!(
                "pickle unfolds to far more than its own length; it is allowed `{}` times that and `{}` MiB",
                Self::TIMES,
                Self::FREE >> 20
            ))
        })?);
        Ok(())
    }
}

/// All objects of a pickle, also those that it dropped again.
#[derive(Debug)]
pub(super) struct Heap {
    objects: Vec<Object>,
    pub(super) budget: Budget,
}

impl Heap {
    pub(super) fn new(file_len: usize) -> Self {
        Self { objects: Vec::new(), budget: Budget::new(file_len) }
    }

    /// Takes an object in. What it owns besides, if it is not from the stack, is counted by who made it.
    pub(super) fn add(&mut self, object: Object) -> Result<Value> {
        self.budget.spend(size_of::<Object>())?;
        let id = u32::try_from(self.objects.len()).map_err(|_| Error::unsupported("too many objects"))?;
        self.objects.push(object);
        Ok(Value::Object(Id(id)))
    }

    /// An integer; what does not fit an `i128` may be any that does not fit a `u64`.
    pub(super) fn add_integer(&mut self, integer: i128) -> Result<Value> {
        match i64::try_from(integer) {
            Ok(small) => Ok(Value::Int(small)),
            Err(_) => self.add(Object::Big(u64::try_from(integer).ok())),
        }
    }

    /// UTF-8, or an error.
    pub(super) fn add_text(&mut self, text: Bytes) -> Result<Value> {
        std::str::from_utf8(&text).map_err(|_| Error::corrupt("string is not UTF-8"))?;
        self.add(Object::Text(text))
    }

    pub(super) fn get(&self, value: Value) -> Option<&Object> {
        let Value::Object(Id(id)) = value else { return None };
        self.objects.get(id as usize)
    }

    pub(super) fn get_mut(&mut self, value: Value) -> Option<&mut Object> {
        let Value::Object(Id(id)) = value else { return None };
        self.objects.get_mut(id as usize)
    }

    /// The bytes of a string of either kind.
    pub(super) fn string(&self, value: Value) -> Option<&Bytes> {
        match self.get(value)? {
            Object::Text(string) | Object::Bytes(string) => Some(string),
            _ => None,
        }
    }

    /// A string of either kind that is UTF-8.
    pub(super) fn text(&self, value: Value) -> Option<&str> {
        std::str::from_utf8(self.string(value)?).ok()
    }

    pub(super) fn tuple(&self, value: Value) -> Option<&[Value]> {
        match self.get(value)? {
            Object::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The items of a list, a tuple or a set.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match self.get(value)? {
            Object::List(items) | Object::Tuple(items) | Object::Set(items) => Some(items),
            _ => None,
        }
    }
}

/// An integer, which a bool is to Python.
pub(super) fn integer(value: Value) -> Option<i64> {
    match value {
        Value::Bool(truth) => Some(i64::from(truth)),
        Value::Int(integer) => Some(integer),
        _ => None,
    }
}

/// A number as a float, if that does not change it.
pub(super) fn float(value: Value) -> Option<f64> {
    match value {
        Value::Float(float) => Some(float),
        _ => {
            let integer = integer(value)?;
            Some(integer as f64).filter(|float| *float as i128 == i128::from(integer))
        }
    }
}
