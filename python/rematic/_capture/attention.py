"""Which kernel runs scaled-dot-product attention: the choices of `ATen/native/transformers` on CUDA and on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from .errors import CaptureError
from .hollow import Hollow

aten: Any = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)

# `pad_last_dim<8>` and `mem_eff_alignment` in ATen/native/transformers/attention.cpp
FLASH_WIDTH_ALIGNMENT = 8
BIAS_ALIGNMENT = 8
# Which cards there are, by what they run (`CardKind` of rematic-trace); the usual one.
BEFORE_AMPERE, DATA_CENTER, CONSUMER = "before-ampere", "data-center", "consumer"
# `check_head_dim_size_flash` in ATen/native/transformers/cuda/sdp_utils.cpp
FLASH_MAX_WIDTH = 256
# `check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120` there: the widest heads that consumer cards train
# with flash attention, and those above which they do so again, without dropout.
CONSUMER_MAX_WIDTH, CONSUMER_MIN_WIDTH = 192, 224
# `minimum_gemm_alignment` there, from Ampere on: 16 bytes. Before, tensor cores compute in fp16 alone.
EFFICIENT_ALIGNMENT = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4}
EFFICIENT_ALIGNMENT_BEFORE_AMPERE = {torch.float16: 8, torch.float32: 1}
# Since then queries of three dimensions are a batch of one, every fused kernel takes one head of keys and values for
# all queries, and the memory-efficient one grouped heads; before, only flash took those, when told to
# (`check_batch_size_and_num_heads_dense` in sdp_utils_cpp.h).
HAS_RULES_OF_2_14 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


class Card:
    """Whose choice it is, and whether the usual card's was another one for any call."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.decided = False


_card = Card(DATA_CENTER)


@contextlib.contextmanager
def on_card(kind: str) -> Iterator[None]:
    """While it is entered, attention on CUDA is that of such a card."""
    global _card
    before, _card = _card, Card(kind)
    try:
        yield
    finally:
        _card = before


def deciding_card() -> str | None:
    """The card, if attention would have run otherwise on the usual one."""
    return _card.kind if _card.decided else None


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of attention: the `sdp_params` of sdp_utils_cpp.h."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    grouped: bool

    def kernel(self) -> SDPBackend:
        """What `select_sdp_backend` of sdp_utils.cpp takes on the card, among what `sdpa_kernel` allows."""
        chosen = self._kernel_on(_card.kind)
        if _card.kind != DATA_CENTER and chosen is not self._kernel_on(DATA_CENTER):
            _card.decided = True
        if chosen is not None:
            return chosen
        if SDPBackend.CUDNN_ATTENTION in _allowed():
            raise CaptureError(
                "Attention may take cuDNN's kernel alone here, which capture does not know.\n"
                "Allow another one as well: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])."
            )
        # In torch's words.
        raise RuntimeError("No available kernel. Aborting execution.")

    def _kernel_on(self, card: str) -> SDPBackend | None:
        takes = {
            SDPBackend.FLASH_ATTENTION: self._takes_flash,
            SDPBackend.EFFICIENT_ATTENTION: self._takes_efficient,
            SDPBackend.MATH: lambda _: True,
        }
        return next((backend for backend in _allowed() if backend in takes and takes[backend](card)), None)

    def _takes_flash(self, card: str) -> bool:
        q, k, v = self.q, self.k, self.v
        return (
            self.mask is None
            and card != BEFORE_AMPERE
            and q.dtype in HALF
            and self._is_plain(shares=HAS_RULES_OF_2_14, groups=True)
            and (self._lies_by_width() or q.size(3) == 1)
            and (card != CONSUMER or not _needs_grad(q, k, v) or self._trains_on_consumer_cards())
            and q.size(3) == k.size(3) == v.size(3) <= FLASH_MAX_WIDTH
            and not (self.causal and q.size(2) != k.size(2))
        )

    def _trains_on_consumer_cards(self) -> bool:
        width = self.q.size(3)
        return width <= CONSUMER_MAX_WIDTH or (width > CONSUMER_MIN_WIDTH and self.dropout == 0)

    def _takes_efficient(self, card: str) -> bool:
        q, k, v = self.q, self.k, self.v
        is_old = card == BEFORE_AMPERE
        alignment = (EFFICIENT_ALIGNMENT_BEFORE_AMPERE if is_old else EFFICIENT_ALIGNMENT).get(q.dtype)
        if alignment is None or not self._is_plain(shares=HAS_RULES_OF_2_14, groups=HAS_RULES_OF_2_14):
            return False
        # `check_data_ptr_alignment_mem_efficient`: the allocator's blocks are aligned, so the place in one decides.
        aligned = is_old or all(tensor.storage_offset() % alignment == 0 or not tensor.numel() for tensor in (q, k, v))
        widths = q.size(3) == k.size(3) > 0 and v.size(3) > 0 and q.size(3) % alignment == v.size(3) % alignment == 0
        return aligned and widths and self._lies_by_width()

    def _is_plain(self, *, shares: bool, groups: bool) -> bool:
        """What every fused kernel asks for; whether it takes one head, or groups of them, for all those of queries."""
        q, k, v = self.q, self.k, self.v
        if not (q.dim() == k.dim() == v.dim() == 4):
            return False
        if not (q.dtype == k.dtype == v.dtype) or not (q.size(0) == k.size(0) == v.size(0)):
            return False
        if 0 in (q.size(2), k.size(2)):
            return False
        heads, keys, values = q.size(1), k.size(1), v.size(1)
        if self.grouped and groups:
            return keys == values > 0 and heads % keys == 0
        return heads == keys == values or (shares and heads > 0 and keys == values == 1)

    def _lies_by_width(self) -> bool:
        """Whether the last dimension is dense (`check_last_dim_stride_equals_1_dense`)."""
        return all(tensor.stride(-1) == 1 for tensor in (self.q, self.k, self.v, self.mask) if tensor is not None)


def _allowed() -> list[SDPBackend]:
    """The kernels that may run, in the order they are tried: `sdpa_kernel` and torch.backends.cuda.enable_*_sdp."""
    enabled = {
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
        SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled(),
    }
    in_order = getattr(torch._C, "_get_sdp_priority_order", None)
    order = in_order() if in_order is not None else [backend.value for backend in enabled]
    return [backend for value in order for backend in enabled if backend.value == value and enabled[backend]]


def _with_batch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys and values of three dimensions are those of a batch of one."""
    if not HAS_RULES_OF_2_14 or not q.dim() == k.dim() == v.dim() == 3:
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
    out = _run_on_cuda(Call(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa))
    return out if q is query else out.squeeze(0)


def _run_on_cuda(call: Call) -> Tensor:
    q, k, v, scale = call.q, call.k, call.v, call.scale
    kernel = call.kernel()
    if kernel is SDPBackend.FLASH_ATTENTION:
        width = q.size(3)
        missing = -width % FLASH_WIDTH_ALIGNMENT
        if missing:
            scale = 1 / math.sqrt(width) if scale is None else scale
            q, k, v = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, call.dropout, call.causal, scale=scale)[0]
        return out[..., :width] if missing else out
    bias = _as_bias(call.mask, q.dtype)
    if kernel is SDPBackend.EFFICIENT_ATTENTION:
        # It takes the place of the other one, which goes before the kernel runs.
        bias = None if bias is None else _aligned_bias(bias, q, k)
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, _needs_grad(q, k, v, call.mask), call.dropout, call.causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, bias, call.dropout, call.causal, scale=scale, enable_gqa=call.grouped
    )[0]


def flash_backward_meta(_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> list[Tensor]:
    """Gradients are made for heads that lie in rows; it shows where keys and values are views of fewer heads."""
    return [torch.empty_like(tensor.transpose(1, 2)).transpose(1, 2) for tensor in (query, key, value)]


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
