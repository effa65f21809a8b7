use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit float (e4m3 or e5m2).
    F8,
    /// 64-bit integer.
    I64,
    /// 32-bit integer.
    I32,
    /// 16-bit integer.
    I16,
    /// 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned byte.
    U8,
    /// Boolean, one byte.
    Bool,
    /// Complex of two 32-bit floats.
    C64,
    /// Complex of two 64-bit floats.
    C128,
}

impl Dtype {
    const NAMES: [(Dtype, &'static str); 14] = [
        (Dtype::F64, "f64"),
        (Dtype::F32, "f32"),
        (Dtype::F16, "f16"),
        (Dtype::Bf16, "bf16"),
        (Dtype::F8, "f8"),
        (Dtype::I64, "i64"),
        (Dtype::I32, "i32"),
        (Dtype::I16, "i16"),
        (Dtype::I8, "i8"),
        (Dtype::U64, "u64"),
        (Dtype::U8, "u8"),
        (Dtype::Bool, "bool"),
        (Dtype::C64, "c64"),
        (Dtype::C128, "c128"),
    ];

    /// All names in trace files, for messages.
    pub(crate) fn names() -> String {
        Self::NAMES.map(|(_, name)| name).join(", ")
    }

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            Dtype::C128 => 16,
            Dtype::F64 | Dtype::I64 | Dtype::U64 | Dtype::C64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F8 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }

    /// Whether it is a real floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8)
    }

    /// Its name for people, as options spell it: `fp32`, not the `f32` of trace files.
    #[must_use]
    pub fn spelled(self) -> &'static str {
        match self {
            Dtype::F64 => "fp64",
            Dtype::F32 => "fp32",
            Dtype::F16 => "fp16",
            Dtype::F8 => "fp8",
            other => other.name(),
        }
    }

    /// Its name in trace files.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(dtype, _)| *dtype == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::NAMES.iter().find(|(_, name)| *name == text).map(|(dtype, _)| *dtype).ok_or(())
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = Dtype;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a dtype")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Dtype, E> {
                name.parse().map_err(|()| E::custom(format!("unknown dtype `{name}`; known are {}", Dtype::names())))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// A tensor whose size does not fit 64-bit arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tensor of shape {shape:?} in {} is larger than 2^62 bytes; use smaller sizes", dtype.spelled())]
pub struct ShapeTooLarge {
    /// The shape that was asked for.
    pub shape: Vec<u64>,
    /// Its element type.
    pub dtype: Dtype,
}

/// How a tensor lies in its storage: element type, shape and strides (in elements).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Element type.
    pub dtype: Dtype,
    /// Extent of each dimension.
    pub shape: Vec<u64>,
    /// Step, in elements, along each dimension; 0 where a dimension is expanded.
    pub strides: Vec<u64>,
}

impl Layout {
    /// The row-major layout of a shape. Extents that overflow saturate; see [`Layout::checked_bytes`].
    #[must_use]
    pub fn contiguous(dtype: Dtype, shape: &[u64]) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut step: u64 = 1;
        for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.saturating_mul(extent.max(1));
        }
        Layout { dtype, shape: shape.to_vec(), strides }
    }

    /// Number of elements; saturates.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, &extent| product.saturating_mul(extent))
    }

    /// Bytes of a dense tensor of this shape.
    ///
    /// # Errors
    /// If they do not fit 62 bits.
    pub fn checked_bytes(&self) -> Result<u64, ShapeTooLarge> {
        self.shape
            .iter()
            .try_fold(self.dtype.size(), |product, &extent| product.checked_mul(extent))
            .filter(|&bytes| bytes < 1 << 62)
            .ok_or_else(|| ShapeTooLarge { shape: self.shape.clone(), dtype: self.dtype })
    }

    /// Bytes that a kernel touches when it reads or writes the tensor once: expanded dimensions count once.
    #[must_use]
    pub fn touched_bytes(&self) -> u64 {
        self.shape
            .iter()
            .zip(&self.strides)
            .filter(|(_, stride)| **stride != 0)
            .fold(self.dtype.size(), |product, (&extent, _)| product.saturating_mul(extent))
    }

    /// Whether the elements lie row-major without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent == 1 {
                continue;
            }
            if stride != step {
                return false;
            }
            step = step.saturating_mul(extent);
        }
        true
    }

    /// Whether the elements fill a block of memory without gaps or overlaps, in any order of dimensions.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        let mut dims: Vec<(u64, u64)> =
            self.strides.iter().copied().zip(self.shape.iter().copied()).filter(|(_, extent)| *extent != 1).collect();
        dims.sort_unstable();
        let mut step = 1;
        for (stride, extent) in dims {
            if stride != step {
                return false;
            }
            step = step.saturating_mul(extent);
        }
        true
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_name_reads_back() {
        for (dtype, name) in Dtype::NAMES {
            assert_eq!(name.parse(), Ok(dtype));
            assert_eq!(dtype.to_string(), name);
        }
        assert_eq!("float".parse::<Dtype>(), Err(()));
    }

    #[test]
    fn expanded_dimensions_are_touched_once() {
        let mut layout = Layout::contiguous(Dtype::Bf16, &[4, 8, 16]);
        assert_eq!(layout.touched_bytes(), 1024);
        layout.strides[0] = 0;
        assert_eq!(layout.touched_bytes(), 256);
        assert!(!layout.is_contiguous());
    }

    #[test]
    fn density_ignores_the_order_of_dimensions() {
        let transposed = Layout { dtype: Dtype::F32, shape: vec![8, 4], strides: vec![1, 8] };
        assert!(transposed.is_dense() && !transposed.is_contiguous());
        let gaps = Layout { dtype: Dtype::F32, shape: vec![8, 4], strides: vec![8, 1] };
        assert!(!gaps.is_dense());
    }

    #[test]
    fn sizes_past_64_bits_are_an_error() {
        let layout = Layout::contiguous(Dtype::F32, &[1 << 40, 1 << 40]);
        let error = layout.checked_bytes().unwrap_err();
        assert!(error.to_string().contains("larger than 2^62 bytes"), "{error}");
        assert_eq!(Layout::contiguous(Dtype::F32, &[0, 5]).checked_bytes(), Ok(0));
    }
}
