"""Cross-entropy of a linear layer without all of its logits at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rematic._core import PlanError

IGNORED = -100
# Parts that the rows are computed in unless another number is given.
CHUNKS = 8


class Change(NamedTuple):
    """What a model does to its logits before the loss, number by number."""

    # `to` a type, `mul` or `div` by a number, or `tanh`.
    kind: str
    by: Any = None


class How(NamedTuple):
    """How the loss is computed."""

    chunks: int = CHUNKS
    changes: tuple[Change, ...] = (Change("to", torch.float32),)
    ignored: int = IGNORED
    reduction: str = "mean"
    # The type of the result.
    dtype: torch.dtype = torch.float32


def chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    chunks: int = CHUNKS,
    shift: bool = True,
    ignore_index: int = IGNORED,
) -> Tensor:
    """The loss of a language model from its last hidden states and the weight of its output layer.

    It is what Hugging Face's causal models compute, each position against the next token, but over `chunks` parts of the positions,
    one after the other: logits of a part live only while its loss is computed, and are computed again in backward. With `shift=False`
    each position is compared with its own label. Sums are taken in another order than in one piece, so that gradients are equal up to
    rounding.

        hidden = model.model(input_ids=tokens)[0]
        loss = rematic.chunked_loss(hidden, model.lm_head.weight, tokens)
    """
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}; it must be at least 1")
    if shift:
        labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    hidden, weight, bias = as_computed(hidden, weight, bias)
    hidden = hidden.reshape(-1, hidden.size(-1))
    return cross_entropy(hidden, weight, bias, labels.reshape(-1), How(chunks, ignored=ignore_index))


def as_computed(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What a linear layer computes with: under autocast, all in its type."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device) or hidden.dtype == torch.float64:
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: How) -> Tensor:
    """The loss of rows of hidden states against their targets."""
    with torch.autocast(hidden.device.type, enabled=False):
        return _ChunkedLoss.apply(hidden, weight, bias, targets, how)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: How) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.how = how
        total = torch.zeros((), dtype=_wide(how), device=hidden.device)
        for part, wanted in zip(hidden.chunk(how.chunks), targets.chunk(how.chunks), strict=True):
            total += nn.functional.cross_entropy(
                _logits(part, weight, bias, how)[0], wanted, ignore_index=how.ignored, reduction="sum"
            )
        if how.reduction == "mean":
            total = total / (targets != how.ignored).sum()
        return total.to(how.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise PlanError(
                "A loss that is computed in chunks has no second derivative, which backward with create_graph=True asks for; train with "
                'the plain loss (loss="plain")'
            )
        hidden, weight, bias, targets = ctx.saved_tensors
        how: How = ctx.how
        wants = ctx.needs_input_grad
        with torch.autocast(hidden.device.type, enabled=False):
            counts = targets != how.ignored
            scale = gradients[0].to(_wide(how))
            if how.reduction == "mean":
                scale = scale / counts.sum()
            for_hidden = torch.empty_like(hidden) if wants[0] else None
            for_weight = torch.zeros_like(weight) if wants[1] else None
            # Small, so that it is added up in a type that loses nothing.
            for_bias = torch.zeros_like(bias, dtype=_wide(how)) if wants[2] else None
            parts = [tensor.chunk(how.chunks) for tensor in (hidden, targets, counts)]
            rows = for_hidden.chunk(how.chunks) if for_hidden is not None else None
            for at, (part, wanted, counted) in enumerate(zip(*parts, strict=True)):
                delta = _delta(part, weight, bias, wanted, counted * scale, how)
                if rows is not None:
                    rows[at].copy_(delta @ weight)
                if for_weight is not None:
                    for_weight.addmm_(delta.t(), part)
                if for_bias is not None:
                    for_bias += delta.sum(0, dtype=_wide(how))
                # The next part's is not made beside it.
                del delta
        return for_hidden, for_weight, None if for_bias is None else for_bias.to(bias.dtype), None, None


def _wide(how: How) -> torch.dtype:
    """The type that the loss is computed in: half types are too narrow for its sums."""
    kept = [change.by for change in how.changes if change.kind == "to"]
    return torch.float64 if torch.float64 in (how.dtype, *kept[-1:]) else torch.float32


def _logits(part: Tensor, weight: Tensor, bias: Tensor | None, how: How) -> tuple[Tensor, list[Tensor]]:
    """The logits of some rows, and the output of every `tanh` that changed them, for backward."""
    logits = nn.functional.linear(part, weight, bias)
    passed: list[Tensor] = []
    for kind, by in how.changes:
        if kind == "to":
            logits = logits.to(by)
        elif kind == "mul":
            logits = logits * by
        elif kind == "div":
            logits = logits / by
        else:
            logits = logits.tanh()
            passed.append(logits)
    return logits.to(_wide(how)), passed


def _delta(part: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, scales: Tensor, how: How) -> Tensor:
    """The gradient of what the layer gives for some rows."""
    logits, passed = _logits(part, weight, bias, how)
    delta = logits.softmax(-1)
    del logits
    scales = scales.unsqueeze(1)
    delta.mul_(scales)
    delta.scatter_add_(1, wanted.clamp(min=0, max=weight.size(0) - 1).unsqueeze(1), -scales)
    del scales
    types = [weight.dtype]
    for kind, by in how.changes:
        types.append(by if kind == "to" else types[-1])
    for (kind, by), dtype in zip(reversed(how.changes), reversed(types[:-1]), strict=True):
        delta = delta.to(dtype)
        if kind == "mul":
            delta = delta * by
        elif kind == "div":
            delta = delta / by
        elif kind == "tanh":
            delta = torch.ops.aten.tanh_backward(delta, passed.pop())
    return delta.to(weight.dtype)
