"""Recurrent layers as CUDA runs them: all of them in one kernel of cuDNN, over weights that lie in one buffer.

What torch does around the kernel is in ATen/native/cudnn/RNN.cpp. cuDNN says on a card how much it keeps for backward, and
does not say how it counts; what is taken instead is an assumption, and the trace says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .recurrent import LSTM_MODE, composite
from .values import Values

aten: Any = torch.ops.aten

RESERVE = "cuDNN's reserve for recurrent layers taken as gates, cell states, and outputs between layers"
# The kinds of `cudnnRNNMode_t`, and what each keeps of a step and unit: an LSTM four gates and its cell's state; a GRU three
# gates and the hidden part of the last; the others their output.
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": LSTM_MODE, "gru": 3}
KEPT = {0: 1, 1: 1, 2: 5, 3: 4}
GATES = {0: 1, 1: 1, 2: 4, 3: 3}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def flatten_weights(model: nn.Module) -> None:
    """`flatten_parameters`, which moving a module to the card calls: its weights become views of one buffer."""
    for module in model.modules():
        if not isinstance(module, nn.RNNBase):
            continue
        weights = [weight for weight in module._flat_weights if isinstance(weight, Tensor)]
        dtypes = {weight.dtype for weight in weights}
        storages = {weight.untyped_storage()._cdata for weight in weights}
        if len(dtypes) != 1 or not dtypes <= set(TYPES) or len(storages) != len(weights):
            continue
        mode = MODES[module.mode.lower()]
        with torch.no_grad():
            flat = torch.empty(_elements(weights, mode, module.hidden_size, module.bias), dtype=dtypes.pop(), device="meta")
            offset = 0
            for weight in weights:
                weight.set_(flat.untyped_storage(), offset, weight.shape, weight.stride())
                offset += weight.numel()


def _elements(weights: Sequence[Tensor], mode: int, hidden_size: int, has_biases: bool) -> int:
    """Elements of the buffer: cuDNN has two biases for each gate, asked for or not (`CUDNN_RNN_DOUBLE_BIAS`)."""
    count = sum(weight.numel() for weight in weights)
    if has_biases:
        return count
    matrices = sum(1 for weight in weights if weight.size(0) == GATES[mode] * hidden_size)
    return count + matrices * GATES[mode] * hidden_size


def _weight_buffer(parameters: Sequence[Tensor]) -> Tensor | None:
    """`try_get_weight_buf`: the buffer, if all weights lie in it."""
    storage = parameters[0].untyped_storage()
    if any(parameter.untyped_storage()._cdata != storage._cdata for parameter in parameters):
        return None
    buffer = torch.empty(0, dtype=parameters[0].dtype, device="meta")
    return buffer.set_(storage)


def _run(
    kind: str,
    input: Tensor,
    sizes: list[int],
    states: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """`_cudnn_impl`"""
    hx, cx = states[0], states[1] if len(states) > 1 else None
    hidden, projected = hx.size(2), 0
    if cx is not None and cx.size(2) != hidden:
        hidden, projected = cx.size(2), hidden
    if torch.is_autocast_enabled("cuda"):
        input, hx, cx, parameters = _cast(input, hx, cx, parameters)
    buffer = _weight_buffer(parameters)
    count = 2 + 2 * has_biases + bool(projected)
    out, hy, cy, _, _ = aten._cudnn_rnn(
        input, list(parameters), count, buffer, hx, cx, MODES[kind], hidden, projected, num_layers, batch_first, dropout,
        train, bidirectional, sizes, None,
    )  # fmt: skip
    return (out, hy) if cx is None else (out, hy, cy)


def _cast(input: Tensor, hx: Tensor, cx: Tensor | None, parameters: Sequence[Tensor]) -> Any:
    """`_cudnn_rnn_cast_reflatten` in ATen/cudnn/AutocastRNN.cpp: the weights are cast into a buffer of their own."""
    dtype = torch.get_autocast_dtype("cuda")
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=dtype, device="meta")
    cast = []
    offset = 0
    for parameter in parameters:
        view = torch.empty(0, dtype=dtype, device="meta")
        view.set_(flat.untyped_storage(), offset, parameter.shape, parameter.stride())
        cast.append(view.copy_(parameter))
        offset += parameter.numel()
    return input.to(dtype), hx.to(dtype), None if cx is None else cx.to(dtype), cast


def _takes_cudnn(input: Tensor) -> bool:
    return torch.backends.cudnn.enabled and input.dtype in TYPES and input.numel() > 0


def _full(kind: str) -> Callable[..., Any]:
    plain = composite(f"{kind}.input")

    def run(input: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int, *rest: Any) -> Any:
        if not _takes_cudnn(input):
            return plain(input, hx, params, has_biases, num_layers, *rest)
        return _run(kind, input, [], [hx] if isinstance(hx, Tensor) else hx, params, has_biases, num_layers, *rest)

    return run


def _packed(kind: str) -> Callable[..., Any]:
    plain = composite(f"{kind}.data")

    def run(data: Tensor, batch_sizes: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, *rest: Any) -> Any:
        if not _takes_cudnn(data):
            return plain(data, batch_sizes, hx, params, has_biases, *rest)
        states = [hx] if isinstance(hx, Tensor) else hx
        return _run(kind, data, batch_sizes.tolist(), states, params, has_biases, *rest)

    return run


# ---- kernels ----


def reserve_bytes(input: Tensor, sizes: list[int], mode: int, hidden: int, out: int, layers: int, directions: int) -> int:
    """What `RESERVE` says, in bytes. An element at a step counts once, in sequences of several lengths too."""
    tokens = sum(sizes) or input.size(0) * input.size(1)
    inner = layers * KEPT[mode] * hidden + (layers - 1) * out
    return tokens * directions * inner * input.element_size()


def _rnn_meta(
    input: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:
    directions, out_size = 1 + bidirectional, proj_size or hidden_size
    if batch_sizes:
        out = input.new_empty([input.size(0), directions * out_size])
    else:
        steps, batch = (input.size(1), input.size(0)) if batch_first else (input.size(0), input.size(1))
        out = input.new_empty([steps, batch, directions * out_size])
        out = out.transpose_(0, 1) if batch_first else out
    kept = reserve_bytes(input, batch_sizes, mode, hidden_size, out_size, num_layers, directions) if train else 0
    if weight_buf is None:
        has_biases = weight_stride0 >= 4
        weight_buf = input.new_empty([_elements(weight, mode, hidden_size, has_biases)])
    else:
        weight_buf = weight_buf.detach()
    hy = hx.new_empty(hx.shape)
    cy = input.new_empty([0]) if cx is None else cx.new_empty(cx.shape)
    return out, hy, cy, torch.empty(kept, dtype=torch.uint8, device="meta"), weight_buf


def _rnn_backward_meta(
    input: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
    reserve: Tensor,
    output_mask: list[bool],
) -> Any:
    """The gradients of the weights are views of one buffer too."""
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    order = (1, 0, 2) if batch_first and not batch_sizes else tuple(range(input.dim()))
    d_input = input.new_empty([input.size(axis) for axis in order]).permute(order)
    d_hx = hx.new_empty(hx.shape)
    d_cx = None if cx is None else cx.new_empty(cx.shape)
    d_weights: list[Tensor] = []
    if output_mask[3]:
        flat, offset = weight_buf.new_empty(weight_buf.shape), 0
        for tensor in weight:
            # Torch's types ask for the strides too.
            view = flat.new_empty([0]).set_(flat.untyped_storage(), offset, tensor.shape)  # type: ignore[call-overload]
            d_weights.append(view)
            offset += tensor.numel()
    return d_input, d_hx, d_cx, d_weights


def assume_reserve(values: Values, func: Any) -> None:
    """The trace says what was assumed."""
    if func is aten._cudnn_rnn.default:
        values.assumptions.add(RESERVE)


CUDNN_ON_CUDA: dict[str, Callable[..., Any]] = {
    **{f"{kind}.input": _full(kind) for kind in MODES},
    **{f"{kind}.data": _packed(kind) for kind in MODES},
}
CUDNN_META: dict[str, Callable[..., Any]] = {
    "_cudnn_rnn": _rnn_meta,
    "_cudnn_rnn_backward": _rnn_backward_meta,
}
