//! Tensors from and to the crate `ndarray` (feature `ndarray`).

use ndarray::{ArrayD, ArrayViewD, IxDyn};

use super::{Element, Tensor, to_usize};
use crate::error::{Error, Result};

impl Tensor {
    /// The memory of an array: without a copy if it is in row-major order and begins at its vector's first element, else copied in that
    /// order.
    pub fn from_ndarray<T: Element>(array: ArrayD<T>) -> Result<Self> {
        let shape: Vec<u64> = array.shape().iter().map(|&dim| dim as u64).collect();
        if !array.is_standard_layout() {
            return Self::from_vec(shape, array.iter().copied().collect());
        }
        match array.into_raw_vec_and_offset() {
            (elements, None | Some(0)) => Self::from_vec(shape, elements),
            (elements, Some(offset)) => {
                let len = super::tensor::element_count(&shape)?;
                let elements = elements.get(offset..).and_then(|from| from.get(..usize::try_from(len).ok()?));
                Self::from_slice(shape, elements.ok_or_else(|| Error::internal("array outside its vector"))?)
            }
        }
    }

    /// The tensor as an array, without a copy. Fails as [`as_slice`](Self::as_slice) does.
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        let shape = self.shape().iter().map(|&dim| to_usize(dim)).collect::<Result<Vec<_>>>()?;
        ArrayViewD::from_shape(IxDyn(&shape), self.as_slice()?)
            .map_err(|error| Error::invalid("tensor does not fit an array").with_source(error))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, array};

    use super::*;

    #[test]
    fn a_row_major_array_is_taken_and_given_without_a_copy() {
        let array = Array::from_shape_vec((2, 3), vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let (copy, address) = (array.clone().into_dyn(), array.as_ptr().cast());
        let tensor = Tensor::from_ndarray(array.into_dyn()).unwrap();
        assert_eq!(tensor.data().as_ptr(), address);
        let view = tensor.as_ndarray::<f32>().unwrap();
        assert_eq!((view.as_ptr().cast(), view), (address, copy.view()));
    }

    #[test]
    fn others_are_brought_into_order() {
        let columns = array![[1i16, 2, 3], [4, 5, 6]].reversed_axes();
        let tensor = Tensor::from_ndarray(columns.into_dyn()).unwrap();
        assert_eq!(tensor.shape(), [3, 2]);
        assert_eq!(tensor.as_slice::<i16>().unwrap(), [1, 4, 2, 5, 3, 6]);
        let part = array![1u64, 2, 3, 4].slice_move(ndarray::s![1..3]);
        assert_eq!(Tensor::from_ndarray(part.into_dyn()).unwrap().as_slice::<u64>().unwrap(), [2, 3]);
        let scalar = Tensor::from_ndarray(ndarray::arr0(7u8).into_dyn()).unwrap();
        assert_eq!((scalar.shape(), scalar.as_slice::<u8>().unwrap()), (&[][..], &[7][..]));
        let empty = Tensor::from_ndarray(Array::<f64, _>::zeros((0, 4)).into_dyn()).unwrap();
        assert_eq!(empty.as_ndarray::<f64>().unwrap().shape(), [0, 4]);
    }
}
