//! Recurrent layers: where weights lie in their buffer, and how much is kept for backward.

use std::ffi::{c_int, c_void};

use super::super::put;
use super::super::status::{OK, Status};
use super::super::streams::{handle, makes, nothing};
use super::tensors::{Layout, numbers};
use super::{BAD_PARAM, Handle, Use, element, used};

/// What `cudnnRNNDescriptor_t` points to.
#[derive(Clone, Copy, Default)]
pub struct Layers {
    mode: c_int,
    biases: usize,
    directions: usize,
    kind: c_int,
    input: usize,
    hidden: usize,
    projected: usize,
    layers: usize,
}

/// `cudnnRNNMode_t`: two kinds of plain cells, then these.
const LSTM: c_int = 2;
const GRU: c_int = 3;

impl Layers {
    fn gates(&self) -> usize {
        match self.mode {
            LSTM => 4,
            GRU => 3,
            _ => 1,
        }
    }

    /// What a layer hands on of each direction.
    fn out(&self) -> usize {
        if self.projected > 0 { self.projected } else { self.hidden }
    }

    /// Rows and columns of a matrix: those of the input's gates, of the state's gates, and the projection. The layers count
    /// each direction.
    fn matrix(&self, layer: usize, number: usize) -> (usize, usize) {
        let input = if layer < self.directions { self.input } else { self.out() * self.directions };
        match number / self.gates() {
            0 => (self.hidden, input),
            1 => (self.hidden, self.out()),
            _ => (self.projected, self.hidden),
        }
    }

    fn matrices(&self) -> usize {
        2 * self.gates() + usize::from(self.projected > 0)
    }

    /// Elements before a matrix: those of the layers and gates before it.
    fn before(&self, layer: usize, number: usize) -> usize {
        let size = |layer, number| {
            let (rows, columns) = self.matrix(layer, number);
            rows * columns
        };
        let whole: usize =
            (0..layer).map(|layer| (0..self.matrices()).map(|number| size(layer, number)).sum::<usize>()).sum();
        whole + (0..number).map(|number| size(layer, number)).sum::<usize>()
    }

    /// Elements of the biases of a layer.
    fn biased(&self) -> usize {
        self.biases * self.gates() * self.hidden
    }

    /// Elements of the buffer: all matrices, then all biases.
    fn elements(&self) -> usize {
        let layers = self.layers * self.directions;
        self.before(layers, 0) + layers * self.biased()
    }

    /// What is kept of every step for backward is not documented. It is taken as gates and cell states, and outputs between
    /// layers, as captures take it (`python/rematic/_capture/cudnn.py`).
    fn kept(&self, tokens: usize) -> usize {
        let cell = match self.mode {
            LSTM => 5,
            GRU => 4,
            _ => 1,
        };
        let inner = self.layers * cell * self.hidden + self.layers.saturating_sub(1) * self.out();
        tokens * self.directions * inner * element(self.kind)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateRNNDescriptor(place: *mut *mut Layers) -> Status {
    // SAFETY: the caller's variable; the destroying function takes it back.
    unsafe { put(place, Box::into_raw(Box::default())) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroyRNNDescriptor(layers: *mut Layers) -> Status {
    if !layers.is_null() {
        // SAFETY: the caller has it from the creating function, and does not use it again.
        drop(unsafe { Box::from_raw(layers) });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetRNNDescriptor_v8(
    place: *mut Layers,
    _algorithm: c_int,
    mode: c_int,
    biases: c_int,
    direction: c_int,
    _input_mode: c_int,
    kind: c_int,
    _precision: c_int,
    _math: c_int,
    input: i32,
    hidden: i32,
    projected: i32,
    layers: i32,
    _dropout: Handle,
    _flags: u32,
) -> Status {
    /// `CUDNN_RNN_NO_BIAS` and `CUDNN_RNN_DOUBLE_BIAS`; the others have one.
    const NO_BIAS: c_int = 0;
    const DOUBLE_BIAS: c_int = 2;
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    // SAFETY: null, or a description of the caller's making.
    let Some(place) = (unsafe { place.as_mut() }) else { return BAD_PARAM };
    *place = Layers {
        mode,
        biases: match biases {
            NO_BIAS => 0,
            DOUBLE_BIAS => 2,
            _ => 1,
        },
        directions: 1 + usize::from(direction == 1),
        kind,
        input: count(input),
        hidden: count(hidden),
        // A projection as wide as the state is none.
        projected: if projected == hidden { 0 } else { count(projected) },
        layers: count(layers),
    };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNWeightSpaceSize(
    _handle: Handle,
    layers: *const Layers,
    bytes: *mut usize,
) -> Status {
    // SAFETY: null, or a description of the caller's making; the caller's variable.
    unsafe {
        let Some(layers) = layers.as_ref() else { return BAD_PARAM };
        put(bytes, layers.elements() * element(layers.kind));
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNWeightParams(
    _handle: Handle,
    layers: *const Layers,
    layer: i32,
    _size: usize,
    buffer: *const c_void,
    number: i32,
    matrix: *mut Layout,
    at_matrix: *mut usize,
    bias: *mut Layout,
    at_bias: *mut usize,
) -> Status {
    // SAFETY: null, or descriptions of the caller's making; the caller's variables.
    unsafe {
        let (Some(layers), Ok(layer), Ok(number)) = (layers.as_ref(), usize::try_from(layer), usize::try_from(number))
        else {
            return BAD_PARAM;
        };
        if layer >= layers.layers * layers.directions || number >= layers.matrices() {
            return BAD_PARAM;
        }
        let address = |elements: usize| buffer as usize + elements * element(layers.kind);
        let (rows, columns) = layers.matrix(layer, number);
        if let Some(matrix) = matrix.as_mut() {
            matrix.dense(layers.kind, &[1, rows as c_int, columns as c_int]);
        }
        put(at_matrix, address(layers.before(layer, number)));
        // The state's gates have biases of their own only where there are two.
        let biased = number < layers.biases * layers.gates();
        if let Some(bias) = bias.as_mut() {
            bias.dense(layers.kind, &[1, layers.hidden as c_int, 1]);
        }
        let matrices = layers.before(layers.layers * layers.directions, 0);
        let at = address(matrices + layer * layers.biased() + number * layers.hidden);
        put(at_bias, if biased { at } else { 0 });
    }
    OK
}

/// What `cudnnRNNDataDescriptor_t` points to: the steps of all sequences.
#[derive(Default)]
pub struct Sequences {
    tokens: usize,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateRNNDataDescriptor(place: *mut *mut Sequences) -> Status {
    // SAFETY: the caller's variable; the destroying function takes it back.
    unsafe { put(place, Box::into_raw(Box::default())) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroyRNNDataDescriptor(sequences: *mut Sequences) -> Status {
    if !sequences.is_null() {
        // SAFETY: the caller has it from the creating function, and does not use it again.
        drop(unsafe { Box::from_raw(sequences) });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetRNNDataDescriptor(
    place: *mut Sequences,
    _kind: c_int,
    _layout: c_int,
    _longest: c_int,
    batch: c_int,
    _width: c_int,
    lengths: *const c_int,
    _fill: *mut c_void,
) -> Status {
    // SAFETY: null, or a description of the caller's making, and a length for each of the batch.
    unsafe {
        let Some(place) = place.as_mut() else { return BAD_PARAM };
        place.tokens = numbers(lengths, batch).iter().map(|length| usize::try_from(*length).unwrap_or(0)).sum();
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNTempSpaceSizes(
    _handle: Handle,
    layers: *const Layers,
    mode: c_int,
    sequences: *const Sequences,
    workspace: *mut usize,
    reserve: *mut usize,
) -> Status {
    const TRAINING: c_int = 1;
    used(Use::Recurrent);
    // SAFETY: null, or descriptions of the caller's making; the caller's variables.
    unsafe {
        let (Some(layers), Some(sequences)) = (layers.as_ref(), sequences.as_ref()) else { return BAD_PARAM };
        put(workspace, 0);
        put(reserve, if mode == TRAINING { layers.kept(sequences.tokens) } else { 0 });
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDropoutGetStatesSize(_handle: Handle, bytes: *mut usize) -> Status {
    // SAFETY: the caller's variable.
    unsafe { put(bytes, 0) };
    OK
}

makes! {
    cudnnCreateDropoutDescriptor();
}
nothing! {
    cudnnDestroyDropoutDescriptor cudnnSetDropoutDescriptor cudnnRestoreDropoutDescriptor cudnnRNNForward
    cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_lie_one_after_the_other() {
        let lstm = Layers { mode: LSTM, biases: 2, directions: 2, input: 3, hidden: 5, layers: 2, ..Layers::default() };
        // 4 gates of 5 x 3 and 5 x 5 each way, then of 5 x 10 and 5 x 5, and 2 x 4 x 5 biases for each of the four.
        assert_eq!(lstm.elements(), 2 * 4 * (15 + 25) + 2 * 4 * (50 + 25) + 4 * 40);
        assert_eq!(lstm.before(0, 4), 60);
        assert_eq!(lstm.before(2, 0), 320);
        assert_eq!(lstm.kept(7), 7 * 2 * (2 * 25 + 5) * 4);
        let projected = Layers { projected: 2, directions: 1, layers: 1, ..lstm };
        assert_eq!(projected.elements(), 4 * (15 + 10) + 10 + 40);
    }
}
