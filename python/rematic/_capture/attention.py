"""Which kernel runs scaled-dot-product attention: the choices of `ATen/native/transformers` on CUDA and on the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from .hollow import Hollow

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
    shares_one_head = k.size(1) == v.size(1) == 1
    if not shares_one_head and (q.size(1) != k.size(1) or q.size(1) != v.size(1)):
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


def _takes_efficient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    # Torch 2.15 takes it for grouped heads too; the built-in models do not yet, and both say the same.
    alignment = EFFICIENT_WIDTH_ALIGNMENT.get(q.dtype)
    return (
        alignment is not None
        and _is_plain_attention(q, k, v, False)
        and q.size(3) == k.size(3)
        and q.size(3) % alignment == 0
        and v.size(3) % alignment == 0
    )


def _with_batch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys and values of three dimensions are those of a batch of one."""
    if not q.dim() == k.dim() == v.dim() == 3:
        return q, k, v, mask
    q, k, v = (tensor.unsqueeze(0) for tensor in (q, k, v))
    while mask is not None and 2 <= mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return q, k, v, mask


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
    q, k, v, mask = _with_batch(query, key, value, attn_mask)
    out = _run_on_cuda(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
    return out if q is query else out.squeeze(0)


def _run_on_cuda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    if _takes_flash(q, k, v, mask, is_causal, enable_gqa):
        width = q.size(3)
        missing = -width % FLASH_WIDTH_ALIGNMENT
        if missing:
            scale = 1 / math.sqrt(width) if scale is None else scale
            q, k, v = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
        return out[..., :width] if missing else out
    bias = _as_bias(mask, q.dtype)
    if _takes_efficient(q, k, v):
        aligned = None if bias is None else _aligned_bias(bias, q, k)
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, aligned, _needs_grad(q, k, v), dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


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
    q, k, v, mask = _with_batch(query, key, value, attn_mask)
    given = [None if tensor is None else Hollow(tensor, tensor.requires_grad) for tensor in (q, k, v, mask)]
    choice = aten._fused_sdp_choice.default._op_dk(
        torch._C.DispatchKey.CPU, *given, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    bias = _as_bias(mask, q.dtype)
    if choice == SDPBackend.FLASH_ATTENTION.value:
        out = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, dropout_p, is_causal, attn_mask=bias, scale=scale
        )[0]
    else:
        out = aten._scaled_dot_product_attention_math(
            q, k, v, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    return out if q is query else out.squeeze(0)
