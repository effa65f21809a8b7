use std::fmt;

use rematic_trace::Dtype;

/// An element type as people read it, spelled as the options spell it: `fp32`, where trace and device files have `f32`.
///
/// ```
/// use rematic_cost::Element;
/// use rematic_trace::Dtype;
/// assert_eq!(Element(Dtype::F32).to_string(), "fp32");
/// assert_eq!(Element(Dtype::Bf16).to_string(), "bf16");
/// assert_eq!(Element(Dtype::I64).to_string(), "i64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element(pub Dtype);

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.spelled())
    }
}
