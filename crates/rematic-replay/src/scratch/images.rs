//! Images and the formats that kernels read them in, and blocks by the number of their take.

use rematic_trace::{Dtype, Layout};

use super::{Use, bytes, product};

/// In which order the dimensions of images lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    ChannelsFirst,
    ChannelsLast,
}

/// A tensor as an operator over two or three dimensions of images sees it.
#[derive(Clone, Debug)]
pub(super) struct Images {
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
    pub(super) bytes: u64,
    pub(super) dtype: Dtype,
}

impl Images {
    /// Images with one dimension have a second one of extent 1 (`view4d`).
    pub(super) fn new(layout: &Layout) -> Option<Self> {
        let (mut shape, mut strides) = (layout.shape.clone(), layout.strides.clone());
        if let (&[_, _, places], &[_, _, stride]) = (&shape[..], &strides[..]) {
            shape.insert(2, 1);
            strides.insert(2, product([places, stride]));
        }
        let is_known = matches!(shape.len(), 4 | 5) && strides.len() == shape.len();
        is_known.then(|| Images { shape, strides, bytes: bytes(layout), dtype: layout.dtype })
    }

    /// The dimensions of a format, the innermost first.
    fn order(&self, format: Format) -> Vec<usize> {
        let places = (2..self.shape.len()).rev();
        match format {
            Format::ChannelsFirst => places.chain([1, 0]).collect(),
            Format::ChannelsLast => [1].into_iter().chain(places).chain([0]).collect(),
        }
    }

    /// The format that the strides suggest (`is_channels_last_strides_2d_s4` in `MemoryFormat.h`): more may lie between images than they
    /// have, and what could be either has channels first.
    pub(super) fn format(&self) -> Format {
        let mut least = 0;
        if self.strides[1] == 0 {
            return Format::ChannelsFirst;
        }
        for dim in self.order(Format::ChannelsLast) {
            let (extent, stride) = (self.shape[dim], self.strides[dim]);
            if extent == 0 || stride < least || (dim == 0 && least == self.strides[1]) {
                return Format::ChannelsFirst;
            }
            least = product([stride, extent]);
        }
        Format::ChannelsLast
    }

    pub(super) fn lies_in(&self, format: Format) -> bool {
        let mut step = 1;
        self.order(format).into_iter().filter(|dim| self.shape[*dim] != 1).all(|dim| {
            let fits = self.strides[dim] == step;
            step = product([step, self.shape[dim]]);
            fits
        })
    }

    /// Without gaps, in a format.
    pub(super) fn dense(&self, format: Format) -> Self {
        let (mut made, mut step) = (self.clone(), 1);
        for dim in self.order(format) {
            made.strides[dim] = step;
            step = product([step, self.shape[dim]]);
        }
        made
    }
}

/// What was taken, by its number.
pub(super) struct Taken<'a> {
    uses: &'a mut Vec<Use>,
    count: usize,
}

impl<'a> Taken<'a> {
    pub(super) fn new(uses: &'a mut Vec<Use>) -> Self {
        Taken { uses, count: 0 }
    }

    /// What it makes, at this moment.
    pub(super) fn make(&mut self, outputs: Use) {
        self.uses.push(outputs);
    }

    /// A copy of what has gaps or lies the other way.
    pub(super) fn copy_of(&mut self, layout: Option<&Layout>) -> Option<usize> {
        layout.filter(|layout| !layout.is_contiguous()).map(|layout| self.take(bytes(layout)))
    }

    /// Gives several back, the last one first.
    pub(super) fn give_all(&mut self, numbers: impl IntoIterator<Item = usize, IntoIter: DoubleEndedIterator>) {
        numbers.into_iter().rev().for_each(|number| self.give(number));
    }

    pub(super) fn take(&mut self, bytes: u64) -> usize {
        self.uses.push(Use::Take(bytes));
        self.count += 1;
        self.count - 1
    }

    pub(super) fn give(&mut self, number: usize) {
        self.uses.push(Use::Give(self.count - 1 - number));
    }

    /// What another rule says.
    pub(super) fn extend(&mut self, uses: impl IntoIterator<Item = Use>) {
        for each in uses {
            self.count += usize::from(matches!(each, Use::Take(_)));
            self.uses.push(each);
        }
    }

    /// A copy of what does not lie in a format.
    pub(super) fn copy(&mut self, images: &Images, format: Format) -> Option<usize> {
        (!images.lies_in(format)).then(|| self.take(images.bytes))
    }
}
