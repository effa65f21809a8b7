"""Composite operators choose their kernels by device, and on the meta device they choose neither as on CUDA nor, in
part, as on the CPU. While a device is imitated, they are sent to its choice."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from .autocast import Autocast

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

# `pad_last_dim<8>` and `mem_eff_alignment` in ATen/native/transformers/attention.cpp
FLASH_WIDTH_ALIGNMENT = 8
BIAS_ALIGNMENT = 8
# `check_head_dim_size_flash` in ATen/native/transformers/cuda/sdp_utils.cpp
FLASH_MAX_WIDTH = 256
# `minimum_gemm_alignment` there, from Ampere on
EFFICIENT_WIDTH_ALIGNMENT = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4}


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


# ---- dropout ----


def _dropout_on_cuda(input: Tensor, p: float, train: bool) -> Tensor:
    if train and 0 < p < 1 and input.numel() > 0:
        return aten.native_dropout(input, p, train)[0]
    return aten.dropout.default.decompose(input, p, train)


# ---- attention ----


def _is_plain_attention(q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> bool:
    """What every fused kernel asks for."""
    if not (q.dim() == k.dim() == v.dim() == 4):
        return False
    if not (q.dtype == k.dtype == v.dtype) or not (q.size(0) == k.size(0) == v.size(0)):
        return False
    if q.size(1) != k.size(1) or q.size(1) != v.size(1):
        if not grouped or k.size(1) != v.size(1) or k.size(1) == 0 or q.size(1) % k.size(1):
            return False
    if 0 in (q.size(2), k.size(2)):
        return False
    return q.stride(3) == k.stride(3) == v.stride(3) == 1 or q.size(3) == 1


def _takes_flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, grouped: bool) -> bool:
    return (
        mask is None
        and q.dtype in HALF
        and _is_plain_attention(q, k, v, grouped)
        and q.size(3) == k.size(3) == v.size(3) <= FLASH_MAX_WIDTH
        and not (causal and q.size(2) != k.size(2))
    )


def _takes_efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, grouped: bool) -> bool:
    alignment = EFFICIENT_WIDTH_ALIGNMENT.get(q.dtype)
    return (
        alignment is not None
        and not (mask is not None and mask.requires_grad)
        and _is_plain_attention(q, k, v, False)
        and q.size(3) == k.size(3)
        and q.size(3) % alignment == 0
        and v.size(3) % alignment == 0
    )


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """`convert_boolean_attn_mask`: numbers to add to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))


def _aligned_bias(bias: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """`preprocess_mask`: rows that begin at multiples of BIAS_ALIGNMENT elements."""
    if any(stride % BIAS_ALIGNMENT for stride in bias.stride()[:-1]) or bias.stride(-1) != 1:
        keys = bias.size(-1)
        padded = torch.nn.functional.pad(bias, (0, BIAS_ALIGNMENT - keys % BIAS_ALIGNMENT))
        return padded[..., :keys].expand(q.size(0), q.size(1), q.size(2), k.size(2))
    return bias.expand(q.size(0), q.size(1), q.size(2), k.size(2))


def _attention_on_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    q, k, v = query, key, value
    if _takes_flash(q, k, v, attn_mask, is_causal, enable_gqa):
        width = q.size(3)
        missing = -width % FLASH_WIDTH_ALIGNMENT
        if missing:
            scale = 1 / math.sqrt(width) if scale is None else scale
            q, k, v = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
        return out[..., :width] if missing else out
    bias = _as_bias(attn_mask, q.dtype)
    if _takes_efficient(q, k, v, attn_mask, enable_gqa):
        aligned = None if bias is None else _aligned_bias(bias, q, k)
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, aligned, _needs_grad(q, k, v), dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _attention_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    bias = _as_bias(attn_mask, query.dtype)
    takes_flash = (
        dropout_p == 0.0
        and query.dtype in (torch.float64, torch.float32, *HALF)
        and not (attn_mask is not None and attn_mask.requires_grad)
        and _is_plain_attention(query, key, value, enable_gqa)
        and query.size(3) == key.size(3) == value.size(3)
    )
    if takes_flash:
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=bias, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


# ---- normalisation ----

# `_select_batch_norm_backend` in ATen/native/Normalization.cpp
CUDNN_BATCH_NORM_MAX_BATCH = {True: 880_801, False: 65_535}
CUDNN_BATCH_NORM_MIN_EPSILON = 0.0
CUDNN_MAX_ELEMENTS = 2**31 - 1


def _batch_norm_on_cuda(
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
    def forward(
        ctx: Any, input: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            out, rstd = aten._fused_rms_norm(input, shape, weight, eps)
        ctx.save_for_backward(input, weight, rstd)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        input, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            d_input, d_weight = aten._fused_rms_norm_backward(gradient, input, ctx.shape, rstd, weight, mask)
        return d_input, None, d_weight, None


def _rms_norm_on_cuda(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    is_mixed = weight is not None and weight.dtype != input.dtype
    lies_channels_last = torch._prims_common.suggest_memory_format(input) != torch.contiguous_format
    if is_mixed or lies_channels_last or input.is_complex():
        return aten.rms_norm.default.decompose(input, normalized_shape, weight, eps)
    return _FusedRmsNorm.apply(input, normalized_shape, weight, eps)


def _fused_rms_norm_meta(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    outer = input.dim() - len(normalized_shape)
    statistics = [*input.shape[:outer], *(1 for _ in normalized_shape)]
    dtype = torch.float32 if input.dtype in HALF else input.dtype
    out = torch.empty(input.shape, dtype=input.dtype, device="meta")
    return out, torch.empty(statistics, dtype=dtype, device="meta")


def _fused_rms_norm_backward_meta(
    gradient: Tensor, input: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    d_input = torch.empty(input.shape, dtype=input.dtype, device="meta") if mask[0] else None
    d_weight = torch.empty_like(weight) if mask[1] and weight is not None else None
    return d_input, d_weight


def _group_norm_meta(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Torch's own overlooks that statistics are kept in the type of the parameters where that is wider."""
    given = weight if weight is not None else bias
    dtype = input.dtype if given is None or given.dtype == input.dtype else torch.float32
    statistics = [torch.empty(n, group, dtype=dtype, device="meta") for _ in range(2)]
    return torch.empty_like(input), statistics[0], statistics[1]


def _group_norm_backward_meta(
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
    d_input = torch.empty_like(input) if mask[0] else None
    d_weight, d_bias = (torch.empty(c, dtype=dtype, device="meta") if wanted else None for wanted in mask[1:])
    return d_input, d_weight, d_bias


# ---- softmax ----


def _softmax_on_cuda(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if input.dtype == torch.float16 and dtype == torch.float32:
        return aten._softmax(input, dim, True)
    return aten.softmax.int.decompose(input, dim, dtype)


def _log_softmax_on_cuda(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if input.dtype == torch.float16 and dtype == torch.float32:
        return aten._log_softmax(input, dim, True)
    return aten.log_softmax.int.decompose(input, dim, dtype)


# ---- one-hot ----


def _one_hot(input: Tensor, classes: int) -> Tensor:
    out = torch.zeros([*input.shape, classes], dtype=input.dtype, device=input.device)
    out.scatter_(-1, input.unsqueeze(-1), 1)
    return out


def _one_hot_on_cuda(self: Tensor, num_classes: int = -1) -> Tensor:
    return _one_hot(self, int(self.max().item()) + 1 if num_classes == -1 else num_classes)


def _one_hot_on_cpu(self: Tensor, num_classes: int = -1) -> Tensor:
    least, most = torch.aminmax(self)
    least.item()
    highest = int(most.item())
    del least, most
    return _one_hot(self, highest + 1 if num_classes == -1 else num_classes)


CUDA = {
    "dropout": _dropout_on_cuda,
    "scaled_dot_product_attention": _attention_on_cuda,
    "batch_norm": _batch_norm_on_cuda,
    "rms_norm": _rms_norm_on_cuda,
    "softmax.int": _softmax_on_cuda,
    "log_softmax.int": _log_softmax_on_cuda,
    "one_hot": _one_hot_on_cuda,
}
META = {
    "native_group_norm": _group_norm_meta,
    "native_group_norm_backward": _group_norm_backward_meta,
}
CUDA_META = {
    **META,
    "_fused_rms_norm": _fused_rms_norm_meta,
    "_fused_rms_norm_backward": _fused_rms_norm_backward_meta,
}
CPU: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attention_on_cpu,
    "one_hot": _one_hot_on_cpu,
}
DEVICES = {"cuda": CUDA, "cpu": CPU}
META_KERNELS: dict[str, dict[str, Callable[..., Any]]] = {"cuda": CUDA_META, "cpu": META}


@contextlib.contextmanager
def as_on(device: str) -> Iterator[None]:
    """While it is entered, the meta device runs the operators of this one."""
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    with contextlib.ExitStack() as stack:
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in DEVICES[device].items():
                library.impl(name, kernel, "AutogradMeta")
            for name, kernel in META_KERNELS[device].items():
                # `library.impl` refuses: on other devices than CUDA the operator is taken apart.
                library.m.impl(name, "Meta", kernel, False)
        stack.enter_context(_optimizers_as_on(device))
        stack.enter_context(Autocast(device, DEVICES[device]).watching())
        yield


@contextlib.contextmanager
def _optimizers_as_on(device: str) -> Iterator[None]:
    """Optimizers pick their implementation by the type of the device too."""
    from torch.optim import optimizer as optimizers
    from torch.utils import _foreach_utils as foreach

    def imitated(supported: Callable[[], list[str]]) -> Callable[[], list[str]]:
        listed = supported()
        return lambda: [*listed, "meta"] if device in listed else listed

    with contextlib.ExitStack() as stack:
        for module in (optimizers, foreach):
            for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
                stack.enter_context(mock.patch.object(module, name, imitated(getattr(module, name))))
        yield
