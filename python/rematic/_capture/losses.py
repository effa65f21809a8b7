"""Losses: connectionist temporal classification (CTC), with the kernel that CUDA chooses; and those that leave the memory of
their elements behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .recurrent import composite

aten: Any = torch.ops.aten

# `_use_cudnn_ctc_loss` in ATen/native/cudnn/LossCTC.cpp
CUDNN_MAX_TARGET = 255
MEAN, SUM = 1, 2

Lengths = Tensor | Sequence[int]


def _listed(lengths: Lengths) -> list[int]:
    return lengths.reshape(-1).tolist() if isinstance(lengths, Tensor) else list(lengths)


def _use_cudnn(log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int) -> bool:
    takes = (
        torch.backends.cudnn.enabled
        and blank == 0
        and targets.dim() == 1
        and log_probs.dim() == 3
        and log_probs.dtype == torch.float32
        and targets.dtype == torch.int32
        and targets.is_contiguous()
    )
    lengths = (input_lengths, target_lengths)
    if isinstance(target_lengths, Tensor):
        takes = takes and all(isinstance(given, Tensor) and given.dtype == torch.int32 for given in lengths)
    else:
        takes = takes and not targets.is_meta and set(_listed(input_lengths)) <= {log_probs.size(0)}
    pairs = zip(_listed(input_lengths), _listed(target_lengths), strict=False)
    return takes and all(target <= min(steps, CUDNN_MAX_TARGET) for steps, target in pairs)


def _loss_on_cuda(name: str) -> Callable[..., Tensor]:
    plain = composite(f"ctc_loss.{name}")
    # A dispatch mode sees the question twice where lengths are tensors.
    asks = 2 if name == "Tensor" else 1

    def loss(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
        blank: int = 0,
        reduction: int = MEAN,
        zero_infinity: bool = False,
    ) -> Tensor:
        batched = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
        asked = getattr(aten._use_cudnn_ctc_loss, "Tensor" if name == "Tensor" else "default")
        takes = [asked(batched, targets, input_lengths, target_lengths, blank) for _ in range(asks)]
        if not takes[0]:
            return plain(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
        kernel = getattr(aten._cudnn_ctc_loss, "Tensor" if name == "Tensor" else "default")
        deterministic = torch.backends.cudnn.deterministic
        res = kernel(batched, targets, input_lengths, target_lengths, blank, deterministic, zero_infinity)[0]
        if reduction == MEAN:
            if isinstance(target_lengths, Tensor):
                clamped = target_lengths.clamp_min(1)
            else:
                clamped = torch.tensor([max(length, 1) for length in target_lengths]).to(res)
            return (res / clamped).mean()
        if reduction == SUM:
            return res.sum()
        return res if log_probs.dim() == 3 else res.squeeze(0)

    return loss


def _ctc_meta(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Losses, and the probabilities of all beginnings, with blanks around each of the longest target's labels."""
    steps, batch, _ = log_probs.shape
    longest = max(_listed(target_lengths), default=0)
    return log_probs.new_empty([batch]), log_probs.new_empty([batch, steps, 2 * longest + 1])


def _gradient_meta(gradient: Tensor, log_probs: Tensor, *rest: Any, **options: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _cudnn_meta(log_probs: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """cuDNN computes the gradient along with the losses."""
    return log_probs.new_empty([log_probs.size(1)]), _gradient_meta(log_probs, log_probs)


# ---- sums and means in the memory of their elements ----


def _reduced(op: Any) -> Callable[..., Tensor]:
    """`structured` kernels write every element's loss into the result and then reduce it in place, which keeps its memory:
    soft_margin_loss in ATen/native/Loss.cpp."""
    names = [argument.name for argument in op._schema.arguments]
    at = names.index("reduction")
    default = op._schema.arguments[at].default_value

    def loss(input: Tensor, target: Tensor, *rest: Any, **options: Any) -> Tensor:
        given = (input, target, *rest)
        reduction = given[at] if at < len(given) else options.get("reduction", default)
        shape = torch.broadcast_shapes(input.shape, target.shape)
        elements = torch.empty(shape, dtype=torch.result_type(input, target), device="meta")
        if not reduction:
            return elements
        out = torch.empty(0, dtype=elements.dtype, device="meta")
        return out.set_(elements.untyped_storage(), 0, (), ())

    return loss


_KEEP_ELEMENTS = ("soft_margin_loss",)

LOSSES_ON_CUDA: dict[str, Callable[..., Any]] = {
    "ctc_loss.Tensor": _loss_on_cuda("Tensor"),
    "ctc_loss.IntList": _loss_on_cuda("IntList"),
}
LOSSES_META: dict[str, Callable[..., Any]] = {
    **{name: _reduced(getattr(aten, name).default) for name in _KEEP_ELEMENTS},
    "_ctc_loss": _ctc_meta,
    "_ctc_loss.Tensor": _ctc_meta,
    "_ctc_loss_backward": _gradient_meta,
    "_ctc_loss_backward.Tensor": _gradient_meta,
    "_use_cudnn_ctc_loss": _use_cudnn,
    "_use_cudnn_ctc_loss.Tensor": _use_cudnn,
    "_cudnn_ctc_loss": _cudnn_meta,
    "_cudnn_ctc_loss.Tensor": _cudnn_meta,
}
