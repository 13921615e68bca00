//! The values of a pickle as blobs and metadata.

use std::collections::{BTreeMap, HashMap};

use ckpt_engine::blob::{Buffer, DType, Tensor, Workspace};
use ckpt_engine::{Error, Result, ResultExt};

use super::value::{Heap, Id, Object, Value, float, integer};

/// How deep dicts may lie in dicts. One that holds itself is deeper than any.
const MAX_DEPTH: usize = 200;

/// What an entry takes besides its name.
const ENTRY: usize = 128;

/// The dict whose entries are the blobs themselves.
const BLOBS: &str = "blobs";

/// The blobs and the metadata of a pickled dict.
pub(super) fn of(heap: &Heap, root: Value) -> Result<(Workspace, BTreeMap<String, String>)> {
    let Some(Object::Dict(entries)) = heap.get(root) else {
        return Err(Error::unsupported("pickle is not a dict of names and arrays"));
    };
    let mut found =
        Found { heap, tensors: HashMap::new(), workspace: Workspace::new(), metadata: BTreeMap::new() };
    for &(key, value) in entries {
        let name = found.name("", key)?;
        match heap.get(value) {
            Some(Object::Dict(blobs)) if name == BLOBS => found.dict("", blobs, true, 1)?,
            _ => found.entry(&name, value, false, 1)?,
        }
    }
    Ok((found.workspace, found.metadata))
}

struct Found<'a> {
    heap: &'a Heap,
    /// The tensors of objects: what has two names is shared, and takes memory once.
    tensors: HashMap<Id, Tensor>,
    workspace: Workspace,
    metadata: BTreeMap<String, String>,
}

impl Found<'_> {
    /// The name of an entry of the dict that `prefix` names.
    fn name(&self, prefix: &str, key: Value) -> Result<String> {
        let number;
        let key = match key {
            Value::Int(key) => {
                number = key.to_string();
                &number
            }
            _ => self.heap.text(key).ok_or_else(|| {
                Error::unsupported(format!(
                    "a key is neither text nor an integer dict=`{}`",
                    prefix.escape_debug()
                ))
            })?,
        };
        self.heap.budget.spend(ENTRY + prefix.len() + key.len())?;
        Ok(if prefix.is_empty() { key.to_owned() } else { format!("{prefix}/{key}") })
    }

    fn dict(
        &mut self,
        prefix: &str,
        entries: &[(Value, Value)],
        are_blobs: bool,
        depth: usize,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::unsupported(format!("dicts lie too deep in dicts allowed=`{MAX_DEPTH}`")));
        }
        for &(key, value) in entries {
            let name = self.name(prefix, key)?;
            self.entry(&name, value, are_blobs, depth)?;
        }
        Ok(())
    }

    /// Puts an entry where it belongs. Strings are metadata, but for those among the blobs.
    fn entry(&mut self, name: &str, value: Value, is_blob: bool, depth: usize) -> Result<()> {
        let text = match self.heap.string(value) {
            Some(string) if !is_blob => {
                // Before it is looked at: time is limited with the memory.
                self.heap.budget.spend(string.len())?;
                self.heap.text(value)
            }
            _ => None,
        };
        let replaced = match (self.heap.get(value), text) {
            (None, _) if value == Value::None => {
                tracing::warn!(name, "entry of the pickle is None and passed over");
                false
            }
            (Some(Object::Dict(entries)), _) => return self.dict(name, entries, is_blob, depth + 1),
            (_, Some(text)) => self.metadata.insert(name.to_owned(), text.to_owned()).is_some(),
            _ => {
                let tensor = self.tensor(value).context(|| format!("entry `{}`", name.escape_debug()))?;
                self.workspace.insert(name, tensor).is_some()
            }
        };
        if replaced {
            return Err(Error::invalid(format!(
                "two entries of the pickle have the same name name=`{}`",
                name.escape_debug()
            )));
        }
        Ok(())
    }

    /// The tensor of a value, the same one again for the same object.
    fn tensor(&mut self, value: Value) -> Result<Tensor> {
        let Value::Object(id) = value else { return scalar(value) };
        if let Some(tensor) = self.tensors.get(&id) {
            return Ok(tensor.clone());
        }
        let tensor = self.object(value)?;
        self.tensors.insert(id, tensor.clone());
        Ok(tensor)
    }

    fn object(&mut self, value: Value) -> Result<Tensor> {
        let heap = self.heap;
        let object = heap.get(value).ok_or_else(|| Error::internal("object of a pickle is not there"))?;
        match object {
            Object::Big(Some(integer)) => Ok(Tensor::scalar(*integer)),
            Object::Big(None) => Err(Error::unsupported("integer does not fit 64 bits")),
            Object::Complex(parts) => Ok(Tensor::scalar(*parts)),
            Object::Text(string) | Object::Bytes(string) => {
                heap.budget.spend(string.len())?;
                Tensor::from_strings([], &[string])
            }
            Object::List(items) | Object::Tuple(items) | Object::Set(items) => self.sequence(items),
            Object::Array(Some(array)) => array.tensor(heap),
            Object::Array(None) => Err(Error::corrupt("array was made and never filled")),
            Object::Dict(_) => Err(Error::unsupported("dict is not a tensor")),
            Object::Dtype(_) => Err(Error::unsupported("dtype is not a tensor")),
        }
    }

    /// A tensor of one dimension, of what numpy would take for items such as these.
    fn sequence(&mut self, items: &[Value]) -> Result<Tensor> {
        let heap = self.heap;
        heap.budget.spend(items.len().saturating_mul(8))?;
        let shape = [items.len() as u64];
        let is_bool = |item: &Value| match item {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        };
        if items.is_empty() {
            return Tensor::from_slice::<f64>(shape, &[]);
        }
        if let Some(bools) = all(items, is_bool) {
            return Tensor::from_vec(shape, bools);
        }
        if let Some(integers) = all(items, |item| integer(*item)) {
            return Tensor::from_vec(shape, integers);
        }
        if let Some(floats) = all(items, |item| float(*item)) {
            return Tensor::from_vec(shape, floats);
        }
        if let Some(strings) = all(items, |item| heap.string(*item)) {
            strings.iter().try_for_each(|string| heap.budget.spend(string.len()))?;
            return Tensor::from_strings(shape, &strings);
        }
        self.numpy_scalars(items)
    }

    /// A list of numpy scalars of one dtype.
    fn numpy_scalars(&mut self, items: &[Value]) -> Result<Tensor> {
        let mixed =
            || Error::unsupported("list holds neither numbers only nor strings only, or of several dtypes");
        let mut data = Vec::new();
        let mut dtype: Option<DType> = None;
        for &item in items {
            let Some(Object::Array(_)) = self.heap.get(item) else { return Err(mixed()) };
            let scalar = self.tensor(item)?;
            let is_other = *dtype.get_or_insert(scalar.dtype()) != scalar.dtype();
            if is_other || scalar.dtype() == DType::String || !scalar.shape().is_empty() {
                return Err(mixed());
            }
            data.extend_from_slice(scalar.data());
        }
        let dtype = dtype.ok_or_else(mixed)?;
        Tensor::new(dtype, [items.len() as u64], Buffer::copy_from(&data)?)
    }
}

/// A number as a tensor.
fn scalar(value: Value) -> Result<Tensor> {
    match value {
        Value::Bool(truth) => Ok(Tensor::scalar(truth)),
        Value::Int(integer) => Ok(Tensor::scalar(integer)),
        Value::Float(float) => Ok(Tensor::scalar(float)),
        _ => Err(Error::unsupported("is no data")),
    }
}

/// What `part` finds in every item.
fn all<T>(items: &[Value], part: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    items.iter().map(part).collect()
}
