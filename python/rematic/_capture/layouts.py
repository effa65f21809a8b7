"""How kernels lay out what they return, where the meta device does otherwise.

The meta kernels that PyTorch writes in Python cast their operands before they look at them, take backward kernels apart,
and know one memory format. What they say of shapes and types holds; strides are put right here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format

Kernel = Callable[..., Any]
Strides = tuple[int, ...]
# From an operator's arguments and one of its outputs on the meta device to the output's real strides.
Rule = Callable[[Any, Tensor], Strides]

aten: Any = torch.ops.aten


# ---- rules ----


def iterated(args: Any, out: Tensor) -> Strides:
    """TensorIterator's: the order of dimensions of the first operand that has an opinion."""
    operands = [item for item in args if isinstance(item, Tensor)]
    if all(item.shape == out.shape and item.stride() == out.stride() for item in operands):
        return out.stride()
    broadcast = [item.expand(out.shape) for item in operands if item.dim() or len(operands) == 1]
    return compute_elementwise_output_strides(*broadcast) if broadcast else out.stride()


def contiguous(args: Any, out: Tensor) -> Strides:
    """Whatever the inputs are."""
    return _strides(out.shape, torch.contiguous_format)


def suggested(args: Any, out: Tensor) -> Strides:
    """The memory format of the first input."""
    return _strides(out.shape, suggest_memory_format(args[0]))


def suggested_by_input(args: Any, out: Tensor) -> Strides:
    """The same for a gradient: the memory format of the input, which comes second."""
    return _strides(out.shape, suggest_memory_format(args[1]))


def _strides(shape: torch.Size, memory_format: torch.memory_format) -> Strides:
    return torch.empty(shape, device="meta", memory_format=memory_format).stride()


# ---- operators ----

# Kernels of TensorIterator that do not carry the tag `pointwise`.
_ITERATED = "elu_backward hardsigmoid_backward hardswish_backward hardtanh_backward softplus_backward".split()
# Their operands come in another order, or are copied first.
_NOT_ITERATED = ("masked_fill.Scalar", "native_dropout_backward", "threshold_backward")
_PADS = "reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d".split()
_RULES: dict[Rule, list[str]] = {
    contiguous: (
        "_log_softmax_backward_data glu_backward huber_loss_backward mse_loss_backward rrelu_with_noise "
        "rrelu_with_noise_backward smooth_l1_loss_backward"
    ).split(),
}
_CPU_RULES: dict[Rule, list[str]] = {
    contiguous: ["log_sigmoid_forward"],
    suggested: ["channel_shuffle", "max_unpool2d", "pixel_shuffle", "pixel_unshuffle", "roll", *_PADS],
    suggested_by_input: [f"{name}_backward" for name in _PADS],
}
_CUDA_RULES: dict[Rule, list[str]] = {contiguous: ["pixel_unshuffle"]}


# ---- storages that are larger than their tensors ----


def _shrunk(size: int, shape: Any, dtype: torch.dtype) -> Tensor:
    """A tensor that was made larger and then resized: its storage stays."""
    return torch.empty(max(size, math.prod(shape)), dtype=dtype, device="meta").resize_(shape)


def _columns_to_image(input: Tensor, output_size: list[int], kernel_size: list[int], *options: Any) -> Tensor:
    shape = [*input.shape[:-2], input.size(-2) // math.prod(kernel_size), *output_size]
    return _shrunk(input.numel(), shape, input.dtype)


def _reduced_loss(name: str) -> Kernel:
    """The mean or the sum of a loss is written into the first element of its terms."""
    function = _meta_functions()[_named(name)]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        terms = torch.broadcast_shapes(args[0].shape, args[1].shape)
        if out.shape == terms:
            strides = iterated(args[:2], out)
            return torch.empty_strided(terms, strides, dtype=out.dtype, device="meta")
        return _shrunk(math.prod(terms), out.shape, out.dtype)

    return kernel


def _log_sigmoid_on_cuda(input: Tensor) -> tuple[Tensor, Tensor]:
    """Only the CPU's kernel keeps something for backward."""
    return torch.empty_like(input), input.new_empty(0)


def _mish_backward(gradient: Tensor, input: Tensor) -> Tensor:
    """On other devices than the CPU and CUDA it is taken apart."""
    strides = iterated((gradient, input), input)
    return torch.empty_strided(input.shape, strides, dtype=input.dtype, device="meta")


@functools.cache
def _meta_functions() -> dict[Any, Kernel]:
    """PyTorch's own meta kernels in Python, as `activate_meta` in torch/_meta_registrations.py finds them."""
    from torch._decomp import global_decomposition_table

    found: dict[Any, Kernel] = {}
    for kind in ("meta", "post_autograd", "pre_autograd"):
        for op, function in global_decomposition_table[kind].items():
            found.setdefault(op, function)
    return found


def _named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _laid_out(function: Kernel, rule: Rule) -> Kernel:
    """A meta kernel with the strides of a rule."""

    def settle(args: Any, out: Any) -> Any:
        strides = rule(args, out)
        if strides == out.stride():
            return out
        return torch.empty_strided(out.shape, strides, dtype=out.dtype, device="meta")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if isinstance(out, Tensor):
            return settle(args, out)
        return tuple([settle(args, item) for item in out])

    return kernel


@functools.cache
def layout_kernels(device: str) -> dict[str, Kernel]:
    """Meta kernels by the names of their operators."""
    functions = _meta_functions()
    rules: dict[Any, Rule] = {
        op: iterated
        for op in functions
        if isinstance(op, torch._ops.OpOverload)
        and op.namespace == "aten"
        and torch.Tag.pointwise in op.tags
        and not op._schema.is_mutable
        and not any(argument.name == "memory_format" for argument in op._schema.arguments)
        and not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    }
    rules |= {_named(name): iterated for name in _ITERATED}
    for name in _NOT_ITERATED:
        rules.pop(_named(name), None)
    for table in (_RULES, _CUDA_RULES if device == "cuda" else _CPU_RULES):
        rules |= {_named(name): rule for rule, names in table.items() for name in names}
    kernels = {op.name().removeprefix("aten::"): _laid_out(functions[op], rule) for op, rule in rules.items()}
    kernels |= {name: _reduced_loss(name) for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")}
    if device == "cuda":
        kernels["log_sigmoid_forward"] = _log_sigmoid_on_cuda
    return kernels | {"col2im": _columns_to_image, "mish_backward": _mish_backward}
