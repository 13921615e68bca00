//! Element types of tensors.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:expr, $doc:literal;)*) => {
        /// The type of a tensor's elements. Multi-byte elements are stored little-endian.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = $doc] $variant,)*
        }

        impl DType {
            /// Every dtype.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name, as commands print it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The size of an element in bytes, or `None` for strings, whose elements differ in length.
            pub fn size(self) -> Option<usize> {
                match self { $(Self::$variant => $size,)* }
            }
        }
    };
}

dtypes! {
    Bool "bool" Some(1), "One byte, 0 or 1.";
    U8 "u8" Some(1), "Unsigned, 1 byte.";
    U16 "u16" Some(2), "Unsigned, 2 bytes.";
    U32 "u32" Some(4), "Unsigned, 4 bytes.";
    U64 "u64" Some(8), "Unsigned, 8 bytes.";
    I8 "i8" Some(1), "Signed, 1 byte.";
    I16 "i16" Some(2), "Signed, 2 bytes.";
    I32 "i32" Some(4), "Signed, 4 bytes.";
    I64 "i64" Some(8), "Signed, 8 bytes.";
    F16 "f16" Some(2), "IEEE 754 binary16.";
    Bf16 "bf16" Some(2), "The upper half of a binary32.";
    F32 "f32" Some(4), "IEEE 754 binary32.";
    F64 "f64" Some(8), "IEEE 754 binary64.";
    Complex64 "complex64" Some(8), "Two `f32`: real, imaginary.";
    Complex128 "complex128" Some(16), "Two `f64`: real, imaginary.";
    F8E4m3 "f8_e4m3" Some(1), "OCP 8-bit float, 4 exponent bits (`float8_e4m3fn`).";
    F8E5m2 "f8_e5m2" Some(1), "OCP 8-bit float, 5 exponent bits.";
    F8E8m0 "f8_e8m0" Some(1), "OCP 8-bit scale, exponent only.";
    F8E4m3fnuz "f8_e4m3fnuz" Some(1), "8-bit float, 4 exponent bits, no negative zero.";
    F8E5m2fnuz "f8_e5m2fnuz" Some(1), "8-bit float, 5 exponent bits, no negative zero.";
    String "string" None, "Byte strings of any length and content.";
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let dtype = Self::ALL.iter().find(|dtype| dtype.name() == name);
        dtype.copied().ok_or_else(|| Error::invalid(format!("unknown dtype dtype=`{name}`")))
    }
}

/// A Rust type that is the element of a [`DType`].
pub trait Element: bytemuck::NoUninit + bytemuck::CheckedBitPattern + Send + Sync + sealed::Sealed {
    /// Its dtype.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $element {}
            impl Element for $element {
                const DTYPE: DType = DType::$dtype;
            }
        )*
    };
}

elements! {
    bool => Bool, u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64, [f32; 2] => Complex64, [f64; 2] => Complex128,
}

// Tensors of multi-byte elements are handed out as slices of the stored bytes, which are little-endian.
#[cfg(target_endian = "big")]
compile_error!(
    "big-endian machines are not supported: stored elements are little-endian and are not swapped"
);
