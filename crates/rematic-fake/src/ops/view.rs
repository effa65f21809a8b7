use rematic_trace::{Dtype, Layout};

use super::elementwise::promoted;
use crate::autograd::Gradients;
use crate::error::FakeError;
use crate::kernel::{Derivative, Kernel, Out};
use crate::tape::Tape;
use crate::tensor::Tensor;

/// The strides under which a tensor can be seen in another shape without copying, if any: runs of dimensions that lie
/// together in memory may be split and merged.
fn view_strides(layout: &Layout, shape: &[u64]) -> Option<Vec<u64>> {
    if layout.elements() == 0 || shape.contains(&0) {
        return (layout.shape == shape).then(|| layout.strides.clone());
    }
    let mut strides = vec![0; shape.len()];
    let mut target = shape.len();
    let mut run: u64 = 1;
    let mut base = *layout.strides.last().unwrap_or(&1);
    for dim in (0..layout.shape.len()).rev() {
        run = run.checked_mul(layout.shape[dim])?;
        // The run ends where the next dimension outwards does not continue it in memory.
        let ends = dim == 0 || layout.shape[dim - 1] != 1 && layout.strides[dim - 1] != run.checked_mul(base)?;
        if !ends {
            continue;
        }
        let mut filled: u64 = 1;
        while target > 0 && (filled < run || shape[target - 1] == 1) {
            strides[target - 1] = filled.checked_mul(base)?;
            filled = filled.checked_mul(shape[target - 1])?;
            target -= 1;
        }
        if filled != run {
            return None;
        }
        if dim > 0 {
            run = 1;
            base = layout.strides[dim - 1];
        }
    }
    if layout.shape.is_empty() {
        strides.fill(1);
        target = 0;
    }
    (target == 0).then_some(strides)
}

/// `CopySlices::apply`: the gradient of what was there before, and that of the part which was written.
fn part_gradients(gradients: &Gradients<'_>, whole: Layout, part: Layout, dtype: Dtype) -> Vec<Option<Tensor>> {
    let (tape, gradient) = (gradients.tape, gradients.output());
    let result = tape.launch_one(Kernel::new("new_empty_strided.default", &[gradient], vec![Out::New(whole)]));
    result.change("copy_.default", &[gradient]);
    let slice = tape.launch_one(Kernel::view("as_strided.default", &result, vec![Out::View(&result, part)]));
    let mut copy = slice.clone_contiguous();
    if !gradients.wanted[0] {
        return vec![None, Some(copy.to(dtype))];
    }
    let zeros = copy.map("zeros_like.default");
    copy = copy.to(dtype);
    slice.change("copy_.default", &[&zeros]);
    vec![Some(result), Some(copy)]
}

/// The layout of tensors that are joined along a dimension, if they can be.
fn joined(tensors: &[&Tensor], dim: isize) -> Option<Layout> {
    let (first, others) = tensors.split_first()?;
    let axis = first.axis(dim);
    let mut shape = first.shape().to_vec();
    for other in others {
        let rest = |(at, (own, wanted)): (usize, (&u64, &u64))| at == axis || own == wanted;
        if other.shape().len() != shape.len() || !other.shape().iter().zip(&shape).enumerate().all(rest) {
            return None;
        }
        let extent = shape.get_mut(axis)?;
        *extent = extent.saturating_add(other.size(dim));
    }
    let dtype = tensors.iter().fold(first.dtype(), |dtype, tensor| promoted(dtype, tensor.dtype()));
    (axis < shape.len()).then(|| Layout::contiguous(dtype, &shape))
}

impl Tensor {
    /// A view, differentiated by a function of the gradient alone.
    fn viewed(&self, name: &'static str, layout: Layout, backward: impl FnOnce(&Tensor) -> Tensor + 'static) -> Tensor {
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(backward(gradients.output()))]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        let kernel = Kernel::view(name, self, vec![Out::View(self, layout)]);
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    fn misfit(&self, op: &'static str, expected: &'static str) -> Layout {
        self.tape().fail(FakeError::Shape { op, expected, found: self.layout().to_string() });
        self.layout().clone()
    }

    /// The tensor in another shape; the data must allow it without copying.
    #[must_use]
    pub fn view(&self, shape: &[u64]) -> Tensor {
        self.view_as("view.default", shape)
    }

    pub(crate) fn unsafe_view(&self, shape: &[u64]) -> Tensor {
        self.view_as("_unsafe_view.default", shape)
    }

    fn view_as(&self, name: &'static str, shape: &[u64]) -> Tensor {
        let layout = match view_strides(self.layout(), shape) {
            Some(strides) => Layout { dtype: self.dtype(), shape: shape.to_vec(), strides },
            None => self.misfit(name, "the new shape must have as many elements and lie in memory as the old one"),
        };
        let own = self.shape().to_vec();
        self.viewed(name, layout, move |gradient| gradient.reshape(&own))
    }

    /// The tensor in another shape; copied where the data do not allow a view.
    #[must_use]
    pub fn reshape(&self, shape: &[u64]) -> Tensor {
        let elements = shape.iter().fold(1, |product: u64, &extent| product.saturating_mul(extent));
        if view_strides(self.layout(), shape).is_some() || elements != self.layout().elements() {
            return self.view(shape);
        }
        let copy = self.clone_contiguous();
        copy.unsafe_view(shape)
    }

    /// The transpose of a matrix.
    #[must_use]
    pub fn t(&self) -> Tensor {
        let layout = self.swapped(0, 1);
        self.viewed("t.default", layout, Tensor::t)
    }

    /// Swaps two dimensions; negative ones count from the end.
    #[must_use]
    pub fn transpose(&self, first: isize, second: isize) -> Tensor {
        let layout = self.swapped(self.axis(first), self.axis(second));
        self.viewed("transpose.int", layout, move |gradient| gradient.transpose(first, second))
    }

    fn swapped(&self, first: usize, second: usize) -> Layout {
        let rank = self.shape().len();
        if first >= rank || second >= rank {
            return self.misfit("transpose.int", "both dimensions must exist");
        }
        let mut layout = self.layout().clone();
        layout.shape.swap(first, second);
        layout.strides.swap(first, second);
        layout
    }

    /// The dimensions in another order: where each one was.
    pub(crate) fn permute(&self, order: &[usize]) -> Tensor {
        let own = self.layout();
        if order.len() != own.shape.len() || order.iter().any(|&dim| dim >= own.shape.len()) {
            let _ = self.misfit("permute.default", "every dimension must be named once");
            return self.clone();
        }
        let pick = |from: &[u64]| order.iter().map(|&dim| from[dim]).collect();
        let layout = Layout { dtype: own.dtype, shape: pick(&own.shape), strides: pick(&own.strides) };
        let mut back = vec![0; order.len()];
        for (place, &dim) in order.iter().enumerate() {
            back[dim] = place;
        }
        self.viewed("permute.default", layout, move |gradient| gradient.permute(&back))
    }

    /// A new dimension of extent 1 at `dim`.
    #[must_use]
    pub fn unsqueeze(&self, dim: isize) -> Tensor {
        let rank = self.shape().len();
        let at = if dim < 0 { (rank + 1).saturating_sub(dim.unsigned_abs()) } else { dim.unsigned_abs().min(rank) };
        let mut layout = self.layout().clone();
        let stride = if at < rank { layout.shape[at].saturating_mul(layout.strides[at]) } else { 1 };
        layout.shape.insert(at, 1);
        layout.strides.insert(at, stride);
        self.viewed("unsqueeze.default", layout, move |gradient| gradient.squeeze(at))
    }

    /// Removes a dimension of extent 1.
    #[must_use]
    pub fn squeeze(&self, dim: usize) -> Tensor {
        if self.shape().get(dim) != Some(&1) {
            let _ = self.misfit("squeeze.dim", "the dimension must have extent 1");
            return self.clone();
        }
        let mut layout = self.layout().clone();
        layout.shape.remove(dim);
        layout.strides.remove(dim);
        let dim = isize::try_from(dim).unwrap_or(0);
        self.viewed("squeeze.dim", layout, move |gradient| gradient.unsqueeze(dim))
    }

    /// Repeats dimensions of extent 1, and new leading ones, without copying.
    #[must_use]
    pub fn expand(&self, shape: &[u64]) -> Tensor {
        let rank = self.shape().len();
        let fits = shape.len() >= rank
            && self.shape().iter().rev().zip(shape.iter().rev()).all(|(own, wanted)| own == wanted || *own == 1);
        let layout = if fits {
            let offset = shape.len() - rank;
            let strides = (0..shape.len()).map(|dim| match dim.checked_sub(offset) {
                Some(own) if self.shape()[own] == shape[dim] => self.layout().strides[own],
                _ => 0,
            });
            Layout { dtype: self.dtype(), strides: strides.collect(), shape: shape.to_vec() }
        } else {
            self.misfit("expand.default", "only dimensions of extent 1 expand")
        };
        let own = self.shape().to_vec();
        self.viewed("expand.default", layout, move |gradient| {
            if gradient.shape() == own { gradient.clone() } else { gradient.clone().sum_to(&own) }
        })
    }

    /// The part from `start` to `end` of a dimension.
    #[must_use]
    pub fn slice(&self, dim: isize, start: u64, end: u64) -> Tensor {
        let layout = self.sliced(self.axis(dim), start, end);
        let own = self.layout().clone();
        self.viewed("slice.Tensor", layout, move |gradient| {
            let full = Layout::contiguous(own.dtype, &own.shape);
            gradient.tape().launch_one(Kernel::new("slice_backward.default", &[gradient], vec![Out::New(full)]))
        })
    }

    fn sliced(&self, axis: usize, start: u64, end: u64) -> Layout {
        let mut layout = self.layout().clone();
        match layout.shape.get_mut(axis) {
            Some(extent) if start <= end && end <= *extent => *extent = end - start,
            _ => return self.misfit("slice.Tensor", "the part must lie inside the dimension"),
        }
        layout
    }

    /// The first place of a dimension, which goes.
    pub(crate) fn select(&self, dim: isize) -> Tensor {
        let axis = self.axis(dim);
        if axis >= self.shape().len() {
            let _ = self.misfit("select.int", "the dimension must exist");
            return self.clone();
        }
        let mut layout = self.layout().clone();
        layout.shape.remove(axis);
        layout.strides.remove(axis);
        let own = Layout::contiguous(self.dtype(), self.shape());
        self.viewed("select.int", layout, move |gradient| {
            gradient.tape().launch_one(Kernel::new("select_backward.default", &[gradient], vec![Out::New(own)]))
        })
    }

    /// The same tensor under another identity, as Python's `x[:]` gives it.
    #[must_use]
    pub fn alias(&self) -> Tensor {
        self.viewed("alias.default", self.layout().clone(), Tensor::clone)
    }

    /// The same data without a gradient.
    #[must_use]
    pub fn detach(&self) -> Tensor {
        let outputs = vec![Out::View(self, self.layout().clone())];
        self.tape().launch_one(Kernel::view("detach.default", self, outputs))
    }

    /// Pieces of `size` along a dimension; the last may have less.
    #[must_use]
    pub fn split(&self, size: u64, dim: isize) -> Vec<Tensor> {
        let axis = self.axis(dim);
        let extent = self.size(dim);
        if size == 0 || axis >= self.shape().len() {
            let _ = self.misfit("split.Tensor", "the pieces must have a length, along a dimension that there is");
            return Vec::new();
        }
        let end = |piece: u64| (piece + 1).saturating_mul(size).min(extent);
        let pieces = 0..extent.div_ceil(size);
        let outputs = pieces.map(|piece| Out::View(self, self.sliced(axis, piece * size, end(piece))));
        let kernel = Kernel::view("split.Tensor", self, outputs.collect());
        let own = self.layout().clone();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let parts: Vec<&Tensor> = gradients.outputs.iter().flatten().collect();
            let full = Layout::contiguous(own.dtype, &own.shape);
            vec![Some(gradients.tape.launch_one(Kernel::new("cat.default", &parts, vec![Out::New(full)])))]
        });
        self.tape().launch_differentiable(kernel, Derivative { inputs: &[self], saves: vec![], backward })
    }

    /// What is before and behind a place of the last dimension.
    pub(crate) fn split_at(&self, place: u64) -> (Tensor, Tensor) {
        let (axis, extent) = (self.axis(-1), self.size(-1));
        if place > extent || self.shape().is_empty() {
            let _ = self.misfit("split_with_sizes.default", "the place must lie inside the dimension");
            return (self.clone(), self.clone());
        }
        let parts = [self.sliced(axis, 0, place), self.sliced(axis, place, extent)];
        let own = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let parts: Vec<&Tensor> = gradients.outputs.iter().flatten().collect();
            vec![Some(gradients.tape.launch_one(Kernel::new("cat.default", &parts, vec![Out::New(own)])))]
        });
        let outputs = parts.map(|layout| Out::View(self, layout)).into();
        let kernel = Kernel::view("split_with_sizes.default", self, outputs);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        let mut made = self.tape().launch_differentiable(kernel, derivative);
        let second = made.swap_remove(1);
        (made.swap_remove(0), second)
    }

    /// Memory of this shape, of the same type, that holds nothing yet.
    pub(crate) fn new_empty(&self, shape: &[u64]) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), shape);
        self.tape().launch_one(Kernel::new("new_empty.default", &[self], vec![Out::New(layout)]))
    }

    /// The tensor with `part` written into its last dimension from `start` on. Autograd makes one node of it (`CopySlices`), which
    /// takes the gradient of the whole apart.
    pub(crate) fn with_part(self, start: u64, part: &Tensor) -> Tensor {
        let tape = self.tape().clone();
        let end = start.saturating_add(part.size(-1));
        let slice = tape.no_grad(|| self.slice(-1, start, end));
        let (whole, own) = (self.layout().clone(), slice.layout().clone());
        let dtype = part.dtype();
        let backward = Box::new(move |gradients: &Gradients<'_>| part_gradients(gradients, whole, own, dtype));
        let outputs = vec![Out::View(&slice, slice.layout().clone())];
        let kernel = Kernel::new("copy_.default", &[&slice, part], outputs).mutating(&[&slice]);
        let derivative = Derivative { inputs: &[&self, part], saves: vec![], backward };
        tape.launch_on(kernel, derivative, &self)
    }

    /// `N` equal pieces along a dimension.
    ///
    /// If the dimension does not divide, the step fails, and each piece is the tensor itself.
    #[must_use]
    pub fn split_into<const N: usize>(&self, dim: isize) -> [Tensor; N] {
        let (extent, count) = (self.size(dim), N as u64);
        if N == 0 || !extent.is_multiple_of(count) {
            let _ = self.misfit("split.Tensor", "the number of pieces must divide the dimension");
            return std::array::from_fn(|_| self.clone());
        }
        self.split(extent / count, dim).try_into().unwrap_or_else(|_| std::array::from_fn(|_| self.clone()))
    }

    /// Joins tensors along a dimension; in all others they must have the same extents.
    #[must_use]
    pub fn cat(tape: &Tape, tensors: &[&Tensor], dim: isize) -> Tensor {
        let layout = joined(tensors, dim).unwrap_or_else(|| {
            let layouts: Vec<String> = tensors.iter().map(|tensor| tensor.layout().to_string()).collect();
            tape.fail(FakeError::Shape {
                op: "cat.default",
                expected: "there must be tensors to join, of equal extents in all other dimensions",
                found: if layouts.is_empty() { "none".to_owned() } else { layouts.join(" and ") },
            });
            tensors.first().map_or_else(|| Layout::contiguous(Dtype::F32, &[]), |first| first.layout().clone())
        });
        let sizes: Vec<u64> = tensors.iter().map(|tensor| tensor.size(dim)).collect();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            let mut start = 0;
            let mut parts = Vec::with_capacity(sizes.len());
            for (size, wanted) in sizes.iter().zip(gradients.wanted) {
                parts.push(wanted.then(|| gradients.output().slice(dim, start, start + size)));
                start += size;
            }
            parts
        });
        let kernel = Kernel::new("cat.default", tensors, vec![Out::New(layout)]);
        let derivative = Derivative { inputs: tensors, saves: vec![], backward };
        tape.launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// Every second element of the last dimension, from `start` on.
    pub(crate) fn every_second(&self, start: u64) -> Tensor {
        let mut layout = self.layout().clone();
        if let (Some(extent), Some(stride)) = (layout.shape.last_mut(), layout.strides.last_mut()) {
            *extent = extent.saturating_sub(start).div_ceil(2);
            *stride = stride.saturating_mul(2);
        }
        let own = self.layout().clone();
        self.viewed("slice.Tensor", layout, move |gradient| {
            let full = Layout::contiguous(own.dtype, &own.shape);
            gradient.tape().launch_one(Kernel::new("slice_backward.default", &[gradient], vec![Out::New(full)]))
        })
    }

    /// Each element of the last dimension so many times, one after the other.
    pub(crate) fn repeat_each(&self, times: u64) -> Tensor {
        let mut wide = self.shape().to_vec();
        wide.push(times);
        let copy = {
            let expanded = self.unsqueeze(-1).expand(&wide);
            expanded.clone_contiguous()
        };
        let mut shape = self.shape().to_vec();
        if let Some(extent) = shape.last_mut() {
            *extent = extent.saturating_mul(times);
        }
        copy.view(&shape)
    }

    /// Joins tensors of one shape along a new last dimension.
    pub(crate) fn stack_last(tensors: &[&Tensor]) -> Tensor {
        let first = tensors[0];
        let mut shape = first.shape().to_vec();
        shape.push(tensors.len() as u64);
        let count = tensors.len();
        let backward = Box::new(move |gradients: &Gradients<'_>| {
            (0..count).map(|_| Some(gradients.output().select_last())).collect()
        });
        let layout = Layout::contiguous(first.dtype(), &shape);
        let kernel = Kernel::new("stack.default", tensors, vec![Out::New(layout)]);
        let derivative = Derivative { inputs: tensors, saves: vec![], backward };
        first.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// One place of the last dimension, which goes; not differentiated.
    fn select_last(&self) -> Tensor {
        let mut layout = self.layout().clone();
        layout.shape.pop();
        layout.strides.pop();
        self.tape().launch_one(Kernel::view("select.int", self, vec![Out::View(self, layout)]))
    }

    /// The tensor itself if it lies row-major, otherwise a copy that does.
    #[must_use]
    pub fn contiguous(&self) -> Tensor {
        if self.layout().is_contiguous() { self.clone() } else { self.clone_contiguous() }
    }

    /// A row-major copy.
    #[must_use]
    pub fn clone_contiguous(&self) -> Tensor {
        let layout = Layout::contiguous(self.dtype(), self.shape());
        let backward = Box::new(|gradients: &Gradients<'_>| vec![Some(gradients.output().clone())]);
        let kernel = Kernel::new("clone.default", &[self], vec![Out::New(layout)]);
        let derivative = Derivative { inputs: &[self], saves: vec![], backward };
        self.tape().launch_differentiable(kernel, derivative).swap_remove(0)
    }

    /// A copy that lies as another tensor does.
    pub(crate) fn clone_like(&self, other: &Tensor) -> Tensor {
        let tape = self.tape();
        let outputs = vec![Out::New(other.layout().clone())];
        let copy = tape.launch_one(Kernel::new("new_empty_strided.default", &[self], outputs));
        let outputs = vec![Out::View(&copy, copy.layout().clone())];
        tape.launch_one(Kernel::new("copy_.default", &[&copy, self], outputs).mutating(&[&copy]))
    }

    /// Pads the end of the last dimension with a constant; for integer labels, without gradient.
    #[must_use]
    pub fn pad_last(&self, count: u64) -> Tensor {
        let mut shape = self.shape().to_vec();
        if let Some(extent) = shape.last_mut() {
            *extent = extent.saturating_add(count);
        }
        let layout = Layout::contiguous(self.dtype(), &shape);
        self.tape().launch_one(Kernel::new("constant_pad_nd.default", &[self], vec![Out::New(layout)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(shape: &[u64], strides: &[u64]) -> Layout {
        Layout { dtype: Dtype::F32, shape: shape.to_vec(), strides: strides.to_vec() }
    }

    #[test]
    fn contiguous_data_take_any_shape() {
        let layout = Layout::contiguous(Dtype::F32, &[2, 64, 4, 16]);
        assert_eq!(view_strides(&layout, &[128, 64]), Some(vec![64, 1]));
        assert_eq!(view_strides(&layout, &[2, 64, 64]), Some(vec![4096, 64, 1]));
        assert_eq!(view_strides(&layout, &[7]), None);
        assert_eq!(view_strides(&layout, &[1, 8192, 1]), Some(vec![8192, 1, 1]));
    }

    #[test]
    fn transposed_heads_do_not_merge() {
        let heads = strided(&[2, 4, 64, 16], &[4096, 16, 64, 1]);
        assert_eq!(view_strides(&heads, &[2, 4, 1024]), None);
        assert_eq!(view_strides(&heads, &[2, 4, 64, 4, 4]), Some(vec![4096, 16, 64, 4, 1]));
    }

    #[test]
    fn expanded_dimensions_merge_with_each_other_only() {
        assert_eq!(view_strides(&strided(&[2, 64, 128], &[0, 0, 0]), &[128, 128]), Some(vec![0, 0]));
        assert_eq!(view_strides(&strided(&[2, 64, 128], &[0, 128, 1]), &[128, 128]), None);
    }

    #[test]
    fn gaps_stay_gaps() {
        let part = strided(&[4, 512, 768], &[1_179_648, 2304, 1]);
        assert_eq!(view_strides(&part, &[4, 512, 12, 64]), Some(vec![1_179_648, 2304, 64, 1]));
        assert_eq!(view_strides(&part, &[4, 512 * 768]), None);
    }
}
