"""Recurrent layers as the CPU runs them: oneDNN's kernel for an LSTM, and step by step for the rest.

On the meta device `ATen/native/RNN.cpp` multiplies the inputs of each step by themselves; on the CPU, those of all steps at
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import CaptureError

aten: Any = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

LSTM_GATES, GRU_GATES = 4, 3
# The number of an LSTM in oneDNN's and cuDNN's list of kinds (`ideep::rnn_kind`, `cudnnRNNMode_t`).
LSTM_MODE = 2
# `get_good_ld` and `set_offsets` in oneDNN's cpu/rnn/rnn_utils.cpp: rows begin at cache lines and not at multiples of 256
# elements, parts of the workspace at pages.
CACHE_LINE, ALIASING, PAGE = 64, 256, 4096


def composite(name: str) -> Callable[..., Any]:
    """The compiled kernel that takes an operator apart. `decompose` takes another, in Python, once it is loaded."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    return lambda *args: op._op_dk(_COMPOSITE, *args)


# ---- cells ----


@dataclasses.dataclass(frozen=True)
class Weights:
    """Those of one direction of one layer."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None

    def of_input(self, input: Tensor) -> Tensor:
        return torch.nn.functional.linear(input, self.input, self.input_bias)

    def of_hidden(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.linear(hidden, self.hidden, self.hidden_bias)

    def projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else torch.matmul(hidden, self.projection.t())


def gathered(parameters: Sequence[Tensor], has_biases: bool, has_projections: bool) -> list[Weights]:
    """A flat list of parameters, by layers and directions."""
    count = 2 + 2 * has_biases + has_projections
    found = []
    for first in range(0, len(parameters), count):
        input, hidden, *rest = parameters[first : first + count]
        projection = rest.pop() if has_projections else None
        input_bias, hidden_bias = rest or (None, None)
        found.append(Weights(input, hidden, input_bias, hidden_bias, projection))
    return found


# A hidden state: one tensor for each of its parts.
Hidden = tuple[Tensor, ...]
Cell = Callable[[Tensor, Hidden, Weights], Hidden]


def _simple_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
        return (activation(weights.of_hidden(hidden[0]).add_(input)),)

    return cell


def _lstm_cell(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    gates = weights.of_hidden(hidden[0]).add_(input)
    parts = gates.unsafe_chunk(LSTM_GATES, 1)
    ingate, forgetgate = parts[0].sigmoid_(), parts[1].sigmoid_()
    cellgate, outgate = parts[2].tanh_(), parts[3].sigmoid_()
    state = (forgetgate * hidden[1]).add_(ingate * cellgate)
    out = outgate * state.tanh()
    out = weights.projected(out)
    return out, state


def _gru_cell(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    of_input = input.unsafe_chunk(GRU_GATES, 1)
    of_hidden = weights.of_hidden(hidden[0]).unsafe_chunk(GRU_GATES, 1)
    reset = of_hidden[0].add_(of_input[0]).sigmoid_()
    update = of_hidden[1].add_(of_input[1]).sigmoid_()
    new = of_input[2].add(of_hidden[2].mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _simple_cell(torch.tanh),
    "rnn_relu": _simple_cell(torch.relu),
}


# ---- layers ----


def _stepped(cell: Cell, inputs: Sequence[Tensor], hidden: Hidden, weights: Weights) -> tuple[list[Tensor], Hidden]:
    outputs = []
    for input in inputs:
        hidden = cell(input, hidden, weights)
        outputs.append(hidden[0])
    return outputs, hidden


def _full_layer(cell: Cell, input: Tensor, hidden: Hidden, weights: Weights) -> tuple[Tensor, Hidden]:
    of_input = weights.of_input(input)
    outputs, hidden = _stepped(cell, of_input.unbind(0), hidden, weights)
    return torch.stack(outputs, 0), hidden


def _full_bidirectional(
    cell: Cell, input: Tensor, hiddens: Sequence[Hidden], weights: Sequence[Weights]
) -> tuple[Tensor, list[Hidden]]:
    of_input = weights[0].of_input(input)
    steps = of_input.unbind(0)
    outputs, last = _stepped(cell, steps, hiddens[0], weights[0])
    out = torch.stack(outputs, 0)
    of_input = weights[1].of_input(input)
    steps = of_input.unbind(0)
    back_outputs, back_last = _stepped(cell, steps[::-1], hiddens[1], weights[1])
    back_out = torch.stack(back_outputs[::-1], 0)
    return torch.cat([out, back_out], out.dim() - 1), [last, back_last]


# Compiled code evaluates arguments from the last, so the state of an LSTM's cell comes before its output.


def _sliced(hidden: Hidden, start: int, end: int) -> Hidden:
    parts = [tensor.narrow(0, start, end - start) for tensor in reversed(hidden)]
    return tuple(reversed(parts))


def _joined(hiddens: Sequence[Hidden]) -> Hidden:
    parts = [torch.cat(part, 0) for part in reversed(list(zip(*hiddens, strict=True)))]
    return tuple(reversed(parts))


def _packed_layer(
    cell: Cell, input: Tensor, sizes: list[int], hidden: Hidden, weights: Weights
) -> tuple[Tensor, Hidden]:
    """Sequences of several lengths, longest first: those that end early leave their state behind."""
    of_input = weights.of_input(input)
    outputs: list[Tensor] = []
    ended: list[Hidden] = []
    offset, last = 0, sizes[0]
    for size in sizes:
        step = of_input.narrow(0, offset, size)
        offset += size
        if size < last:
            ended.append(_sliced(hidden, size, last))
            hidden = _sliced(hidden, 0, size)
        last = size
        hidden = cell(step, hidden, weights)
        outputs.append(hidden[0])
    ended.append(hidden)
    return torch.cat(outputs, 0), _joined(ended[::-1])


def _packed_back_layer(
    cell: Cell, input: Tensor, sizes: list[int], hidden: Hidden, weights: Weights
) -> tuple[Tensor, Hidden]:
    """The same from their ends: those that are shorter join in on the way."""
    of_input = weights.of_input(input)
    outputs: list[Tensor] = []
    offset, last = input.size(0), sizes[-1]
    state = _sliced(hidden, 0, last)
    for size in reversed(sizes):
        if size > last:
            state = _joined([state, _sliced(hidden, last, size)])
        step = of_input.narrow(0, offset - size, size)
        offset -= size
        last = size
        state = cell(step, state, weights)
        outputs.append(state[0])
    return torch.cat(outputs[::-1], 0), state


# ---- stacks of layers ----

# From the input, the hidden states and the weights of one layer: its output and its last states.
Layer = Callable[[Tensor, Sequence[Hidden], Sequence[Weights]], tuple[Tensor, Sequence[Hidden]]]


def _layer(cell: Cell, sizes: list[int] | None, directions: int) -> Layer:
    def full(input: Tensor, hiddens: Sequence[Hidden], weights: Sequence[Weights]) -> Any:
        if directions == 2:
            return _full_bidirectional(cell, input, hiddens, weights)
        out, last = _full_layer(cell, input, hiddens[0], weights[0])
        return out, [last]

    def packed(input: Tensor, hiddens: Sequence[Hidden], weights: Sequence[Weights]) -> Any:
        assert sizes is not None
        out, last = _packed_layer(cell, input, sizes, hiddens[0], weights[0])
        if directions == 1:
            return out, [last]
        back_out, back_last = _packed_back_layer(cell, input, sizes, hiddens[1], weights[1])
        return torch.cat([out, back_out], -1), [last, back_last]

    return full if sizes is None else packed


def _stacked(
    layer: Layer, input: Tensor, hiddens: Sequence[Hidden], weights: Sequence[Weights], directions: int, dropout: float
) -> tuple[Tensor, list[Hidden]]:
    last: list[Hidden] = []
    for first in range(0, len(hiddens), directions):
        own = slice(first, first + directions)
        out, states = layer(input, hiddens[own], weights[own])
        last.extend(states)
        input = out
        if dropout and first + directions < len(hiddens):
            input = aten.dropout(input, dropout, True)
        del out, states
    return input, last


def _step_by_step(
    kind: str,
    input: Tensor,
    sizes: list[int] | None,
    states: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    dropout: float,
    bidirectional: bool,
) -> tuple[Tensor, Hidden]:
    hiddens: list[Hidden] = list(zip(*[state.unbind(0) for state in states], strict=True))
    has_projections = len(states) > 1 and states[0].size(2) != states[1].size(2)
    weights = gathered(parameters, has_biases, has_projections)
    directions = 1 + bidirectional
    layer = _layer(CELLS[kind], sizes, directions)
    out, last = _stacked(layer, input, hiddens, weights, directions, dropout)
    joined = [torch.stack(part, 0) for part in reversed(list(zip(*last, strict=True)))]
    return out, tuple(reversed(joined))


# ---- oneDNN's LSTM ----


def _takes_onednn(input: Tensor, states: Sequence[Tensor]) -> bool:
    """`use_mkldnn` in ATen/native/RNN.cpp."""
    has_type = (
        input.dtype == torch.float32
        or (input.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        or (
            input.dtype == torch.float16
            and not torch.is_grad_enabled()
            and torch.ops.mkldnn._is_mkldnn_fp16_supported()
        )
    )
    is_on = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return is_on and has_type and input.numel() > 0 and states[0].size(2) == states[1].size(2)


def _onednn_lstm(
    input: Tensor,
    states: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`mkldnn_rnn` in ATen/native/mkldnn/RNN.cpp: a kernel for each direction of each layer."""
    input = (input.transpose(0, 1) if batch_first else input).contiguous()
    h, c = (state.contiguous() for state in states)
    size, directions, count = h.size(2), 1 + bidirectional, 4 if has_biases else 2
    outputs: list[Any] = [None] * directions
    last_h: list[Tensor] = []
    last_c: list[Tensor] = []
    for layer in range(num_layers):
        for direction in range(directions):
            index = layer * directions + direction
            given = parameters[count * index : count * (index + 1)]
            own_h, own_c = h[index], c[index]
            out = aten.mkldnn_rnn_layer(
                input, *given[:2], *_biases(given, has_biases), own_h, own_c, direction > 0, [], LSTM_MODE, size,
                num_layers, has_biases, bidirectional, batch_first, train,
            )  # fmt: skip
            outputs[direction] = out[0]
            last_h.append(out[1])
            last_c.append(out[2])
            del out
        input = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and layer < num_layers - 1:
            input = aten.dropout(input, dropout, True)
    hy = torch.stack(last_h, 0)
    cy = torch.stack(last_c, 0)
    return (input.transpose(0, 1) if batch_first else input), hy, cy


def _biases(given: Sequence[Tensor], has_biases: bool) -> list[Tensor]:
    if has_biases:
        return list(given[2:4])
    # As large as the weights, for whatever reason; the last is made first.
    zeros = [torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device) for weight in reversed(given[:2])]
    return zeros[::-1]


def onednn_workspace(steps: int, batch: int, input_size: int, hidden_size: int) -> int:
    """Bytes that oneDNN's LSTM in single precision leaves for its backward.

    `set_offsets` in oneDNN's cpu/rnn/rnn_utils.cpp lays out, each from a page on: gates, outputs, three arrays of layer
    states, and two of cell states. States have a row for each step and one before them, for the layer and its input.
    """

    def row(elements: int) -> int:
        in_line = CACHE_LINE // 4
        padded = -(-elements // in_line) * in_line
        return padded + in_line if padded % ALIASING == 0 else padded

    def pages(elements: int) -> int:
        return -(-4 * elements // PAGE) * PAGE

    gates = pages(steps * batch * row(LSTM_GATES * hidden_size))
    outputs = pages(steps * batch * row(hidden_size))
    states = pages(2 * (steps + 1) * batch * row(max(input_size, hidden_size)))
    cells = pages(2 * (steps + 1) * batch * hidden_size)
    return gates + outputs + 3 * states + 2 * cells


def rnn_layer_meta(
    input: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx: Tensor,
    cx: Tensor,
    reverse: bool,
    batch_sizes: list[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if train and input.dtype != torch.float32:
        raise CaptureError(
            f"How much memory oneDNN's LSTM keeps in {str(input.dtype).removeprefix('torch.')} is not known; train it in "
            'float32 on the CPU (outside torch.autocast), or capture for device="cuda"'
        )
    steps, batch, width = input.shape
    kept = onednn_workspace(steps, batch, width, hidden_size) if train else 0
    out = input.new_empty([steps, batch, hidden_size])
    workspace = torch.empty(kept, dtype=torch.uint8, device="meta")
    return out, torch.empty_like(hx), torch.empty_like(cx), workspace


def rnn_layer_backward_meta(
    input: Tensor, weight0: Tensor, weight1: Tensor, weight2: Tensor, weight3: Tensor, hx: Tensor, cx: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    def like(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=torch.float32, device="meta")

    biases = [torch.empty(weight0.size(0), dtype=torch.float32, device="meta") for _ in range(2)]
    return like(input), like(weight0), like(weight1), *biases, like(hx), like(cx)


# ---- as on the CPU ----


def _lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    drops = dropout if train else 0.0
    if _takes_onednn(input, hx):
        return _onednn_lstm(input, hx, params, has_biases, num_layers, drops, train, bidirectional, batch_first)
    if batch_first:
        input = input.transpose(0, 1)
    out, (hy, cy) = _step_by_step("lstm", input, None, hx, params, has_biases, drops, bidirectional)
    return (out.transpose(0, 1) if batch_first else out), hy, cy


def _packed_lstm(
    data: Tensor,
    batch_sizes: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    drops, sizes = dropout if train else 0.0, batch_sizes.tolist()
    out, (hy, cy) = _step_by_step("lstm", data, sizes, hx, params, has_biases, drops, bidirectional)
    return out, hy, cy


def _one_state(kind: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        input: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor]:
        if batch_first:
            input = input.transpose(0, 1)
        drops = dropout if train else 0.0
        out, (hy,) = _step_by_step(kind, input, None, [hx], params, has_biases, drops, bidirectional)
        return (out.transpose_(0, 1) if batch_first else out), hy

    return run


def _packed_one_state(kind: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, Tensor]:
        drops, sizes = dropout if train else 0.0, batch_sizes.tolist()
        out, (hy,) = _step_by_step(kind, data, sizes, [hx], params, has_biases, drops, bidirectional)
        return out, hy

    return run


_ONE_STATE = ("gru", "rnn_tanh", "rnn_relu")
RECURRENT_ON_CPU: dict[str, Callable[..., Any]] = {
    "lstm.input": _lstm,
    "lstm.data": _packed_lstm,
    **{f"{kind}.input": _one_state(kind) for kind in _ONE_STATE},
    **{f"{kind}.data": _packed_one_state(kind) for kind in _ONE_STATE},
}
RECURRENT_META: dict[str, Callable[..., Any]] = {
    "mkldnn_rnn_layer": rnn_layer_meta,
    "mkldnn_rnn_layer_backward": rnn_layer_backward_meta,
}
