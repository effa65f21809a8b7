"""Which kernel runs scaled-dot-product attention: the choices of `ATen/native/transformers` on CUDA and on the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten: Any = torch.ops.aten
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


def _in_four_dimensions(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Without a dimension for the batch, attention runs as for a batch of one."""

    @functools.wraps(attention)
    def run(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        if not (query.dim() == key.dim() == value.dim() == 3):
            return attention(query, key, value, attn_mask, *args, **kwargs)
        q, k, v = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        while attn_mask is not None and attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
        return attention(q, k, v, attn_mask, *args, **kwargs).squeeze(0)

    return run


@_in_four_dimensions
def attention_on_cuda(
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


@_in_four_dimensions
def attention_on_cpu(
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
        and (attn_mask is None or attn_mask.dim() in (2, 4) and not attn_mask.requires_grad)
        and _is_plain_attention(query, key, value, enable_gqa or key.dim() == 4 and key.size(1) == 1)
        and query.size(3) == key.size(3) == value.size(3)
    )
    if takes_flash:
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=bias, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
