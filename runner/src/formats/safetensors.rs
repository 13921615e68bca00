//! `.safetensors` files: read without a copy, written straight from the workspace.

use std::collections::BTreeMap;
use std::io::Write;

use bytes::Bytes;
use ckpt_engine::blob::{Blob, Buffer, DType, Tensor, Workspace};
use ckpt_engine::{Error, ErrorKind, Result, ResultExt};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

/// The longest header that readers accept, in bytes.
const MAX_HEADER_LEN: usize = 100_000_000;

pub(super) fn read(file: &Bytes) -> Result<(Workspace, BTreeMap<String, String>)> {
    let wrong = |error| Error::new(ErrorKind::Corrupt, "is not a sound .safetensors file").with_source(error);
    let (_, header) = SafeTensors::read_metadata(file).map_err(wrong)?;
    let tensors = SafeTensors::deserialize(file).map_err(wrong)?;
    let mut workspace = Workspace::new();
    for (name, view) in tensors.iter() {
        let dtype = dtype_of(view.dtype()).context(|| format!("tensor `{name}`"))?;
        let shape: Vec<u64> = view.shape().iter().map(|&dim| dim as u64).collect();
        // An empty slice may lie anywhere, and has no bytes to share.
        let data = if view.data().is_empty() { Bytes::new() } else { file.slice_ref(view.data()) };
        let data = if dtype == DType::Bool { super::bools(data)? } else { Buffer::from(data) };
        let tensor = Tensor::new(dtype, shape, data).context(|| format!("tensor `{name}`"))?;
        workspace.insert(name, tensor);
    }
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    Ok((workspace, metadata))
}

pub(super) fn write(
    out: &mut impl Write,
    workspace: &Workspace,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let mut tensors = Vec::with_capacity(workspace.len());
    for (name, blob) in workspace.iter() {
        tensors.push((name, tensor_of(name, blob)?));
    }
    // Widest elements first, so that all of them are aligned in the file.
    tensors.sort_by_key(|(_, (tensor, _))| std::cmp::Reverse(tensor.dtype().size()));
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut offset = 0;
    for (name, (tensor, dtype)) in &tensors {
        let end = offset + tensor.data().len();
        let entry = json!({ "dtype": dtype, "shape": tensor.shape(), "data_offsets": [offset, end] });
        header.insert((*name).to_owned(), entry);
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MAX_HEADER_LEN {
        return Err(Error::unsupported(
            "too many or too long names for a .safetensors header; export fewer blobs with --blob, or an .npz",
        ));
    }
    let failed = |error| Error::io("cannot write", error);
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    out.write_all(&header).map_err(failed)?;
    tensors.iter().try_for_each(|(_, (tensor, _))| out.write_all(tensor.data())).map_err(failed)
}

/// Whether such a file can hold a blob.
pub(super) fn check_blob(name: &str, blob: &Blob) -> Result<()> {
    tensor_of(name, blob).map(drop)
}

fn tensor_of<'a>(name: &str, blob: &'a Blob) -> Result<(&'a Tensor, &'static str)> {
    let cannot = |what: &str| {
        Error::unsupported(format!(
            "a .safetensors file cannot hold {what}; export an .npz, or leave the blob out with --blob blob=`{name}`"
        ))
    };
    if name == "__metadata__" {
        return Err(cannot("a tensor of this name"));
    }
    match blob {
        Blob::Bytes { .. } => Err(Error::unsupported(format!(
            "a .safetensors file cannot hold opaque bytes; name the blobs that you want with --blob blob=`{name}`"
        ))),
        Blob::Tensor(tensor) => match name_of(tensor.dtype()) {
            Some(dtype) => Ok((tensor, dtype)),
            None => Err(cannot(&format!("a {} tensor", tensor.dtype()))),
        },
    }
}

macro_rules! dtypes {
    ($($ours:ident $theirs:ident $name:literal,)*) => {
        fn dtype_of(dtype: Dtype) -> Result<DType> {
            match dtype {
                $(Dtype::$theirs => Ok(DType::$ours),)*
                // Elements of 4 and 6 bits share bytes.
                other => Err(Error::unsupported(format!("dtype is not supported dtype=`{other:?}`"))),
            }
        }

        fn name_of(dtype: DType) -> Option<&'static str> {
            match dtype {
                $(DType::$ours => Some($name),)*
                _ => None,
            }
        }
    };
}

dtypes! {
    Bool BOOL "BOOL", U8 U8 "U8", U16 U16 "U16", U32 U32 "U32", U64 U64 "U64",
    I8 I8 "I8", I16 I16 "I16", I32 I32 "I32", I64 I64 "I64",
    F16 F16 "F16", Bf16 BF16 "BF16", F32 F32 "F32", F64 F64 "F64", Complex64 C64 "C64",
    F8E4m3 F8_E4M3 "F8_E4M3", F8E5m2 F8_E5M2 "F8_E5M2", F8E8m0 F8_E8M0 "F8_E8M0",
    F8E4m3fnuz F8_E4M3FNUZ "F8_E4M3FNUZ", F8E5m2fnuz F8_E5M2FNUZ "F8_E5M2FNUZ",
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Workspace {
        let mut workspace = Workspace::new();
        for &dtype in DType::ALL {
            if name_of(dtype).is_some() {
                let size = dtype.size().unwrap();
                let bytes: Vec<u8> =
                    (0..6 * size).map(|at| u8::from(dtype == DType::Bool) ^ at as u8 & 1).collect();
                workspace.insert(
                    format!("{dtype}"),
                    Tensor::new(dtype, [2, 3], Buffer::copy_from(&bytes).unwrap()).unwrap(),
                );
            }
        }
        workspace.insert("scalar", Tensor::scalar(f32::NAN));
        workspace.insert("empty", Tensor::new(DType::I64, [0, 7], Buffer::zeroed(0).unwrap()).unwrap());
        workspace.insert("name \"with\" \\ and \u{1}", Tensor::scalar(1u8));
        workspace
    }

    fn written(workspace: &Workspace, metadata: &BTreeMap<String, String>) -> Bytes {
        let mut file = Vec::new();
        write(&mut file, workspace, metadata).unwrap();
        file.into()
    }

    #[test]
    fn every_dtype_makes_the_round_trip() {
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let file = written(&workspace(), &metadata);
        let (found, found_metadata) = read(&file).unwrap();
        assert_eq!(found, workspace());
        assert_eq!(found_metadata, metadata);
    }

    #[test]
    fn reading_shares_the_file() {
        let file = written(&workspace(), &BTreeMap::new());
        let (found, _) = read(&file).unwrap();
        let range = file.as_ptr_range();
        assert!(range.contains(&found.tensor("f64").unwrap().data().as_ptr()));
    }

    #[test]
    fn what_it_cannot_hold_is_named() {
        let cases = [
            ("s", Blob::from(Tensor::from_strings([1], &["a"]).unwrap())),
            ("c", Tensor::scalar([0f64; 2]).into()),
            ("o", Blob::bytes("std::string", Bytes::from_static(b"x"))),
            ("__metadata__", Tensor::scalar(0u8).into()),
        ];
        for (name, blob) in cases {
            let workspace = Workspace::from_iter([(name.to_owned(), blob)]);
            let error = write(&mut Vec::new(), &workspace, &BTreeMap::new()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(&format!("blob=`{name}`")), "{error}");
        }
    }

    #[test]
    fn a_cut_file_is_an_error() {
        let file = written(&workspace(), &BTreeMap::new());
        for len in 0..file.len() {
            assert!(read(&file.slice(..len)).is_err(), "{len}");
        }
    }

    #[test]
    fn elements_of_less_than_a_byte_are_refused_by_name() {
        let header = br#"{"small":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}       "#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header);
        file.push(0);
        let error = read(&file.into()).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("`small`"), "{error}");
    }
}
