//! Operators that read images in one of their formats: pools, images made larger or smaller, edges, patches. They copy what does not
//! lie in the format that it suggests.

use rematic_trace::Layout;

use super::Use::Outputs;
use super::images::{Format, Images, Taken};
use super::{Call, Use, bytes};

/// Fewer channels are no reason to read them together.
const FEW: u64 = 4;

fn images(layout: &Layout) -> Option<Images> {
    Images::new(layout).filter(|_| layout.shape.len() > 3)
}

/// After the output (`max_pool2d_with_indices_out_cuda` in `DilatedMaxPool2d.cu`, `avg_pool2d_out_cuda` in `AveragePool2d.cu`).
pub(super) fn pool(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0).and_then(images) else { return };
    copies(uses, &[&input], input.format());
}

/// Input, and gradient in the input's format.
pub(super) fn pool_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(input)) = (call.input(0).and_then(images), call.input(1).and_then(images)) else {
        return;
    };
    copies(uses, &[&input, &gradient], input.format());
}

/// Before the output, unless channels lie last: the kernel for these takes any strides
/// (`adaptive_avg_pool2d_out_cuda_template` in `AdaptiveAveragePooling.cu`).
pub(super) fn adaptive(call: &Call<'_>, uses: &mut Vec<Use>) {
    let input = call.input(0).and_then(images).filter(|input| input.format() == Format::ChannelsFirst);
    let Some(input) = input else { return };
    let mut taken = Taken::new(uses);
    if let Some(copy) = taken.copy(&input, input.format()) {
        taken.make(Outputs);
        taken.give(copy);
    }
}

/// The gradient, unless channels lie last.
pub(super) fn adaptive_backward(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(gradient), Some(input)) = (call.input(0).and_then(images), call.input(1).and_then(images)) else {
        return;
    };
    if input.format() == Format::ChannelsFirst {
        copies(uses, &[&gradient], Format::ChannelsFirst);
    }
}

/// Images whose pixels are weighed, if channels lie last and are not few (`upsample_bilinear2d_out_cuda_template`).
pub(super) fn weighed(call: &Call<'_>, uses: &mut Vec<Use>) {
    let Some(input) = call.input(0).and_then(images) else { return };
    if input.format() == Format::ChannelsLast && input.shape[1] >= FEW {
        copies(uses, &[&input], Format::ChannelsLast);
    }
}

/// Images made larger or smaller by the nearest pixel, and the gradients of that and of weighing pixels (`UpSampleNearest2d.cu`,
/// `UpSampleBilinear2d.cu`). Few channels that lie last are put first, in the result too.
pub(super) fn resized(call: &Call<'_>, uses: &mut Vec<Use>) {
    let (Some(input), Some(output)) = (call.input(0).and_then(images), call.outputs.first()) else { return };
    let format = input.format();
    if format == Format::ChannelsFirst || input.shape[1] >= FEW {
        copies(uses, &[&input], format);
        return;
    }
    let mut taken = Taken::new(uses);
    taken.make(Outputs);
    let result = taken.take(bytes(output));
    let copy = taken.copy(&input, Format::ChannelsFirst);
    taken.give_all([result].into_iter().chain(copy));
}

/// With channels first only (`reflection_pad2d_out_template` in `ReflectionPad.cu`, `UpSampleBicubic2d.cu`).
pub(super) fn channels_first(call: &Call<'_>, uses: &mut Vec<Use>) {
    if let Some(input) = call.input(0).and_then(images) {
        copies(uses, &[&input], Format::ChannelsFirst);
    }
}

fn copies(uses: &mut Vec<Use>, read: &[&Images], format: Format) {
    if read.iter().all(|images| images.lies_in(format)) {
        return;
    }
    let mut taken = Taken::new(uses);
    taken.make(Outputs);
    let blocks: Vec<usize> = read.iter().filter_map(|images| taken.copy(images, format)).collect();
    taken.give_all(blocks);
}
