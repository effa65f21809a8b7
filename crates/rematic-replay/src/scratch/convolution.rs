//! Convolutions by cuDNN (`ConvShared.cpp`, `Convolution.cpp`): copies of what does not lie as the library is to read it, and what it
//! takes to sum a gradient up for the bias. The workspace of the algorithm that cuDNN picks is known to the library alone.

use rematic_trace::{Dtype, Layout};

use super::Use::{self, Output};
use super::images::{Format, Images, Taken};
use super::{Call, bytes, reduction};

/// The format of two tensors that cuDNN reads together (`cudnn_conv_suggest_memory_format`).
fn common(first: &Images, second: &Images) -> Format {
    let is_last = |images: &Images| images.format() == Format::ChannelsLast;
    let has_none = first.dtype == Dtype::F64 || second.dtype == Dtype::F64;
    if !has_none && (is_last(first) || is_last(second)) { Format::ChannelsLast } else { Format::ChannelsFirst }
}

/// A convolution with what it reads.
struct Convolution {
    input: Images,
    weight: Images,
    /// A weight begins with the channels of the input then, and not with those of the output.
    transposed: bool,
    /// Whether PyTorch's own kernel runs: one filter a channel, and channels that come first.
    is_own: bool,
    /// The copy of an input with one dimension that is made before all else.
    copied: Option<u64>,
}

impl Convolution {
    fn new(call: &Call<'_>, input: &Layout, weight: &Layout, output: &Layout) -> Option<Self> {
        let runs = match input.dtype {
            Dtype::F16 | Dtype::F32 | Dtype::F64 => true,
            Dtype::Bf16 => call.architecture.capability >= 80,
            _ => false,
        };
        if !runs || output.elements() == 0 || input.shape.len() != output.shape.len() {
            return None;
        }
        let (&[_, read, ref before @ ..], &[_, made, ref after @ ..]) = (&input.shape[..], &output.shape[..]) else {
            return None;
        };
        let extent = |places: &[u64]| places.iter().fold(1, |all: u64, each| all.saturating_mul(*each));
        let transposed = match (*weight.shape.first()? == made, *weight.shape.first()? == read) {
            (true, true) => extent(before) < extent(after),
            (true, false) => false,
            (false, true) => true,
            (false, false) => return None,
        };
        let is_copied = input.shape.len() == 3 && !input.is_contiguous();
        let first =
            if is_copied { Images::new(&Layout::contiguous(input.dtype, &input.shape)) } else { Images::new(input) };
        let (input, weight, copied) = (first?, Images::new(weight)?, is_copied.then(|| bytes(input)));
        let by_channel = !transposed && read > 1 && weight.shape[1] == 1 && made.is_multiple_of(read);
        let is_own = by_channel && common(&input, &weight) == Format::ChannelsFirst;
        Some(Convolution { input, weight, transposed, is_own, copied })
    }

    fn format(&self) -> Format {
        common(&self.input, &self.weight)
    }
}

/// Input and weight, where they do not lie in the format of both.
pub(super) fn forward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(weight), Some(output)) = (call.input(0), call.input(1), call.outputs.first()) else {
        return;
    };
    let Some(convolution) = Convolution::new(call, input, weight, output) else { return };
    let mut taken = Taken::new(uses);
    let first = convolution.copied.map(|bytes| taken.take(bytes));
    let format = convolution.format();
    let mut input = convolution.input.clone();
    let read = taken.copy(&input, format);
    if read.is_some() {
        input = input.dense(format);
    }
    taken.make(Use::Outputs);
    let inside = if convolution.transposed {
        [taken.copy(&convolution.weight, format), None]
    } else {
        multiplied(&input, &convolution.weight, output, format, &mut taken)
    };
    for copy in inside.into_iter().rev().chain([read, first]).flatten() {
        taken.give(copy);
    }
}

/// Weight and input for the kernel of a plain convolution, where they do not lie as its output suggests: one with a single place and
/// channel has channels first (`cudnn_convolution_forward_out`).
fn multiplied(
    input: &Images,
    weight: &Images,
    output: &Layout,
    format: Format,
    taken: &mut Taken<'_>,
) -> [Option<usize>; 2] {
    let Some(format) = Images::new(output).map(|images| images.dense(format).format()) else { return [None, None] };
    [taken.copy(weight, format), taken.copy(input, format)]
}

/// The input, where it does not lie in its format; the gradient in that format, if its own is the other one; and for each of the
/// two gradients what it reads, where that has gaps. Then the sum for the bias, of the gradient as it came.
pub(super) fn backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(input), Some(weight)) = (call.input(0), call.input(1), call.input(2)) else { return };
    let Some(convolution) = Convolution::new(call, input, weight, gradient) else { return };
    let Some(images) = Images::new(gradient) else { return };
    let wanted = Wanted::new(call, input, weight);
    let mut taken = Taken::new(uses);
    let first = convolution.copied.map(|bytes| taken.take(bytes));
    let held = if convolution.is_own {
        own(&convolution, &images, &wanted, &mut taken)
    } else {
        by_cudnn(call, &convolution, &images, &wanted, &mut taken);
        None
    };
    if let Some(bias) = wanted.bias {
        taken.make(Output(bias));
        let summed = Layout { dtype: gradient.dtype, shape: images.shape, strides: images.strides };
        taken.extend(reduction::channels(call, &summed));
    }
    [held, first].into_iter().flatten().for_each(|copy| taken.give(copy));
}

/// The places among the outputs of the gradients that were asked for.
struct Wanted {
    input: Option<usize>,
    weight: Option<usize>,
    bias: Option<usize>,
}

impl Wanted {
    fn new(call: &Call<'_>, input: &Layout, weight: &Layout) -> Self {
        let mut next = 0;
        let mut place = |fits: &dyn Fn(&Layout) -> bool| {
            let found = call.outputs.get(next).is_some_and(|output| fits(output));
            next += usize::from(found);
            found.then(|| next - 1)
        };
        Wanted {
            input: place(&|output| output.shape == input.shape),
            weight: place(&|output| output.shape == weight.shape),
            bias: place(&|output| output.shape.len() == 1),
        }
    }
}

/// `cudnn_convolution_backward` and `cudnn_convolution_transpose_backward`.
fn by_cudnn(call: &Call<'_>, convolution: &Convolution, gradient: &Images, wanted: &Wanted, taken: &mut Taken<'_>) {
    let (mut input, weight) = (convolution.input.clone(), &convolution.weight);
    let mut held = Vec::new();
    if wanted.weight.is_some()
        && let Some(copy) = taken.copy(&input, convolution.format())
    {
        held.push(copy);
        input = input.dense(convolution.format());
    }
    let mut gradient = gradient.clone();
    let format = input.format();
    // A plain one leaves gaps alone where the format is right; each of the two below then makes a copy.
    let is_right = if convolution.transposed { gradient.lies_in(format) } else { gradient.format() == format };
    if !is_right {
        held.push(taken.take(gradient.bytes));
        gradient = gradient.dense(format);
    }
    if let Some(at) = wanted.input {
        let format = common(&gradient, weight);
        taken.make(Output(at));
        let copies = if convolution.transposed {
            multiplied(&gradient, weight, call.outputs[at], format, taken)
        } else {
            [taken.copy(weight, format), taken.copy(&gradient, format)]
        };
        copies.into_iter().rev().flatten().for_each(|copy| taken.give(copy));
    }
    if let Some(at) = wanted.weight {
        let format = common(&input, &gradient);
        let (first, second) = if convolution.transposed { (&input, &gradient) } else { (&gradient, &input) };
        let copies = [taken.copy(first, format), taken.copy(second, format)];
        taken.make(Output(at));
        copies.into_iter().rev().flatten().for_each(|copy| taken.give(copy));
    }
    held.into_iter().rev().for_each(|copy| taken.give(copy));
}

/// PyTorch's own kernels have channels first (`DepthwiseConv2d.cu`, `DepthwiseConv3d.cu`). Over three dimensions, the copy of the
/// gradient that is said stays until the bias has its own.
fn own(convolution: &Convolution, gradient: &Images, wanted: &Wanted, taken: &mut Taken<'_>) -> Option<usize> {
    let over_three = gradient.shape.len() == 5;
    if over_three {
        taken.extend([wanted.input, wanted.weight].into_iter().flatten().map(Output));
    }
    let held = taken.copy(gradient, Format::ChannelsFirst);
    let read = wanted.weight.and_then(|_| taken.copy(&convolution.input, Format::ChannelsFirst));
    taken.extend(wanted.weight.filter(|_| !over_three).map(Output));
    read.into_iter().for_each(|copy| taken.give(copy));
    if over_three {
        return held;
    }
    taken.extend(wanted.input.map(Output));
    held.into_iter().for_each(|copy| taken.give(copy));
    None
}
