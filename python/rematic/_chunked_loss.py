"""Cross-entropy of a language model without all of its logits at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100


def chunked_loss(hidden: Tensor, weight: Tensor, labels: Tensor, *, chunks: int = 8) -> Tensor:
    """The loss of a causal language model from its last hidden states and the weight of its output layer.

    It is what Hugging Face's models compute, each position against the next token, but over `chunks` parts of the positions, one
    after the other: logits of a part live only while its loss is computed, and are computed again in backward. Sums are taken in
    another order than in one piece, so that gradients are equal up to rounding.

        hidden = model.model(input_ids=tokens)[0]
        loss = rematic.chunked_loss(hidden, model.lm_head.weight, tokens)
    """
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}; it must be at least 1")
    targets = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1)
    hidden = hidden.reshape(-1, hidden.size(-1))
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return _ChunkedLoss.apply(hidden, weight, targets, chunks)
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return _ChunkedLoss.apply(hidden.to(dtype), weight.to(dtype), targets, chunks)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunks: int) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets)
        ctx.chunks = chunks
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for part, wanted in zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True):
            total += nn.functional.cross_entropy(
                nn.functional.linear(part, weight).float(), wanted, ignore_index=IGNORED, reduction="sum"
            )
        return total / (targets != IGNORED).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, targets = ctx.saved_tensors
        counts = targets != IGNORED
        scale = gradients[0] / counts.sum()
        for_hidden = torch.empty_like(hidden)
        for_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        parts = (tensor.chunk(ctx.chunks) for tensor in (hidden, targets, counts, for_hidden))
        for part, wanted, counted, gradient in zip(*parts, strict=True):
            delta = _delta(nn.functional.linear(part, weight).float().softmax(-1), wanted, counted * scale)
            delta = delta.to(weight.dtype)
            gradient.copy_(delta @ weight)
            if for_weight is not None:
                for_weight.addmm_(delta.t(), part)
            # The next part's is not made beside it.
            del delta
        return for_hidden, for_weight, None, None


def _delta(probabilities: Tensor, wanted: Tensor, scales: Tensor) -> Tensor:
    """The gradient of the logits, in place of the probabilities."""
    scales = scales.unsqueeze(1)
    probabilities.mul_(scales)
    return probabilities.scatter_add_(1, wanted.clamp(min=0).unsqueeze(1), -scales)
