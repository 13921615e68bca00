//! Nets: what a predictor export says of its model, and weights that are given as arguments of operators (`init_net.pb`).

use prost::Message;

use super::proto::{Argument, MetaNetDef, NetDef, OperatorDef};
use crate::blob::{Blob, Tensor, Workspace};
use crate::error::{Error, Result, ResultExt};

/// The key of the model's description in a predictor export. An export that has a name puts `_<name>` behind it.
pub const META_NET_DEF: &str = "!!META_NET_DEF";

/// What a predictor export says of one of its nets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetInfo {
    /// What the net is for, such as `PREDICT_NET_TYPE`.
    pub role: String,
    /// Its own name.
    pub name: String,
    /// Blobs that it needs.
    pub inputs: Vec<String>,
    /// Blobs that it gives.
    pub outputs: Vec<String>,
    /// How many operators.
    pub operators: usize,
}

/// What a predictor export says of its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its nets.
    pub nets: Vec<NetInfo>,
    /// Lists of blobs by what they are for, such as `PARAMETERS_BLOB_TYPE`.
    pub blobs: Vec<(String, Vec<String>)>,
}

/// Whether a blob of this name describes a model.
pub fn is_meta_net(name: &str) -> bool {
    name.strip_prefix(META_NET_DEF).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Reads the content of a blob that [`is_meta_net`].
pub fn model_info(content: &[u8]) -> Result<ModelInfo> {
    let meta = MetaNetDef::decode(content)
        .map_err(|error| Error::corrupt("description of the model does not parse").with_source(error))?;
    let net = |map: super::proto::NetsMap| NetInfo {
        role: map.key,
        name: map.value.name.unwrap_or_default(),
        inputs: map.value.external_input,
        outputs: map.value.external_output,
        operators: map.value.op.len(),
    };
    Ok(ModelInfo {
        nets: meta.nets.into_iter().map(net).collect(),
        blobs: meta.blobs.into_iter().map(|map| (map.key, map.value)).collect(),
    })
}

/// The weights in an `init_net.pb`: a net whose operators fill blobs with given values.
pub fn init_net_weights(file: &[u8]) -> Result<Workspace> {
    let net =
        NetDef::decode(file).map_err(|error| Error::corrupt("file is not a NetDef").with_source(error))?;
    let mut workspace = Workspace::new();
    for op in &net.op {
        let kind = op.r#type.as_deref().unwrap_or_default();
        let [output] = op.output.as_slice() else {
            return Err(Error::unsupported(format!(
                "operator has not one output; this net is no init net operator=`{kind}`"
            )));
        };
        let blobs = fill(op, kind, output).context(|| format!("blob `{output}`"))?;
        for (name, blob) in blobs {
            if workspace.insert(name.clone(), blob).is_some() {
                return Err(Error::invalid(format!("net fills a blob twice blob=`{name}`")));
            }
        }
    }
    if workspace.is_empty() {
        return Err(Error::invalid(
            "net fills no blobs: is it a predict net? the weights are in the init net",
        ));
    }
    Ok(workspace)
}

/// The blobs that an operator fills; the types and arguments are Caffe2's.
fn fill(op: &OperatorDef, kind: &str, output: &str) -> Result<Vec<(String, Blob)>> {
    let shape = shape_of(op)?;
    let values = argument(op, "values");
    let ints = || values.map(|values| values.ints.as_slice()).unwrap_or_default();
    let floats = || values.map(|values| values.floats.as_slice()).unwrap_or_default();
    let tensor = match kind {
        "GivenTensorFill" => Tensor::from_slice(shape, floats()),
        "GivenTensorDoubleFill" => {
            Tensor::from_vec(shape, floats().iter().map(|&value| f64::from(value)).collect())
        }
        "GivenTensorIntFill" => narrow::<i32>(shape, ints()),
        "GivenTensorInt16Fill" => narrow::<i16>(shape, ints()),
        "GivenTensorInt64Fill" => Tensor::from_slice(shape, ints()),
        "GivenTensorBoolFill" => Tensor::from_vec(shape, ints().iter().map(|&value| value != 0).collect()),
        "GivenTensorStringFill" => Tensor::from_strings(shape, strings(values)),
        "GivenTensorByteStringToUInt8Fill" => bytes(shape, values),
        "Int8GivenTensorFill" | "Int8GivenIntTensorFill" => {
            let elements = if kind == "Int8GivenTensorFill" {
                bytes(shape, values)?
            } else {
                narrow::<i32>(shape, ints())?
            };
            return Ok(quantized(op, output, elements));
        }
        "ConstantFill" => constant(op, shape),
        _ => {
            return Err(Error::unsupported(format!(
                "operator does not give values; only the weights of an init net can be read operator=`{kind}`"
            )));
        }
    };
    let tensor = tensor.map_err(|error| error.with_kind(crate::ErrorKind::Corrupt))?;
    Ok(vec![(output.to_owned(), tensor.into())])
}

fn argument<'o>(op: &'o OperatorDef, name: &str) -> Option<&'o Argument> {
    op.arg.iter().find(|argument| argument.name.as_deref() == Some(name))
}

fn shape_of(op: &OperatorDef) -> Result<Vec<u64>> {
    let dims = argument(op, "shape").map(|shape| shape.ints.as_slice()).unwrap_or_default();
    let shape = dims.iter().map(|&dim| u64::try_from(dim).ok()).collect::<Option<Vec<_>>>();
    shape.ok_or_else(|| Error::corrupt("shape has a negative dimension"))
}

fn strings(values: Option<&Argument>) -> &[Vec<u8>] {
    values.map(|values| values.strings.as_slice()).unwrap_or_default()
}

/// One string whose bytes are the elements.
fn bytes(shape: Vec<u64>, values: Option<&Argument>) -> Result<Tensor> {
    let given = values.and_then(|values| values.s.as_deref().or(values.strings.first().map(Vec::as_slice)));
    Tensor::from_slice(shape, given.unwrap_or_default())
}

fn narrow<T: crate::blob::Element + TryFrom<i64>>(shape: Vec<u64>, values: &[i64]) -> Result<Tensor> {
    let narrowed: std::result::Result<Vec<T>, _> = values.iter().map(|&value| T::try_from(value)).collect();
    let narrowed =
        narrowed.map_err(|_| Error::corrupt(format!("value does not fit its dtype dtype=`{}`", T::DTYPE)))?;
    Tensor::from_vec(shape, narrowed)
}

fn quantized(op: &OperatorDef, output: &str, elements: Tensor) -> Vec<(String, Blob)> {
    let scale = argument(op, "Y_scale").and_then(|scale| scale.f).unwrap_or(1.0);
    let zero_point = argument(op, "Y_zero_point").and_then(|zero| zero.i).unwrap_or(0);
    vec![
        (output.to_owned(), elements.into()),
        (format!("{output}.scale"), Tensor::scalar(f64::from(scale)).into()),
        (format!("{output}.zero_point"), Tensor::scalar(zero_point as i32).into()),
    ]
}

/// A tensor of one value. Its length is not in the file, so it is bounded.
fn constant(op: &OperatorDef, shape: Vec<u64>) -> Result<Tensor> {
    const MOST: u64 = 64 << 20;
    let count = crate::blob::element_count(&shape)?;
    if count > MOST {
        return Err(Error::unsupported(format!("constant has too many elements elements=`{count}`")));
    }
    let count = crate::blob::to_usize(count)?;
    let value = argument(op, "value");
    let (float, int) = (value.and_then(|value| value.f), value.and_then(|value| value.i));
    let dtype = argument(op, "dtype").and_then(|dtype| dtype.i).unwrap_or(1);
    match dtype {
        1 => Tensor::from_vec(shape, vec![float.unwrap_or(0.0); count]),
        2 => narrow::<i32>(shape, &vec![int.unwrap_or(0); count]),
        5 => Tensor::from_vec(shape, vec![int.unwrap_or(0) != 0; count]),
        10 => Tensor::from_vec(shape, vec![int.unwrap_or(0); count]),
        _ => Err(Error::unsupported(format!("constant of this data type data_type=`{dtype}`"))),
    }
}
