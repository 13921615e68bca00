//! Named values in memory: tensors and opaque bytes, and the workspace that holds them.

mod buffer;
#[cfg(feature = "candle")]
mod candle;
mod dtype;
#[cfg(feature = "ndarray")]
mod ndarray;
mod select;
mod tensor;
mod workspace;

pub use buffer::{Buffer, PAGE};
pub use dtype::{DType, Element};
pub use select::{Found, Selection};
pub use tensor::Tensor;
pub(crate) use tensor::{byte_len, element_count, rows_shape, to_usize};
pub(crate) use workspace::no_such_blob;
pub use workspace::{Blob, MAX_NAME_LEN, Workspace};
