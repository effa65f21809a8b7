"""Normalisation as on CUDA: cuDNN's batch norm, the fused RMS norm; batch norm as on the CPU; and group norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten: Any = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

# `_select_batch_norm_backend` in ATen/native/Normalization.cpp
CUDNN_BATCH_NORM_MAX_BATCH = {True: 880_801, False: 65_535}
CUDNN_BATCH_NORM_MIN_EPSILON = 0.0
CUDNN_MAX_ELEMENTS = 2**31 - 1


def batch_norm_on_cuda(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    takes_cudnn = (
        cudnn_enabled
        and weight is not None
        and bias is not None
        and input.dtype != torch.bfloat16
        and weight.dtype != torch.bfloat16
        and (input.dtype != torch.float16 or weight.dtype == torch.float32)
        and (running_mean is None) == (running_var is None)
        and (running_mean is not None or training)
        and input.dim() >= 3
        and input.size(0) <= CUDNN_BATCH_NORM_MAX_BATCH[training]
        and eps >= CUDNN_BATCH_NORM_MIN_EPSILON
        and 0 < input.numel() < CUDNN_MAX_ELEMENTS
    )
    if not takes_cudnn:
        return aten.batch_norm.default.decompose(
            input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
        )
    assert weight is not None and bias is not None
    dense = input.contiguous(memory_format=torch._prims_common.suggest_memory_format(input))
    return aten.cudnn_batch_norm(
        dense, weight.contiguous(), bias.contiguous(), running_mean, running_var, training, momentum, eps
    )[0]


class _FusedRmsNorm(torch.autograd.Function):
    """`_fused_rms_norm` has a derivative on CUDA only; elsewhere it is taken apart before a dispatch mode sees it."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            out, rstd = aten._fused_rms_norm(input, shape, weight, eps)
        ctx.save_for_backward(input, weight, rstd)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        input, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            d_input, d_weight = aten._fused_rms_norm_backward(gradient, input, ctx.shape, rstd, weight, mask)
        return d_input, None, d_weight, None


def rms_norm_on_cuda(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    is_mixed = weight is not None and weight.dtype != input.dtype
    lies_channels_last = torch._prims_common.suggest_memory_format(input) != torch.contiguous_format
    if is_mixed or lies_channels_last or input.is_complex():
        return aten.rms_norm.default.decompose(input, normalized_shape, weight, eps)
    return _FusedRmsNorm.apply(input, normalized_shape, weight, eps)


def fused_rms_norm_meta(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    outer = input.dim() - len(normalized_shape)
    statistics = [*input.shape[:outer], *(1 for _ in normalized_shape)]
    dtype = torch.float32 if input.dtype in HALF else input.dtype
    out = torch.empty(input.shape, dtype=input.dtype, device="meta")
    return out, torch.empty(statistics, dtype=dtype, device="meta")


def fused_rms_norm_backward_meta(
    gradient: Tensor, input: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    d_input = torch.empty(input.shape, dtype=input.dtype, device="meta") if mask[0] else None
    d_weight = torch.empty_like(weight) if mask[1] and weight is not None else None
    return d_input, d_weight


def group_norm_meta(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Torch's own overlooks that statistics are kept in the type of the parameters where that is wider."""
    given = weight if weight is not None else bias
    dtype = input.dtype if given is None or given.dtype == input.dtype else torch.float32
    statistics = [torch.empty(n, group, dtype=dtype, device="meta") for _ in range(2)]
    return _dense_like(input), statistics[0], statistics[1]


def group_norm_backward_meta(
    gradient: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    hw: int,
    group: int,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dtype = input.dtype if weight is None else weight.dtype
    d_input = _dense_like(input) if mask[0] else None
    d_weight, d_bias = (torch.empty(c, dtype=dtype, device="meta") if wanted else None for wanted in mask[1:])
    return d_input, d_weight, d_bias


def batch_norm_on_cpu_meta(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Torch's own keeps any order of dimensions, and has statistics of the batch in evaluation too."""
    given = next((tensor for tensor in (weight, bias, running_mean) if tensor is not None), input)
    channels = input.size(1) if training else 0
    statistics = [torch.empty(channels, dtype=given.dtype, device="meta") for _ in range(2)]
    return _dense_like(input), statistics[0], statistics[1]


def batch_norm_backward_on_cpu_meta(
    gradient: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dtype = input.dtype if weight is None else weight.dtype
    d_input = _dense_like(input) if mask[0] else None
    d_weight, d_bias = (torch.empty(input.size(1), dtype=dtype, device="meta") if wanted else None for wanted in mask[1:])
    return d_input, d_weight, d_bias


def _dense_like(input: Tensor) -> Tensor:
    """Channels last if the input is, and otherwise in the usual order, however the input lies."""
    return torch.empty_like(input, memory_format=torch._prims_common.suggest_memory_format(input))
