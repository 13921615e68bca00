//! Tensors from and to the crate `candle-core` (feature `candle`). candle owns its memory, so each way is one copy.

use candle_core::{CpuStorage, Device, Storage};

use super::{Buffer, DType, Tensor, to_usize};
use crate::error::{Error, Result};

macro_rules! dtypes {
    ($($ours:ident $theirs:ident,)*) => {
        fn to_candle(dtype: DType) -> Option<candle_core::DType> {
            match dtype {
                $(DType::$ours => Some(candle_core::DType::$theirs),)*
                _ => None,
            }
        }

        /// The bytes of elements `start..end`.
        fn bytes_of(storage: &CpuStorage, start: usize, end: usize) -> Option<(DType, &[u8])> {
            match storage {
                $(CpuStorage::$theirs(elements) => {
                    let elements = elements.get(start..end)?;
                    Some((DType::$ours, bytemuck::cast_slice(elements)))
                })*
                _ => None,
            }
        }
    };
}

dtypes! {
    U8 U8, U32 U32, I16 I16, I32 I32, I64 I64, Bf16 BF16, F16 F16, F32 F32, F64 F64, F8E8m0 F8E8M0,
}

impl Tensor {
    /// A copy of a candle tensor, from any device, in row-major order. Fails with `Unsupported` for a dtype that we do not have.
    pub fn from_candle(tensor: &candle_core::Tensor) -> Result<Self> {
        let failed =
            |error: candle_core::Error| Error::internal("candle cannot hand out a tensor").with_source(error);
        let tensor = tensor.to_device(&Device::Cpu).and_then(|tensor| tensor.contiguous()).map_err(failed)?;
        let shape: Vec<u64> = tensor.dims().iter().map(|&dim| dim as u64).collect();
        let (storage, layout) = tensor.storage_and_layout();
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| Error::internal("a contiguous candle tensor is not contiguous"))?;
        let Storage::Cpu(storage) = &*storage else {
            return Err(Error::internal("a candle tensor on the CPU is elsewhere"));
        };
        let (dtype, bytes) = bytes_of(storage, start, end).ok_or_else(|| {
            Error::unsupported(format!("candle dtype has no counterpart dtype=`{:?}`", tensor.dtype()))
        })?;
        Self::new(dtype, shape, Buffer::copy_from(bytes)?)
    }

    /// A copy as a candle tensor on `device`. Fails with `Unsupported` for a dtype that candle does not have.
    pub fn to_candle(&self, device: &Device) -> Result<candle_core::Tensor> {
        let dtype = to_candle(self.dtype()).ok_or_else(|| {
            Error::unsupported(format!("candle has no such dtype dtype=`{}`", self.dtype()))
        })?;
        let shape = self.shape().iter().map(|&dim| to_usize(dim)).collect::<Result<Vec<_>>>()?;
        candle_core::Tensor::from_raw_buffer(self.data(), dtype, &shape, device)
            .map_err(|error| Error::internal("candle cannot take a tensor").with_source(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_common_dtype_makes_the_round_trip() {
        for &dtype in DType::ALL {
            let (Some(size), Some(theirs)) = (dtype.size(), to_candle(dtype)) else { continue };
            let bytes: Vec<u8> = (0..6 * size).map(|at| u8::try_from(at).unwrap() ^ 0x5a).collect();
            let tensor = Tensor::new(dtype, [2, 3], Buffer::copy_from(&bytes).unwrap()).unwrap();
            let candle = tensor.to_candle(&Device::Cpu).unwrap();
            assert_eq!(candle.dtype(), theirs);
            assert_eq!(Tensor::from_candle(&candle).unwrap(), tensor);
        }
    }

    #[test]
    fn views_are_brought_into_order() {
        let tensor = candle_core::Tensor::new(&[[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap();
        let ours = Tensor::from_candle(&tensor.t().unwrap()).unwrap();
        assert_eq!(
            (ours.shape(), ours.as_slice::<f32>().unwrap()),
            (&[3, 2][..], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0][..])
        );
        let row = Tensor::from_candle(&tensor.get(1).unwrap()).unwrap();
        assert_eq!(row.as_slice::<f32>().unwrap(), [4.0, 5.0, 6.0]);
        let scalar = Tensor::scalar(1.5f64);
        assert_eq!(Tensor::from_candle(&scalar.to_candle(&Device::Cpu).unwrap()).unwrap(), scalar);
    }

    #[test]
    fn what_candle_does_not_have_is_named() {
        let error = Tensor::scalar(1u64).to_candle(&Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("`u64`"), "{error}");
    }
}
