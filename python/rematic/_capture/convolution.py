"""The memory formats of convolutions, which depend on the library that runs them: oneDNN or PyTorch's own kernels on the
CPU, cuDNN on CUDA. On the meta device they are always contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._meta_registrations import calc_conv_nd_return_shape

from .hollow import Hollow

aten: Any = torch.ops.aten

FormatOf = Callable[..., torch.memory_format]
# A convolution over one dimension is run as one over two: the first has this place, and one element.
_ADDED = 2
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _format_on_cpu(
    input: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    trains: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.memory_format:
    """What `_convolution` in ATen/native/Convolution.cpp asks: which backend, and which format that takes."""
    input, weight = Hollow(input, trains), Hollow(weight, trains)
    with torch.set_grad_enabled(trains):
        backend = torch._C._select_conv_backend(
            input, weight, None, stride, padding, dilation, transposed, output_padding, groups, bias_sizes
        )
    return torch._C._conv_determine_backend_memory_format(input, weight, backend)


def _format_on_cuda(input: Tensor, weight: Tensor, *options: Any) -> torch.memory_format:
    """`cudnn_conv_suggest_memory_format` in ATen/native/ConvUtils.h. PyTorch's own kernels for depthwise convolutions run
    where this is the contiguous format, and keep to it."""
    if not torch.backends.cudnn.enabled or torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    last = _CHANNELS_LAST[weight.dim()]
    suggested = [torch._prims_common.suggest_memory_format(tensor) for tensor in (input, weight)]
    return last if last in suggested else torch.contiguous_format


class Convolutions:
    """The meta kernels of convolution and of its backward, with the formats of a device."""

    def __init__(self, format_of: FormatOf) -> None:
        self._format_of = format_of

    def forward(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
    ) -> Tensor:
        shape = calc_conv_nd_return_shape(
            input, weight, stride, padding, dilation, transposed, groups, output_padding if transposed else None
        )
        trains = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (input, weight, bias)
        )
        sizes = None if bias is None else list(bias.shape)
        options = (stride, padding, dilation, transposed, output_padding, groups)
        return _empty(shape, input, self._format(input, weight, sizes, trains, *options))

    def backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias_sizes: list[int] | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
        output_mask: list[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        options = (stride, padding, dilation, transposed, output_padding, groups)
        memory_format = self._format(input, weight, bias_sizes, True, *options)
        d_input = _empty(input.shape, grad_output, memory_format) if output_mask[0] else None
        d_weight = _empty(weight.shape, grad_output, memory_format) if output_mask[1] else None
        d_bias = grad_output.new_empty(grad_output.size(1)) if output_mask[2] else None
        return d_input, d_weight, d_bias

    def _format(
        self,
        input: Tensor,
        weight: Tensor,
        bias_sizes: list[int] | None,
        trains: bool,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
    ) -> torch.memory_format:
        spatial = weight.dim() - 2
        lists = [list(each) * (spatial // len(each)) for each in (stride, padding, dilation, output_padding)]
        if spatial == 1:
            input, weight = input.contiguous().unsqueeze(_ADDED), weight.unsqueeze(_ADDED)
            lists = [[neutral, *each] for neutral, each in zip((1, 0, 1, 0), lists, strict=True)]
        return self._format_of(input, weight, bias_sizes, trains, *lists[:3], transposed, lists[3], groups)


def _empty(shape: Any, like: Tensor, memory_format: torch.memory_format) -> Tensor:
    if len(shape) == 3:
        shape = [*shape[:_ADDED], 1, *shape[_ADDED:]]
        return torch.empty(shape, dtype=like.dtype, device="meta", memory_format=memory_format).squeeze(_ADDED)
    return torch.empty(shape, dtype=like.dtype, device="meta", memory_format=memory_format)


CPU_CONVOLUTIONS = Convolutions(_format_on_cpu)
CUDA_CONVOLUTIONS = Convolutions(_format_on_cuda)
